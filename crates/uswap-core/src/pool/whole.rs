//! One lock around a whole allocator, as it was before each size class had its own lock; used to
//! measure the difference.

use super::{AllocError, Allocator, Handle, Usage};
use crate::util::rank::{RankedMutex, ranks};

/// An allocator that one thread at a time may use.
pub struct OneLock<A>(RankedMutex<A>);

impl<A: Allocator> OneLock<A> {
    /// Puts one lock around `allocator`.
    pub fn new(allocator: A) -> Self {
        Self(RankedMutex::new(ranks::POOL_WHOLE, allocator))
    }
}

impl<A: Allocator> Allocator for OneLock<A> {
    fn name(&self) -> &'static str {
        self.0.lock().name()
    }

    fn alloc(&self, bytes: &[u8]) -> Result<Handle, AllocError> {
        self.0.lock().alloc(bytes)
    }

    fn read(&self, handle: Handle, see: &mut dyn FnMut(&[u8])) {
        self.0.lock().read(handle, see);
    }

    fn free(&self, handle: Handle) {
        self.0.lock().free(handle);
    }

    fn pick_thin(&self, turn: usize, see: &mut dyn FnMut(Handle, &[u8])) -> bool {
        self.0.lock().pick_thin(turn, see)
    }

    fn relocate(&self, handle: Handle) -> Option<Handle> {
        self.0.lock().relocate(handle)
    }

    fn set_limit(&self, bytes: u64) {
        self.0.lock().set_limit(bytes);
    }

    fn used_bytes(&self) -> u64 {
        self.0.lock().used_bytes()
    }

    fn usage(&self) -> Usage {
        self.0.lock().usage()
    }
}
