//! How often pages of a space were installed or dropped, for whoever measures its process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// How often pages of a space were installed or dropped. One thread writes it: the space's owner.
#[derive(Clone, Debug, Default)]
pub struct Moves(Arc<AtomicU64>);

impl Moves {
    /// Pages are moved; to be told before they are charged.
    pub fn count(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Release);
    }

    /// How often so far.
    pub fn now(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Whether both count the same space.
    pub fn are_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
