//! The entries of a shard's objects, and the lists that say in which order their copies may go.
//!
//! Entries lie in chunks that never move, so that growing never copies under the lock. An entry with a copy hangs in
//! at most one list, chosen by its state alone (`Entry::home`):
//!
//! | copy | all references cached | list |
//! |---|---|---|
//! | pool | no | `Lru`: next for writeback at its tail |
//! | pool | yes | `PoolCached`: may be given up |
//! | device | yes | `DeviceCached`: may be given up |
//! | any other, or being written back | | none |
//!
//! The list is not stored: who changes a state says where the object hung before. Counts of references that do not fit
//! into an entry lie in a map beside (`crowded`), which is empty but for pages that hundreds of forks share.

use std::collections::HashMap;

use uswap_core::PageHash;

pub(crate) use crate::entry::Place;
use crate::entry::{Counts, NO_LINK, OVERFLOW, Packed};

const CHUNK: usize = 256;
const NONE: u32 = NO_LINK;

/// The lists of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum List {
    Lru,
    PoolCached,
    DeviceCached,
    None,
}

/// What is known of one object. `refs` counts all references, `cached` those of them that are cached.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub hash: PageHash,
    pub refs: u64,
    pub cached: u64,
    pub place: Place,
}

impl Entry {
    pub fn all_cached(&self) -> bool {
        self.refs > 0 && self.refs == self.cached
    }

    fn home(&self) -> List {
        match self.place {
            Place::Pool { writing: false, .. } if self.all_cached() => List::PoolCached,
            Place::Pool { writing: false, .. } => List::Lru,
            Place::Device { .. } if self.all_cached() => List::DeviceCached,
            _ => List::None,
        }
    }
}

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
}

/// The objects of one shard, by index.
pub(crate) struct Shard {
    chunks: Vec<Box<[Packed; CHUNK]>>,
    vacant: u32,
    lists: [Ends; 3],
    /// Counts of the objects that have too many references for their entry.
    crowded: HashMap<u32, Counts>,
}

impl Shard {
    pub fn new() -> Self {
        let lists = [Ends { head: NONE, tail: NONE }; 3];
        Self { chunks: Vec::new(), vacant: NONE, lists, crowded: HashMap::new() }
    }

    /// Memory of the entries, and of the counts beside.
    pub fn bytes(&self) -> u64 {
        let beside = self.crowded.capacity() * size_of::<(u32, Counts)>();
        (self.chunks.len() * CHUNK * size_of::<Packed>() + beside) as u64
    }

    /// A new object with one authoritative reference; its index is below `limit`.
    pub fn insert(&mut self, hash: PageHash, place: Place, limit: u32) -> Option<u32> {
        if self.vacant == NONE {
            self.grow(limit)?;
        }
        let index = self.vacant;
        let Place::Vacant { next } = self.at(index).place() else { unreachable!("the chain links vacant entries") };
        self.vacant = next;
        *self.at(index) = Packed::new(hash, place);
        self.set_counts(index, Counts { refs: 1, cached: 0 });
        self.link(index, self.entry(index).home());
        Some(index)
    }

    fn grow(&mut self, limit: u32) -> Option<()> {
        let first = (self.chunks.len() * CHUNK) as u32;
        if first + CHUNK as u32 > limit.min(NONE) {
            return None;
        }
        let chunk: Box<[Packed]> = vec![Packed::VACANT; CHUNK].into_boxed_slice();
        self.chunks.push(chunk.try_into().unwrap_or_else(|_| unreachable!("the length is CHUNK")));
        for index in (first..first + CHUNK as u32).rev() {
            let next = self.vacant;
            self.at(index).set_place(Place::Vacant { next });
            self.vacant = index;
        }
        Some(())
    }

    /// What is known of the object at `index`.
    pub fn entry(&self, index: u32) -> Entry {
        let packed = self.packed(index);
        let Counts { refs, cached } = match packed.counts() {
            Counts { refs: OVERFLOW, .. } => self.crowded[&index],
            counts => counts,
        };
        Entry { hash: packed.hash(), refs, cached, place: packed.place() }
    }

    fn packed(&self, index: u32) -> &Packed {
        &self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    fn at(&mut self, index: u32) -> &mut Packed {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    fn set_counts(&mut self, index: u32, counts: Counts) {
        if self.packed(index).counts().refs == OVERFLOW && counts.refs < OVERFLOW {
            self.crowded.remove(&index);
        }
        if counts.refs < OVERFLOW {
            self.at(index).set_counts(counts);
        } else {
            self.crowded.insert(index, counts);
            self.at(index).set_counts(Counts { refs: OVERFLOW, cached: 0 });
        }
    }

    /// Objects whose copy lies on `device`, among the entries from `from` on: at most `most` of them, from at most
    /// `looks` entries. Returns where to go on, `None` at the end.
    pub fn on_device(&self, device: u8, from: u32, most: usize, looks: u32, found: &mut Vec<u32>) -> Option<u32> {
        let end = (self.chunks.len() * CHUNK) as u32;
        for index in from..end.min(from + looks) {
            if matches!(self.packed(index).place(), Place::Device { device: its, .. } if its == device) {
                found.push(index);
                if found.len() == most {
                    return Some(index + 1);
                }
            }
        }
        Some(from + looks).filter(|next| *next < end)
    }

    /// Changes the copy of an object and hangs it where it belongs now.
    pub fn set_place(&mut self, index: u32, place: Place) {
        let entry = self.entry(index);
        let (old, new) = (entry.home(), Entry { place, ..entry }.home());
        if old == new {
            return self.at(index).set_place(place);
        }
        self.unlink(index, old);
        self.at(index).set_place(place);
        self.link(index, new);
    }

    /// Notes that the object was loaded: it gets a second chance at the tail of the LRU.
    pub fn set_referenced(&mut self, index: u32) {
        if let Place::Pool { handle, writing, .. } = self.packed(index).place() {
            self.at(index).set_place(Place::Pool { handle, writing, referenced: true });
        }
    }

    /// Adds to the counts of references and of cached ones. When no reference is left the entry becomes vacant and
    /// the copy is returned to be freed, except during a write: then the writer finds `refs == 0` and does it.
    #[must_use]
    pub fn add_refs(&mut self, index: u32, refs: i64, cached: i64) -> Option<Place> {
        let entry = self.entry(index);
        debug_assert!(
            entry.refs > 0 && !matches!(entry.place, Place::Vacant { .. }),
            "object {index} has no reference"
        );
        let refs = entry.refs.checked_add_signed(refs).expect("a reference was released too often");
        let cached = entry.cached.checked_add_signed(cached).expect("a cached reference was released too often");
        debug_assert!(cached <= refs, "object {index}: an authoritative reference was released too often");
        if refs == 0 && !matches!(entry.place, Place::Pool { writing: true, .. }) {
            return Some(self.vacate(index));
        }
        self.set_counts(index, Counts { refs, cached });
        let (old, new) = (entry.home(), Entry { refs, cached, ..entry }.home());
        if old != new {
            self.unlink(index, old);
            self.link(index, new);
        }
        None
    }

    /// Ends the object and returns its copy.
    pub fn vacate(&mut self, index: u32) -> Place {
        let entry = self.entry(index);
        self.unlink(index, entry.home());
        self.set_counts(index, Counts { refs: 0, cached: 0 });
        let next = std::mem::replace(&mut self.vacant, index);
        self.at(index).set_place(Place::Vacant { next });
        entry.place
    }

    /// The object at the tail of `list`.
    pub fn tail(&self, list: List) -> Option<u32> {
        Some(self.lists[list as usize].tail).filter(|&i| i != NONE)
    }

    /// Moves an object to the head of the list it hangs in.
    pub fn move_to_head(&mut self, index: u32) {
        let list = self.entry(index).home();
        self.unlink(index, list);
        self.link(index, list);
    }

    fn link(&mut self, index: u32, list: List) {
        if list == List::None {
            return;
        }
        let head = std::mem::replace(&mut self.lists[list as usize].head, index);
        let entry = self.at(index);
        entry.set_prev(NONE);
        entry.set_next(head);
        match head {
            NONE => self.lists[list as usize].tail = index,
            head => self.at(head).set_prev(index),
        }
    }

    fn unlink(&mut self, index: u32, list: List) {
        if list == List::None {
            return;
        }
        let (prev, next) = (self.packed(index).prev(), self.packed(index).next());
        match prev {
            NONE => self.lists[list as usize].head = next,
            prev => self.at(prev).set_next(next),
        }
        match next {
            NONE => self.lists[list as usize].tail = prev,
            next => self.at(next).set_prev(prev),
        }
    }
}

#[cfg(test)]
mod tests {
    use uswap_core::Handle;

    use super::*;

    fn pool(n: u32) -> Place {
        Place::pool(Handle::from_bits(n))
    }

    #[test]
    fn lists_follow_the_state() {
        let mut shard = Shard::new();
        let ids: Vec<u32> = (0..3).map(|i| shard.insert(PageHash(i as u128), pool(i), 1024).unwrap()).collect();
        assert_eq!(shard.tail(List::Lru), Some(ids[0]));
        shard.move_to_head(ids[0]);
        assert_eq!(shard.tail(List::Lru), Some(ids[1]));
        assert_eq!(shard.add_refs(ids[1], 1, 1), None);
        assert_eq!(shard.tail(List::PoolCached), None, "one reference is authoritative");
        assert_eq!(shard.add_refs(ids[1], 0, 1), None);
        assert_eq!((shard.tail(List::Lru), shard.tail(List::PoolCached)), (Some(ids[2]), Some(ids[1])));
        shard.set_place(ids[1], Place::Device { device: 0, length: 9, slot: 1 });
        assert_eq!((shard.tail(List::PoolCached), shard.tail(List::DeviceCached)), (None, Some(ids[1])));
        shard.set_place(ids[1], Place::Gone);
        assert_eq!(shard.tail(List::DeviceCached), None);
        assert_eq!(shard.add_refs(ids[1], -1, -1), None);
        assert_eq!(shard.add_refs(ids[1], -1, -1), Some(Place::Gone));
    }

    #[test]
    fn indexes_are_used_again_only_after_the_last_reference_and_bounded() {
        let mut shard = Shard::new();
        let all: Vec<u32> = std::iter::from_fn(|| shard.insert(PageHash(7 << 100), pool(1), 2048)).collect();
        assert_eq!(all.len(), 2048);
        assert_eq!(shard.entry(all[5]).hash, PageHash(7 << 100));
        assert_eq!(shard.add_refs(all[9], -1, 0), Some(pool(1)));
        assert_eq!(shard.insert(PageHash(1), pool(2), 2048), Some(all[9]));
    }

    #[test]
    fn freed_during_a_write_stays_for_the_writer() {
        let mut shard = Shard::new();
        let writing = Place::Pool { handle: Handle::from_bits(1), referenced: false, writing: true };
        let id = shard.insert(PageHash(0), pool(1), 1024).unwrap();
        shard.set_place(id, writing);
        assert_eq!(shard.tail(List::Lru), None);
        assert_eq!(shard.add_refs(id, -1, 0), None);
        assert_eq!(shard.entry(id).refs, 0);
        assert_eq!(shard.vacate(id), writing);
    }

    /// More references than an entry can count: by turns in the entry and beside, with no trace in the end.
    #[test]
    fn counts_overflow_into_the_map_and_come_back() {
        let mut shard = Shard::new();
        let ids: Vec<u32> = (0..3).map(|i| shard.insert(PageHash(i as u128), pool(i), 1024).unwrap()).collect();
        let (crowded, other) = (ids[1], ids[2]);
        for refs in 2..=1000 {
            assert_eq!(shard.add_refs(crowded, 1, 0), None);
            assert_eq!((shard.entry(crowded).refs, shard.entry(other).refs), (refs, 1));
        }
        assert_eq!(shard.crowded.len(), 1);
        for cached in 1..=1000 {
            assert_eq!(shard.tail(List::PoolCached), None);
            assert_eq!(shard.add_refs(crowded, 0, 1), None);
            assert_eq!(shard.entry(crowded).cached, cached);
        }
        assert_eq!(shard.tail(List::PoolCached), Some(crowded), "all are cached");
        shard.set_place(crowded, Place::Device { device: 1, length: 7, slot: 9 });
        assert_eq!((shard.tail(List::DeviceCached), shard.entry(crowded).refs), (Some(crowded), 1000));
        for refs in (1..1000).rev() {
            assert_eq!(shard.add_refs(crowded, -1, -1), None);
            assert_eq!((shard.entry(crowded).refs, shard.entry(crowded).cached), (refs, refs));
            assert_eq!(shard.crowded.len(), usize::from(refs >= OVERFLOW), "{refs}");
        }
        assert_eq!(shard.entry(crowded).place, Place::Device { device: 1, length: 7, slot: 9 });
        let freed = shard.add_refs(crowded, -1, -1);
        assert_eq!(freed, Some(Place::Device { device: 1, length: 7, slot: 9 }));
        assert_eq!((shard.tail(List::DeviceCached), shard.insert(PageHash(9), pool(9), 1024)), (None, Some(crowded)));
        assert_eq!(shard.entry(crowded).refs, 1);
    }

    #[test]
    fn more_references_than_32_bits_are_counted() {
        let mut shard = Shard::new();
        let id = shard.insert(PageHash(0), pool(1), 1024).unwrap();
        assert_eq!(shard.add_refs(id, 1 << 32, 1 << 31), None);
        assert_eq!((shard.entry(id).refs, shard.entry(id).cached), ((1 << 32) + 1, 1 << 31));
        assert_eq!(shard.add_refs(id, -(1 << 32), -(1 << 31)), None);
        assert_eq!((shard.entry(id).refs, shard.entry(id).cached, shard.crowded.len()), (1, 0, 0));
        assert_eq!(shard.add_refs(id, -1, 0), Some(pool(1)));
    }

    #[test]
    fn an_object_that_ends_while_it_is_crowded_leaves_nothing_beside() {
        let mut shard = Shard::new();
        let id = shard.insert(PageHash(0), pool(1), 1024).unwrap();
        assert_eq!(shard.add_refs(id, 300, 0), None);
        assert_eq!(shard.vacate(id), pool(1));
        assert_eq!((shard.insert(PageHash(1), pool(2), 1024), shard.crowded.len()), (Some(id), 0));
        assert_eq!(shard.entry(id).refs, 1);
    }
}
