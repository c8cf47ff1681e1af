//! The key space: gives each cached file a range of keys, so that the pages of all files lie in one
//! page table, as the pages of a process do.
//!
//! A key is the place of a page in that table, in bytes. A range has a power of two of pages, and
//! its class is the exponent: the pages of small files lie close together, and their table entries
//! share chunks. A file that outgrows its range gets another one.
//!
//! A range belongs to a group of files, also while no file has it: the lists of that group may have
//! stale entries for its keys, and no other group may take such an entry for one of a new file.

use std::collections::BTreeMap;
use std::ops::Range;

use uswap_core::PAGE;

use crate::cache::groups::GroupId;

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
    /// Ranges without a file, by their group.
    free: BTreeMap<GroupId, Vec<u64>>,
    /// The group of each range that was ever given.
    groups: Vec<GroupId>,
}

impl RangeClass {
    /// A range of that class that was never given; `None`: there is none.
    fn begin(&mut self, class: u32, group: GroupId) -> Option<u64> {
        let next = self.groups.len() as u64;
        let is_there = next < 1 << (CLASS_SHIFT - PAGE_SHIFT - class);
        is_there.then(|| {
            self.groups.push(group);
            next
        })
    }
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

/// The class of a key, and the number of its range there.
fn place(key: u64) -> (usize, usize) {
    let class = (key >> CLASS_SHIFT) as u32;
    let number = (key & ((1 << CLASS_SHIFT) - 1)) >> (PAGE_SHIFT + class);
    (class as usize, number as usize)
}

impl KeySpace {
    /// A range for a file of that many pages and that group; `None`: there is none, the file is too
    /// large.
    pub fn take(&mut self, pages: u64, group: GroupId) -> Option<KeyRange> {
        let class = pages.max(1).checked_next_power_of_two()?.trailing_zeros();
        let ranges = self.classes.get_mut(class as usize)?;
        let free = ranges.free.get_mut(&group).and_then(Vec::pop);
        let number = free.or_else(|| ranges.begin(class, group))?;
        Some(KeyRange { base: u64::from(class) << CLASS_SHIFT | number << (PAGE_SHIFT + class), class })
    }

    /// Takes a range back. None of its pages may be in the table any more.
    pub fn give_back(&mut self, range: KeyRange) {
        let (class, number) = place(range.base);
        let ranges = &mut self.classes[class];
        ranges.free.entry(ranges.groups[number]).or_default().push(number as u64);
    }

    /// The group of a key; the root for one that no range has.
    pub fn group(&self, key: u64) -> GroupId {
        let (class, number) = place(key);
        self.classes.get(class).and_then(|ranges| ranges.groups.get(number)).copied().unwrap_or_default()
    }

    /// Puts a range into another group. No list may have entries for its keys.
    pub fn set_group(&mut self, range: KeyRange, group: GroupId) {
        let (class, number) = place(range.base);
        self.classes[class].groups[number] = group;
    }

    /// Puts the ranges of a group that no file has into another one. No list may have entries for
    /// their keys.
    pub fn hand_on(&mut self, from: GroupId, to: GroupId) {
        for ranges in &mut self.classes {
            let numbers = ranges.free.remove(&from).unwrap_or_default();
            numbers.iter().for_each(|number| ranges.groups[*number as usize] = to);
            ranges.free.entry(to).or_default().extend(numbers);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_files_lie_side_by_side_and_the_largest_has_a_place() {
        let mut space = KeySpace::default();
        let ranges = [1, 1, 3, 4].map(|pages| space.take(pages, GroupId::ROOT).expect("a range"));
        assert_eq!(ranges[1].base - ranges[0].base, PAGE);
        assert_eq!((ranges[2].pages(), ranges[3].base - ranges[2].base), (4, 4 * PAGE));
        assert_eq!((ranges[2].key(3), ranges[2].key(4)), (Some(ranges[2].base + 3 * PAGE), None));
        let largest = space.take(1 << LARGEST, GroupId::ROOT).expect("a range");
        assert_eq!(largest.keys().end - largest.keys().start, 64 << 40);
        let too_large = [(1 << LARGEST) + 1, u64::MAX].map(|pages| space.take(pages, GroupId::ROOT));
        assert_eq!(too_large, [None, None]);
    }

    /// Lists of a group may have stale entries for the keys of a range that was given back.
    #[test]
    fn a_range_that_was_given_back_stays_in_its_group_until_it_is_handed_on() {
        let (mut space, group) = (KeySpace::default(), GroupId::new(3));
        let range = space.take(8, group).expect("a range");
        let keys = [range.base, range.keys().end - PAGE].map(|key| space.group(key));
        assert_eq!((keys, space.group(range.keys().end)), ([group; 2], GroupId::ROOT));
        space.give_back(range);
        let other = space.take(8, GroupId::ROOT).expect("a range");
        assert_ne!(other, range);
        assert_eq!(space.take(8, group), Some(range));
        space.give_back(range);
        space.hand_on(group, GroupId::ROOT);
        assert_eq!((space.take(8, GroupId::ROOT), space.group(range.base)), (Some(range), GroupId::ROOT));
        space.set_group(range, group);
        space.give_back(range);
        assert_eq!(space.take(8, group), Some(range));
    }

    proptest! {
        /// No two ranges in use share a key.
        #[test]
        fn ranges_are_apart(steps in prop::collection::vec((0u64..5000, any::<bool>()), 1..200)) {
            let (mut space, mut used) = (KeySpace::default(), Vec::<KeyRange>::new());
            for (pages, takes) in steps {
                if takes || used.is_empty() {
                    let new = space.take(pages, GroupId::new((pages % 3) as u8)).expect("a range");
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
