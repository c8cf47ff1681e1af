//! A counter of page movements of a space, for the governor when it measures the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// How often pages of a space were installed or dropped. Only the pager that owns the space writes
/// it.
#[derive(Clone, Debug, Default)]
pub struct Moves(Arc<AtomicU64>);

impl Moves {
    /// Counts a movement of pages; called before the pages are charged.
    pub fn count(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Release);
    }

    /// Number of movements so far.
    pub fn now(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Whether both count the same space.
    pub fn are_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
