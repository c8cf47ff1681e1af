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

use uswap_core::{Handle, PageHash};

const CHUNK: usize = 1024;
const NONE: u32 = u32::MAX;

/// Where the copy of an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The entry is not in use.
    Vacant { next: u32 },
    /// One word repeated, in two halves (keeps the entry aligned to 4 bytes).
    Filled { high: u32, low: u32 },
    /// Compressed in the pool. `writing`: writeback has copied it and waits for the device.
    Pool { handle: Handle, referenced: bool, writing: bool },
    /// On a device, `length` bytes from the start of the slot; 4096 = not compressed.
    Device { device: u8, length: u16, slot: u32 },
    /// Given up.
    Gone,
}

impl Place {
    pub fn filled(word: u64) -> Self {
        Self::Filled { high: (word >> 32) as u32, low: word as u32 }
    }

    pub fn pool(handle: Handle) -> Self {
        Self::Pool { handle, referenced: false, writing: false }
    }
}

/// The lists of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum List {
    Lru,
    PoolCached,
    DeviceCached,
    None,
}

/// One object. `refs` counts all references, `cached` those of them that are cached.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    hash: [u32; 4],
    pub refs: u32,
    pub cached: u32,
    prev: u32,
    next: u32,
    pub place: Place,
    list: List,
}

const _: () = assert!(size_of::<Entry>() <= 48);

impl Entry {
    const VACANT: Self = Self {
        hash: [0; 4],
        refs: 0,
        cached: 0,
        prev: NONE,
        next: NONE,
        place: Place::Vacant { next: NONE },
        list: List::None,
    };

    pub fn hash(&self) -> PageHash {
        let [a, b, c, d] = self.hash.map(u128::from);
        PageHash(a << 96 | b << 64 | c << 32 | d)
    }

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
    chunks: Vec<Box<[Entry; CHUNK]>>,
    vacant: u32,
    lists: [Ends; 3],
}

impl Shard {
    pub fn new() -> Self {
        Self { chunks: Vec::new(), vacant: NONE, lists: [Ends { head: NONE, tail: NONE }; 3] }
    }

    /// Memory of the entries.
    pub fn bytes(&self) -> u64 {
        (self.chunks.len() * CHUNK * size_of::<Entry>()) as u64
    }

    /// A new object with one authoritative reference; its index is below `limit`.
    pub fn insert(&mut self, hash: PageHash, place: Place, limit: u32) -> Option<u32> {
        if self.vacant == NONE {
            self.grow(limit)?;
        }
        let index = self.vacant;
        let Place::Vacant { next } = self.entry(index).place else { unreachable!("the chain links vacant entries") };
        self.vacant = next;
        let h = hash.0;
        let hash = [(h >> 96) as u32, (h >> 64) as u32, (h >> 32) as u32, h as u32];
        *self.at(index) = Entry { hash, refs: 1, place, ..Entry::VACANT };
        self.relink(index);
        Some(index)
    }

    fn grow(&mut self, limit: u32) -> Option<()> {
        let first = (self.chunks.len() * CHUNK) as u32;
        if first + CHUNK as u32 > limit {
            return None;
        }
        let chunk: Box<[Entry]> = vec![Entry::VACANT; CHUNK].into_boxed_slice();
        self.chunks.push(chunk.try_into().unwrap_or_else(|_| unreachable!("the length is CHUNK")));
        for index in (first..first + CHUNK as u32).rev() {
            self.at(index).place = Place::Vacant { next: self.vacant };
            self.vacant = index;
        }
        Some(())
    }

    /// The entry at `index`, which must be in use.
    pub fn entry(&self, index: u32) -> &Entry {
        &self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    fn at(&mut self, index: u32) -> &mut Entry {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    /// Objects whose copy lies on `device`, among the entries from `from` on: at most `most` of them, from at most
    /// `looks` entries. Returns where to go on, `None` at the end.
    pub fn on_device(&self, device: u8, from: u32, most: usize, looks: u32, found: &mut Vec<u32>) -> Option<u32> {
        let end = (self.chunks.len() * CHUNK) as u32;
        for index in from..end.min(from + looks) {
            if matches!(self.entry(index).place, Place::Device { device: its, .. } if its == device) {
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
        self.at(index).place = place;
        self.relink(index);
    }

    /// Notes that the object was loaded: it gets a second chance at the tail of the LRU.
    pub fn set_referenced(&mut self, index: u32) {
        if let Place::Pool { referenced, .. } = &mut self.at(index).place {
            *referenced = true;
        }
    }

    /// Adds to the counts of references and of cached ones. When no reference is left the entry becomes vacant and
    /// the copy is returned to be freed, except during a write: then the writer finds `refs == 0` and does it.
    #[must_use]
    pub fn add_refs(&mut self, index: u32, refs: i32, cached: i32) -> Option<Place> {
        let entry = self.at(index);
        debug_assert!(
            entry.refs > 0 && !matches!(entry.place, Place::Vacant { .. }),
            "object {index} has no reference"
        );
        entry.refs = entry.refs.checked_add_signed(refs).expect("a reference was released too often");
        entry.cached = entry.cached.checked_add_signed(cached).expect("a cached reference was released too often");
        debug_assert!(entry.cached <= entry.refs, "object {index}: an authoritative reference was released too often");
        if entry.refs == 0 && !matches!(entry.place, Place::Pool { writing: true, .. }) {
            return Some(self.vacate(index));
        }
        self.relink(index);
        None
    }

    /// Ends the object and returns its copy.
    pub fn vacate(&mut self, index: u32) -> Place {
        self.unlink(index);
        let vacant = Place::Vacant { next: self.vacant };
        let place = std::mem::replace(&mut self.at(index).place, vacant);
        self.vacant = index;
        place
    }

    /// The object at the tail of `list`.
    pub fn tail(&self, list: List) -> Option<u32> {
        Some(self.lists[list as usize].tail).filter(|&i| i != NONE)
    }

    /// Moves an object to the head of the list it hangs in.
    pub fn move_to_head(&mut self, index: u32) {
        let list = self.entry(index).list;
        self.unlink(index);
        self.link(index, list);
    }

    fn relink(&mut self, index: u32) {
        let (now, home) = (self.entry(index).list, self.entry(index).home());
        if now != home {
            self.unlink(index);
            self.link(index, home);
        }
    }

    fn link(&mut self, index: u32, list: List) {
        self.at(index).list = list;
        if list == List::None {
            return;
        }
        let head = std::mem::replace(&mut self.lists[list as usize].head, index);
        let entry = self.at(index);
        (entry.prev, entry.next) = (NONE, head);
        match head {
            NONE => self.lists[list as usize].tail = index,
            head => self.at(head).prev = index,
        }
    }

    fn unlink(&mut self, index: u32) {
        let Entry { prev, next, list, .. } = *self.entry(index);
        if list == List::None {
            return;
        }
        match prev {
            NONE => self.lists[list as usize].head = next,
            prev => self.at(prev).next = next,
        }
        match next {
            NONE => self.lists[list as usize].tail = prev,
            next => self.at(next).prev = prev,
        }
        self.at(index).list = List::None;
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(shard.entry(all[5]).hash(), PageHash(7 << 100));
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
}
