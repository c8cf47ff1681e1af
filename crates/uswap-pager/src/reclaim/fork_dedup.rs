//! Fork dedup: pages with the same bytes that relatives by fork evict are stored once.
//!
//! A page that a fork left shared cannot be moved before it is copied (the kernel answers EBUSY),
//! so each relative evicts a copy of its own. Without this table a hundred children would store
//! their parent's memory a hundred times. The table is small and forgets: a slot holds the last
//! object whose hash fell there, and the store checks whether that object still has the same bytes.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use uswap_core::{PageBuf, PageHash};
use uswap_store::{ObjectId, Store};

const SLOTS: usize = 1 << 17;
const NONE: u32 = u32::MAX;

/// The table from hash to object, direct-mapped.
#[derive(Debug)]
pub struct ForkDedup(Box<[AtomicU32]>);

impl Default for ForkDedup {
    fn default() -> Self {
        Self::new()
    }
}

impl ForkDedup {
    /// An empty table (512 KiB, touched as it fills).
    pub fn new() -> Self {
        // Object ids are stored inverted, so that untouched memory reads as "none".
        Self(uswap_sys::alloc::zeroed::atomic_words(SLOTS))
    }

    fn slot(&self, hash: PageHash) -> &AtomicU32 {
        &self.0[hash.place() as usize % SLOTS]
    }

    /// Finds an object with the same bytes, and adds one authoritative reference to it.
    pub fn find(&self, store: &Store, page: &PageBuf, hash: PageHash) -> Option<ObjectId> {
        let bits = !self.slot(hash).load(Relaxed);
        let object = ObjectId::from_bits(bits);
        (bits != NONE && store.retain_if(object, page, hash)).then_some(object)
    }

    /// Remembers the object of the page.
    pub fn remember(&self, hash: PageHash, object: ObjectId) {
        self.slot(hash).store(!object.to_bits(), Relaxed);
    }
}
