//! The entries of a shard's objects, and the order in which their copies may be written or given
//! up.
//!
//! Entries lie in chunks of 64 that never move, so that growing never copies under the lock. An
//! entry with a copy is a member of at most one list, chosen by its state alone
//! (`TableEntry::home`):
//!
//! | copy | all references cached | list |
//! |---|---|---|
//! | pool | no | `Lru`: next for writeback at its tail |
//! | pool | yes | `PoolCached`: may be given up |
//! | device | yes | `DeviceCached`: may be given up |
//! | any other, or being written back | | none |
//!
//! **Order by chunks.** List links for each object would cost as much memory as its place. Objects
//! that are stored one after the other lie in one chunk, from its beginning on, so the order of
//! chunks is the order of objects, except within 64 neighbours. A chunk has a bit for each member
//! of a list, and is in a list as long as it has members there. Writeback goes through the chunk at
//! the tail, skips the objects that were loaded since the last time, takes the rest, and moves the
//! chunk to the head (the CLOCK of Corbato 1968, whose hand moves by chunks). A new object that
//! fills a hole among older ones would be written together with them, so it counts as loaded once.
//!
//! Holes are filled before a new chunk is begun: first the holes of the chunk that is being filled,
//! then those of the chunk that has had one for the longest time. Empty chunks count as holes like
//! others, until [`Shard::trim`] gives them back to the system; their numbers are used again when a
//! chunk is begun, the lowest first. Counts of references that do not fit into an entry lie in a
//! separate map (`crowded`), which is empty except for pages that many forks share.

use std::collections::HashMap;

use uswap_core::util::growth::{Growth, during};

use crate::device::extent::Extent;
pub(crate) use crate::object::entry::ObjectPlace;
use crate::object::entry::{EntryCounts, OVERFLOW, PackedExtent};

/// Entries of a chunk: each has one bit of a word.
const CHUNK: usize = u64::BITS as usize;
const LEFT: &str = "a chunk in which something is left";
/// No chunk: the end of a list.
const NONE: u32 = u32::MAX;
/// The list of chunks that have holes, without the chunk that is being filled.
const HOLES: usize = 3;

/// The lists of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum EntryList {
    Lru,
    PoolCached,
    DeviceCached,
    None,
}

/// The unpacked entry of one object. `refs` counts all references, `cached` the cached ones.
#[derive(Clone, Copy)]
pub(crate) struct TableEntry {
    /// The checksum of the page ([`uswap_core::PageHash::check`]); of a repeated word it means
    /// nothing.
    pub check: u64,
    pub refs: u64,
    pub cached: u64,
    pub place: ObjectPlace,
}

impl TableEntry {
    pub fn all_cached(&self) -> bool {
        self.refs > 0 && self.refs == self.cached
    }

    fn home(&self) -> EntryList {
        match self.place {
            ObjectPlace::Pool { writing: false, .. } if self.all_cached() => EntryList::PoolCached,
            ObjectPlace::Pool { writing: false, .. } => EntryList::Lru,
            ObjectPlace::Device(_) if self.all_cached() => EntryList::DeviceCached,
            _ => EntryList::None,
        }
    }
}

/// The neighbours of a chunk in a list, or the two ends of a list.
#[derive(Clone, Copy)]
struct Pair {
    prev: u32,
    next: u32,
}

const APART: Pair = Pair { prev: NONE, next: NONE };

struct EntryChunk {
    entries: [PackedExtent; CHUNK],
    /// One bit for each entry that is not in use.
    vacant: u64,
    /// For each list, one bit for each member.
    members: [u64; 3],
    links: [Pair; 4],
}

/// The objects of one shard, by index.
pub(crate) struct Shard {
    /// Chunks by number; `None` for a chunk that became empty and was given back.
    chunks: Vec<Option<Box<EntryChunk>>>,
    /// The number of chunks given back, and a number below which all chunks exist.
    absent: usize,
    lowest_absent: usize,
    /// The ends of each list, and of [`HOLES`]: `next` is the head, `prev` the tail.
    ends: [Pair; 4],
    /// The chunk that is being filled, and whether it had members of the LRU before.
    filling: u32,
    among_older: bool,
    /// The position of writeback: a chunk, and an entry in it.
    hand: (u32, u32),
    /// Counts of the objects that have too many references for their entry.
    crowded: HashMap<u32, EntryCounts>,
}

/// The chunk of an entry, and its bit there.
fn split(index: u32) -> (u32, u64) {
    (index / CHUNK as u32, 1 << (index % CHUNK as u32))
}

impl Shard {
    pub fn new() -> Self {
        Self {
            chunks: Vec::new(),
            absent: 0,
            lowest_absent: 0,
            ends: [APART; 4],
            filling: NONE,
            among_older: false,
            hand: (NONE, 0),
            crowded: HashMap::new(),
        }
    }

    /// Memory of the entries, and of the separate counts, in bytes.
    pub fn bytes(&self) -> u64 {
        let beside = self.crowded.capacity() * size_of::<(u32, EntryCounts)>();
        let pointers = self.chunks.capacity() * size_of::<Option<Box<EntryChunk>>>();
        ((self.chunks.len() - self.absent) * size_of::<EntryChunk>() + pointers + beside) as u64
    }

    /// A new object with one authoritative reference; its index is below `limit`.
    pub fn insert(&mut self, check: u64, place: ObjectPlace, limit: u32) -> Option<u32> {
        if self.filling == NONE || self.chunk(self.filling).vacant == 0 {
            self.fill_another(limit)?;
        }
        let number = self.filling;
        let chunk = self.chunk_mut(number);
        let at = chunk.vacant.trailing_zeros();
        chunk.vacant &= chunk.vacant - 1;
        chunk.entries[at as usize] = PackedExtent::new(check, place);
        let index = number * CHUNK as u32 + at;
        self.set_counts(index, EntryCounts { refs: 1, cached: 0 });
        self.join(index, self.entry(index).home());
        Some(index)
    }

    /// Whether a new object lies among older ones of the LRU.
    pub fn is_among_older(&self) -> bool {
        self.among_older
    }

    fn fill_another(&mut self, limit: u32) -> Option<()> {
        match self.ends[HOLES].prev {
            NONE => self.filling = self.begin_chunk(limit)?,
            oldest => {
                self.unlink(oldest, HOLES);
                self.filling = oldest;
            }
        }
        self.among_older = self.chunk(self.filling).members[EntryList::Lru as usize] != 0;
        Some(())
    }

    /// A new chunk, if its indexes are below `limit`.
    fn begin_chunk(&mut self, limit: u32) -> Option<u32> {
        let number = match self.absent {
            0 => self.chunks.len(),
            _ => (self.lowest_absent..).find(|number| self.chunks[*number].is_none())?,
        };
        if (number + 1) * CHUNK > limit as usize {
            return None;
        }
        let entries = [PackedExtent::VACANT; CHUNK];
        let chunk = EntryChunk { entries, vacant: u64::MAX, members: [0; 3], links: [APART; 4] };
        during(Growth::ObjectTable, || match self.chunks.get_mut(number) {
            Some(place) => *place = Some(Box::new(chunk)),
            None => self.chunks.push(Some(Box::new(chunk))),
        });
        self.absent = self.absent.saturating_sub(1);
        self.lowest_absent = number + 1;
        Some(number as u32)
    }

    /// Gives empty chunks back to the system, but keeps one for each eight that are in use, since
    /// these are needed again as objects come and go. Returns the number of chunks that went.
    pub fn trim(&mut self) -> u32 {
        let is_empty = |chunk: &Option<Box<EntryChunk>>| chunk.as_ref().is_some_and(|chunk| chunk.vacant == u64::MAX);
        let empty = self.chunks.iter().filter(|chunk| is_empty(chunk)).count();
        let in_use = self.chunks.len() - self.absent - empty;
        let surplus = empty.saturating_sub(in_use / 8 + 1);
        let mut ended = 0;
        for number in (0..self.chunks.len()).rev() {
            if ended == surplus {
                break;
            }
            if is_empty(&self.chunks[number]) && number != self.filling as usize {
                self.end_chunk(number as u32);
                ended += 1;
            }
        }
        ended as u32
    }

    /// Gives back an empty chunk.
    fn end_chunk(&mut self, number: u32) {
        debug_assert!(self.chunk(number).members == [0; 3], "chunk {number} has members");
        self.unlink(number, HOLES);
        self.chunks[number as usize] = None;
        self.absent += 1;
        self.lowest_absent = self.lowest_absent.min(number as usize);
        if self.hand.0 == number {
            self.hand = (NONE, 0);
        }
    }

    /// The entry of the object at `index`; it is vacant if the object no longer exists.
    pub fn entry(&self, index: u32) -> TableEntry {
        let packed = self.packed(index);
        let EntryCounts { refs, cached } = match packed.counts() {
            EntryCounts { refs: OVERFLOW, .. } => self.crowded[&index],
            counts => counts,
        };
        TableEntry { check: packed.check(), refs, cached, place: packed.place() }
    }

    fn chunk(&self, number: u32) -> &EntryChunk {
        self.chunks[number as usize].as_deref().expect(LEFT)
    }

    fn chunk_mut(&mut self, number: u32) -> &mut EntryChunk {
        self.chunks[number as usize].as_deref_mut().expect(LEFT)
    }

    fn packed(&self, index: u32) -> &PackedExtent {
        let chunk = self.chunks[index as usize / CHUNK].as_deref();
        chunk.map_or(&PackedExtent::VACANT, |chunk| &chunk.entries[index as usize % CHUNK])
    }

    fn at(&mut self, index: u32) -> &mut PackedExtent {
        &mut self.chunk_mut(index / CHUNK as u32).entries[index as usize % CHUNK]
    }

    fn set_counts(&mut self, index: u32, counts: EntryCounts) {
        if self.packed(index).counts().refs == OVERFLOW && counts.refs < OVERFLOW {
            self.crowded.remove(&index);
        }
        if counts.refs < OVERFLOW {
            self.at(index).set_counts(counts);
        } else {
            during(Growth::ObjectTable, || self.crowded.insert(index, counts));
            self.at(index).set_counts(EntryCounts { refs: OVERFLOW, cached: 0 });
        }
    }

    /// Finds objects whose copy lies on `device` and is `wanted`, among the entries from `from` on:
    /// at most `most` of them, in at most `looks` entries. Returns the index at which to continue,
    /// `None` at the end.
    pub fn on_device(
        &self,
        device: u8,
        from: u32,
        most: usize,
        looks: u32,
        wanted: impl Fn(&Extent) -> bool,
        found: &mut Vec<u32>,
    ) -> Option<u32> {
        let end = (self.chunks.len() * CHUNK) as u32;
        for index in from..end.min(from + looks) {
            if matches!(self.packed(index).place(), ObjectPlace::Device(at) if at.device == device && wanted(&at)) {
                found.push(index);
                if found.len() == most {
                    return Some(index + 1);
                }
            }
        }
        Some(from + looks).filter(|next| *next < end)
    }

    /// Changes the copy of an object, and with it the list that it is in.
    pub fn set_place(&mut self, index: u32, place: ObjectPlace) {
        let entry = self.entry(index);
        let (old, new) = (entry.home(), TableEntry { place, ..entry }.home());
        self.at(index).set_place(place);
        self.change_over(index, old, new);
    }

    /// Notes that the object was loaded: writeback skips it once.
    pub fn set_referenced(&mut self, index: u32) {
        if let ObjectPlace::Pool { handle, writing, .. } = self.packed(index).place() {
            self.at(index).set_place(ObjectPlace::Pool { handle, writing, referenced: true });
        }
    }

    /// Adds to the counts of references and of cached ones. When no reference is left the entry
    /// becomes vacant and the copy is returned to be freed, except during a write: then the writer
    /// finds `refs == 0` and does it.
    #[must_use]
    pub fn add_refs(&mut self, index: u32, refs: i64, cached: i64) -> Option<ObjectPlace> {
        let entry = self.entry(index);
        debug_assert!(entry.refs > 0 && !matches!(entry.place, ObjectPlace::Vacant), "object {index} has no reference");
        let refs = entry.refs.checked_add_signed(refs).expect("a reference was released too often");
        let cached = entry.cached.checked_add_signed(cached).expect("a cached reference was released too often");
        debug_assert!(cached <= refs, "object {index}: an authoritative reference was released too often");
        if refs == 0 && !matches!(entry.place, ObjectPlace::Pool { writing: true, .. }) {
            return Some(self.vacate(index));
        }
        self.set_counts(index, EntryCounts { refs, cached });
        let (old, new) = (entry.home(), TableEntry { refs, cached, ..entry }.home());
        self.change_over(index, old, new);
        None
    }

    /// Ends the object and returns its copy.
    pub fn vacate(&mut self, index: u32) -> ObjectPlace {
        let entry = self.entry(index);
        self.leave(index, entry.home());
        self.set_counts(index, EntryCounts { refs: 0, cached: 0 });
        self.at(index).set_place(ObjectPlace::Vacant);
        let (number, bit) = split(index);
        let vacant = &mut self.chunk_mut(number).vacant;
        let before = std::mem::replace(vacant, *vacant | bit);
        if before == 0 && number != self.filling {
            self.link(number, HOLES);
        }
        entry.place
    }

    /// A member of the chunk at the tail of `list`.
    pub fn tail(&self, list: EntryList) -> Option<u32> {
        let number = self.ends[list as usize].prev;
        (number != NONE).then(|| number * CHUNK as u32 + self.chunk(number).members[list as usize].trailing_zeros())
    }

    /// The next object for writeback: one that was not loaded since writeback last looked at it.
    /// `None` also after `looks` objects that were loaded.
    pub fn next_victim(&mut self, looks: usize) -> Option<u32> {
        let lru = EntryList::Lru as usize;
        let mut looked = 0;
        while looked < looks {
            let number = self.ends[lru].prev;
            if number == NONE {
                return None;
            }
            if self.hand.0 != number {
                self.hand = (number, 0);
            }
            let ahead = u64::MAX.checked_shl(self.hand.1).unwrap_or(0) & self.chunk(number).members[lru];
            if ahead == 0 {
                self.unlink(number, lru);
                self.link(number, lru);
                self.hand = (NONE, 0);
                looked += 1;
                continue;
            }
            let at = ahead.trailing_zeros();
            let index = number * CHUNK as u32 + at;
            match self.packed(index).place() {
                ObjectPlace::Pool { handle, referenced: true, writing } => {
                    self.at(index).set_place(ObjectPlace::Pool { handle, referenced: false, writing });
                    self.hand.1 = at + 1;
                    looked += 1;
                }
                _ => return Some(index),
            }
        }
        None
    }

    fn change_over(&mut self, index: u32, old: EntryList, new: EntryList) {
        if old != new {
            self.leave(index, old);
            self.join(index, new);
        }
    }

    fn join(&mut self, index: u32, list: EntryList) {
        if list == EntryList::None {
            return;
        }
        let (number, bit) = split(index);
        let members = &mut self.chunk_mut(number).members[list as usize];
        let before = std::mem::replace(members, *members | bit);
        if before == 0 {
            self.link(number, list as usize);
        }
    }

    fn leave(&mut self, index: u32, list: EntryList) {
        if list == EntryList::None {
            return;
        }
        let (number, bit) = split(index);
        let members = &mut self.chunk_mut(number).members[list as usize];
        *members &= !bit;
        if *members == 0 {
            self.unlink(number, list as usize);
        }
    }

    /// Puts a chunk at the head of a list.
    fn link(&mut self, number: u32, list: usize) {
        let head = std::mem::replace(&mut self.ends[list].next, number);
        self.chunk_mut(number).links[list] = Pair { prev: NONE, next: head };
        match head {
            NONE => self.ends[list].prev = number,
            head => self.chunk_mut(head).links[list].prev = number,
        }
    }

    fn unlink(&mut self, number: u32, list: usize) {
        let Pair { prev, next } = self.chunk(number).links[list];
        match prev {
            NONE => self.ends[list].next = next,
            prev => self.chunk_mut(prev).links[list].next = next,
        }
        match next {
            NONE => self.ends[list].prev = prev,
            next => self.chunk_mut(next).links[list].prev = prev,
        }
    }
}

#[cfg(test)]
mod tests {
    use uswap_core::Handle;

    use super::*;

    fn pool(n: u32) -> ObjectPlace {
        ObjectPlace::pool(Handle::from_bits(n))
    }

    fn device(slot: u32) -> ObjectPlace {
        ObjectPlace::Device(Extent { device: 1, slot, offset: 37, units: 7 })
    }

    #[test]
    fn lists_follow_the_state() {
        let mut shard = Shard::new();
        let ids: Vec<u32> = (0..3).map(|i| shard.insert(i, pool(i as u32), 1024).unwrap()).collect();
        assert_eq!(shard.tail(EntryList::Lru), Some(ids[0]));
        assert_eq!(shard.add_refs(ids[1], 1, 1), None);
        assert_eq!(shard.tail(EntryList::PoolCached), None, "one reference is authoritative");
        assert_eq!(shard.add_refs(ids[1], 0, 1), None);
        assert_eq!((shard.tail(EntryList::Lru), shard.tail(EntryList::PoolCached)), (Some(ids[0]), Some(ids[1])));
        shard.set_place(ids[1], device(1));
        assert_eq!((shard.tail(EntryList::PoolCached), shard.tail(EntryList::DeviceCached)), (None, Some(ids[1])));
        shard.set_place(ids[1], ObjectPlace::Gone);
        assert_eq!(shard.tail(EntryList::DeviceCached), None);
        assert_eq!(shard.add_refs(ids[1], -1, -1), None);
        assert_eq!(shard.add_refs(ids[1], -1, -1), Some(ObjectPlace::Gone));
    }

    fn take(shard: &mut Shard) -> Option<u32> {
        let index = shard.next_victim(1000)?;
        shard.set_place(index, device(index));
        Some(index)
    }

    /// The object stored first goes first. An object that was loaded meanwhile goes after all that
    /// existed when it was skipped.
    #[test]
    fn writeback_passes_by_what_was_loaded_and_comes_back_to_it() {
        let mut shard = Shard::new();
        let ids: Vec<u32> = (0..200).map(|i| shard.insert(i, pool(i as u32), 1024).unwrap()).collect();
        let loaded = [ids[0], ids[7], ids[63], ids[64], ids[199]];
        loaded.iter().for_each(|id| shard.set_referenced(*id));
        let order: Vec<u32> = std::iter::from_fn(|| take(&mut shard)).collect();
        let others = ids.iter().copied().filter(|id| !loaded.contains(id));
        assert_eq!(order, others.chain(loaded).collect::<Vec<_>>());
        assert!(shard.next_victim(1000).is_none());
    }

    /// All objects were loaded: the search ends after the given number of looks, and the next
    /// search finds them.
    #[test]
    fn looks_are_bounded() {
        let mut shard = Shard::new();
        let ids: Vec<u32> = (0..100).map(|i| shard.insert(i, pool(i as u32), 1024).unwrap()).collect();
        ids.iter().for_each(|id| shard.set_referenced(*id));
        assert_eq!((shard.next_victim(60), shard.next_victim(41)), (None, None));
        assert_eq!(shard.next_victim(2), Some(ids[0]));
    }

    /// Holes are filled before the table grows, and a new object among older ones does not go with
    /// them.
    #[test]
    fn holes_among_older_objects_are_filled_first() {
        let mut shard = Shard::new();
        let ids: Vec<u32> = (0..192).map(|i| shard.insert(i, pool(i as u32), 1024).unwrap()).collect();
        for id in [ids[70], ids[5], ids[6]] {
            assert_eq!(shard.add_refs(id, -1, 0), Some(pool(id)));
        }
        let bytes = shard.bytes();
        let fresh = |shard: &mut Shard| {
            let index = shard.insert(9, ObjectPlace::Gone, 1024).unwrap();
            let referenced = shard.is_among_older();
            shard.set_place(index, ObjectPlace::Pool { handle: Handle::from_bits(9), referenced, writing: false });
            index
        };
        assert_eq!([(); 3].map(|()| fresh(&mut shard)), [ids[70], ids[5], ids[6]]);
        assert_eq!(shard.bytes(), bytes, "nothing grew");
        let order: Vec<u32> = std::iter::from_fn(|| take(&mut shard)).collect();
        assert_eq!(order.len(), 192);
        assert_eq!(order[189..], [ids[5], ids[6], ids[70]], "the new ones go last");
        shard.insert(1, pool(1), 1024).unwrap();
        assert!(!shard.is_among_older() && shard.bytes() > bytes);
    }

    #[test]
    fn indexes_are_used_again_only_after_the_last_reference_and_bounded() {
        let mut shard = Shard::new();
        let all: Vec<u32> = std::iter::from_fn(|| shard.insert(7, pool(1), 2048)).collect();
        assert_eq!(all.len(), 2048);
        assert_eq!(shard.entry(all[5]).check, 7);
        assert_eq!(shard.add_refs(all[9], -1, 0), Some(pool(1)));
        assert_eq!(shard.insert(1, pool(2), 2048), Some(all[9]));
    }

    /// Chunks that a peak needed go back, except the chunk that is being filled; their numbers are
    /// used again.
    #[test]
    fn chunks_in_which_nothing_is_left_go_back() {
        let mut shard = Shard::new();
        let ids: Vec<u32> = (0..64 * 100).map(|i| shard.insert(i, pool(i as u32), 6400).unwrap()).collect();
        let peak = shard.bytes();
        let keep = |id: &u32| matches!(*id, 700 | 3000);
        for id in ids.iter().filter(|id| !keep(id)) {
            assert_eq!(shard.add_refs(*id, -1, 0), Some(pool(*id)));
        }
        assert_eq!((shard.bytes(), shard.trim()), (peak, 97), "two have an object each, one is being filled");
        assert_eq!((shard.absent, shard.trim()), (97, 0));
        assert!(shard.bytes() * 12 < peak, "{} of {peak} bytes", shard.bytes());
        assert_eq!((shard.entry(700).place, shard.entry(3000).refs), (pool(700), 1));
        assert_eq!(
            (shard.entry(6000).place, shard.entry(6000).refs),
            (ObjectPlace::Vacant, 0),
            "who comes late finds nothing"
        );
        let mut found = Vec::new();
        shard.set_place(3000, device(5));
        assert_eq!(shard.on_device(1, 0, 9, u32::MAX, |_| true, &mut found), None);
        assert_eq!((found, shard.next_victim(9)), (vec![3000], Some(700)));
        // All indexes come back, each once, and no more than there were.
        let mut again: Vec<u32> = std::iter::from_fn(|| shard.insert(7, pool(1), 6400)).chain([700, 3000]).collect();
        again.sort_unstable();
        assert_eq!((again, shard.bytes(), shard.absent), (ids, peak, 0));
    }

    /// The chunk at the position of writeback is given back and begun again.
    #[test]
    fn the_hand_does_not_stay_in_a_chunk_that_went() {
        let mut shard = Shard::new();
        let ids: Vec<u32> = (0..256).map(|i| shard.insert(i, pool(i as u32), 1024).unwrap()).collect();
        shard.set_referenced(ids[0]);
        assert_eq!(shard.next_victim(9), Some(ids[1]));
        ids[..192].iter().for_each(|id| assert_eq!(shard.add_refs(*id, -1, 0), Some(pool(*id))));
        let hand = shard.hand;
        shard.end_chunk(0);
        assert_eq!((hand.0, shard.hand.0, shard.trim()), (0, NONE, 1));
        let again: Vec<u32> = (0..192).map(|i| shard.insert(i, pool(i as u32), 1024).unwrap()).collect();
        assert_eq!(shard.absent, 0);
        ids[192..].iter().for_each(|id| shard.set_place(*id, ObjectPlace::Gone));
        assert_eq!(shard.next_victim(9), Some(again[0]));
        assert_eq!(std::iter::from_fn(|| take(&mut shard)).count(), 192, "each is found");
    }

    #[test]
    fn freed_during_a_write_stays_for_the_writer() {
        let mut shard = Shard::new();
        let writing = ObjectPlace::Pool { handle: Handle::from_bits(1), referenced: false, writing: true };
        let id = shard.insert(0, pool(1), 1024).unwrap();
        shard.set_place(id, writing);
        assert_eq!(shard.tail(EntryList::Lru), None);
        assert_eq!(shard.add_refs(id, -1, 0), None);
        assert_eq!(shard.entry(id).refs, 0);
        assert_eq!(shard.vacate(id), writing);
    }

    /// More references than an entry can count: the counts move between the entry and the separate
    /// map, which is empty in the end.
    #[test]
    fn counts_overflow_into_the_map_and_come_back() {
        let mut shard = Shard::new();
        let ids: Vec<u32> = (0..3).map(|i| shard.insert(i, pool(i as u32), 1024).unwrap()).collect();
        let (crowded, other) = (ids[1], ids[2]);
        for refs in 2..=1000 {
            assert_eq!(shard.add_refs(crowded, 1, 0), None);
            assert_eq!((shard.entry(crowded).refs, shard.entry(other).refs), (refs, 1));
        }
        assert_eq!(shard.crowded.len(), 1);
        for cached in 1..=1000 {
            assert_eq!(shard.tail(EntryList::PoolCached), None);
            assert_eq!(shard.add_refs(crowded, 0, 1), None);
            assert_eq!(shard.entry(crowded).cached, cached);
        }
        assert_eq!(shard.tail(EntryList::PoolCached), Some(crowded), "all are cached");
        shard.set_place(crowded, device(9));
        assert_eq!((shard.tail(EntryList::DeviceCached), shard.entry(crowded).refs), (Some(crowded), 1000));
        for refs in (1..1000).rev() {
            assert_eq!(shard.add_refs(crowded, -1, -1), None);
            assert_eq!((shard.entry(crowded).refs, shard.entry(crowded).cached), (refs, refs));
            assert_eq!(shard.crowded.len(), usize::from(refs >= OVERFLOW), "{refs}");
        }
        assert_eq!(shard.entry(crowded).place, device(9));
        let freed = shard.add_refs(crowded, -1, -1);
        assert_eq!(freed, Some(device(9)));
        assert_eq!((shard.tail(EntryList::DeviceCached), shard.insert(9, pool(9), 1024)), (None, Some(crowded)));
        assert_eq!(shard.entry(crowded).refs, 1);
    }

    #[test]
    fn more_references_than_32_bits_are_counted() {
        let mut shard = Shard::new();
        let id = shard.insert(0, pool(1), 1024).unwrap();
        assert_eq!(shard.add_refs(id, 1 << 32, 1 << 31), None);
        assert_eq!((shard.entry(id).refs, shard.entry(id).cached), ((1 << 32) + 1, 1 << 31));
        assert_eq!(shard.add_refs(id, -(1 << 32), -(1 << 31)), None);
        assert_eq!((shard.entry(id).refs, shard.entry(id).cached, shard.crowded.len()), (1, 0, 0));
        assert_eq!(shard.add_refs(id, -1, 0), Some(pool(1)));
    }

    #[test]
    fn an_object_that_ends_while_it_is_crowded_leaves_nothing_beside() {
        let mut shard = Shard::new();
        let id = shard.insert(0, pool(1), 1024).unwrap();
        assert_eq!(shard.add_refs(id, 300, 0), None);
        assert_eq!(shard.vacate(id), pool(1));
        assert_eq!((shard.insert(1, pool(2), 1024), shard.crowded.len()), (Some(id), 0));
        assert_eq!(shard.entry(id).refs, 1);
    }
}
