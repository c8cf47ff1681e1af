//! Tables for all slots that a device may ever have, made one block at a time.
//!
//! A swap file is sparse and may be as large as the disk: tables of all its clusters would take
//! megabytes, most of which are never read, and making them would take a third of the start of a
//! run. A block is made when one of its entries is first needed, under the name
//! [`Growth::Devices`], and stays.

use std::sync::OnceLock;

use crate::util::growth::{Growth, during};

/// Entries of a block.
const BLOCK: usize = 64;

/// A table of `T` whose entries are all alike at first.
#[derive(Debug)]
pub struct Blocks<T> {
    blocks: Box<[OnceLock<Box<[T]>>]>,
    make: fn() -> T,
}

impl<T> Blocks<T> {
    /// A table of `length` entries (rounded up to whole blocks), of which none is made yet.
    pub fn new(length: usize, make: fn() -> T) -> Self {
        Self { blocks: (0..length.div_ceil(BLOCK)).map(|_| OnceLock::new()).collect(), make }
    }

    /// An entry.
    ///
    /// # Panics
    /// When it lies beyond the last block.
    pub fn get(&self, index: usize) -> &T {
        let make = || during(Growth::Devices, || (0..BLOCK).map(|_| (self.make)()).collect());
        &self.blocks[index / BLOCK].get_or_init(make)[index % BLOCK]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[test]
    fn entries_are_made_by_the_block_and_keep_what_they_hold() {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let blocks = Blocks::new(1 << 20, || {
            MADE.fetch_add(1, Relaxed);
            AtomicU32::new(7)
        });
        assert_eq!(MADE.load(Relaxed), 0);
        blocks.get(1000).store(1, Relaxed);
        assert_eq!([999, 1000, 1001].map(|index| blocks.get(index).load(Relaxed)), [7, 1, 7]);
        assert_eq!(MADE.load(Relaxed), BLOCK as u32);
        assert_eq!(blocks.get((1 << 20) - 1).load(Relaxed), 7);
        assert_eq!(MADE.load(Relaxed), 2 * BLOCK as u32);
    }

    #[test]
    fn threads_that_come_at_once_find_the_same_entries() {
        let blocks = Blocks::new(640, || AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..640).map(|index| blocks.get(index).fetch_add(1, Relaxed)).sum::<u32>());
            }
        });
        assert!((0..640).all(|index| blocks.get(index).load(Relaxed) == 4));
    }
}
