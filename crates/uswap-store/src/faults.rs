//! Fault points of a store: make rare events happen often, for tests.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A fault that hits one in N times; 0: never.
#[derive(Default, Debug)]
pub struct OneIn {
    every: AtomicU64,
    draws: AtomicU64,
}

impl OneIn {
    /// Hits one in `n` times from now on.
    pub fn set(&self, n: u64) {
        self.every.store(n, Relaxed);
    }

    pub(crate) fn hits(&self) -> bool {
        let every = self.every.load(Relaxed);
        every != 0 && self.draws.fetch_add(1, Relaxed) % every == every - 1
    }
}

/// The fault points of a store; all are off by default.
#[derive(Default, Debug)]
pub struct StoreFaults {
    /// A compressed page has one bit flipped when it is stored in the pool.
    pub flip: OneIn,
    /// A page is not compressed: its compressor fails.
    pub compress: OneIn,
    /// The pool's allocator has no memory for an object.
    pub memory: OneIn,
    /// The table has no entry for an object.
    pub entry: OneIn,
    /// Microseconds between choosing the objects of a thin slab and moving them.
    pub delay_compact: AtomicU64,
    /// Rule off: a cached copy is reused for the page that is evicted again, without a comparison.
    pub trust_copy: AtomicBool,
}

impl StoreFaults {
    pub(crate) fn pause_compact(&self) {
        let microseconds = self.delay_compact.load(Relaxed);
        if microseconds != 0 {
            std::thread::sleep(Duration::from_micros(microseconds));
        }
    }
}
