//! The key space: gives each cached file a range of keys, so that the pages of all files lie in one
//! page table, as the pages of a process do.
//!
//! A key is the place of a page in that table, in bytes. A range has a power of two of pages, and
//! its class is the exponent: the pages of small files lie close together, and their table entries
//! share chunks. A file that outgrows its range gets another one.

use std::ops::Range;

use uswap_core::PAGE;

/// The class is in the highest 6 bits of a key.
const CLASS_SHIFT: u32 = 58;
const PAGE_SHIFT: u32 = 12;
/// The largest class: 64 TiB.
const LARGEST: u32 = 34;

/// The keys of a file: page `n` has the key of `n` pages behind the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRange {
    base: u64,
    class: u32,
}

impl KeyRange {
    /// Number of pages that have a key.
    pub fn pages(&self) -> u64 {
        1 << self.class
    }

    /// The key of a page of the file; `None`: it has none.
    pub fn key(&self, page: u64) -> Option<u64> {
        (page < self.pages()).then(|| self.base + page * PAGE)
    }

    /// The page of a key of the file.
    pub fn page(&self, key: u64) -> u64 {
        (key - self.base) / PAGE
    }

    /// All keys.
    pub fn keys(&self) -> Range<u64> {
        self.base..self.base + self.pages() * PAGE
    }

    /// The keys from a page on.
    pub fn keys_from(&self, page: u64) -> Range<u64> {
        self.base + page.min(self.pages()) * PAGE..self.keys().end
    }
}

#[derive(Debug, Default)]
struct RangeClass {
    free: Vec<u64>,
    begun: u64,
}

/// All ranges.
#[derive(Debug)]
pub struct KeySpace {
    classes: Vec<RangeClass>,
}

impl Default for KeySpace {
    fn default() -> Self {
        Self { classes: (0..=LARGEST).map(|_| RangeClass::default()).collect() }
    }
}

impl KeySpace {
    /// A range for a file of that many pages; `None`: there is none, the file is too large.
    pub fn take(&mut self, pages: u64) -> Option<KeyRange> {
        let class = pages.max(1).checked_next_power_of_two()?.trailing_zeros();
        let ranges = self.classes.get_mut(class as usize)?;
        let number = ranges.free.pop().or_else(|| {
            let next = ranges.begun;
            (next < 1 << (CLASS_SHIFT - PAGE_SHIFT - class)).then(|| {
                ranges.begun += 1;
                next
            })
        })?;
        Some(KeyRange { base: u64::from(class) << CLASS_SHIFT | number << (PAGE_SHIFT + class), class })
    }

    /// Takes a range back. None of its pages may be in the table any more.
    pub fn give_back(&mut self, range: KeyRange) {
        let number = (range.base & ((1 << CLASS_SHIFT) - 1)) >> (PAGE_SHIFT + range.class);
        self.classes[range.class as usize].free.push(number);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_files_lie_side_by_side_and_the_largest_has_a_place() {
        let mut space = KeySpace::default();
        let ranges = [1, 1, 3, 4].map(|pages| space.take(pages).expect("a range"));
        assert_eq!(ranges[1].base - ranges[0].base, PAGE);
        assert_eq!((ranges[2].pages(), ranges[3].base - ranges[2].base), (4, 4 * PAGE));
        assert_eq!((ranges[2].key(3), ranges[2].key(4)), (Some(ranges[2].base + 3 * PAGE), None));
        let largest = space.take(1 << LARGEST).expect("a range");
        assert_eq!(largest.keys().end - largest.keys().start, 64 << 40);
        assert_eq!((space.take((1 << LARGEST) + 1), space.take(u64::MAX)), (None, None));
    }

    proptest! {
        /// No two ranges in use share a key.
        #[test]
        fn ranges_are_apart(steps in prop::collection::vec((0u64..5000, any::<bool>()), 1..200)) {
            let (mut space, mut used) = (KeySpace::default(), Vec::<KeyRange>::new());
            for (pages, takes) in steps {
                if takes || used.is_empty() {
                    let new = space.take(pages).expect("a range");
                    prop_assert!(new.pages() >= pages);
                    for other in &used {
                        prop_assert!(new.keys().end <= other.keys().start || other.keys().end <= new.keys().start);
                    }
                    used.push(new);
                } else {
                    space.give_back(used.swap_remove(pages as usize % used.len()));
                }
            }
        }
    }
}
