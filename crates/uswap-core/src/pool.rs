//! A dense allocator for compressed pages (the idea of the kernel's zsmalloc).
//!
//! ```text
//! backing:  | slab 0 | slab 1 | slab 2 | ...            one reserved range, slabs of 64 KiB
//! slab:     | obj | obj | free | obj | ... | never used all objects of one class, n x 64 bytes each
//! obj:      | length: u16 | bytes ...                    free: | 0xFFFF | next free: u16 | ...
//! ```
//! Free objects of a slab are chained through the slab itself; slab descriptors are 16 bytes. Partly full slabs hang
//! in one of four lists per class by how full they are, and an allocation takes from the fullest, so that thin slabs
//! run empty; [`Pool::pick_thin`] and [`Pool::relocate`] let the owner of the handles empty them on purpose. An empty slab gives its memory back to the system at once, except one spare a class; spares of other
//! classes are taken before the limit refuses an allocation.
//!
//! The limit counts slabs in use, spares included: it is never exceeded, not even by one slab, except after
//! [`Pool::set_limit`] lowered it.

use std::ops::Range;

/// Bytes in a slab, the unit in which memory is taken and given back.
pub const SLAB_SIZE: usize = 64 << 10;
/// Longest object in bytes.
pub const MAX_OBJECT: usize = 4096;

const CLASS_STEP: usize = 64;
const HEADER: usize = 2;
const CLASSES: usize = (MAX_OBJECT + HEADER).div_ceil(CLASS_STEP);
const FULLNESS_GROUPS: usize = 4;
const FREE_MARK: u16 = u16::MAX;
const NONE: u32 = u32::MAX;
const NO_OBJECT: u16 = u16::MAX;
/// A handle is slab << 10 | object: a slab holds at most 1024 objects.
const OBJECT_BITS: u32 = 10;

const _: () = assert!(SLAB_SIZE / CLASS_STEP <= 1 << OBJECT_BITS);
const _: () = assert!(MAX_OBJECT < FREE_MARK as usize);

/// The memory below a [`Pool`]: one range that never moves.
pub trait Backing {
    /// The whole range.
    fn bytes(&self) -> &[u8];
    /// The whole range, to write.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Gives the memory of `range` back to the system. What it held is lost; it may be written again at any time.
    fn release(&mut self, range: Range<usize>);
}

/// Names a live object of a [`Pool`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Handle(u32);

impl Handle {
    /// The handle as a number, for packed tables.
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// The handle whose number is `bits`.
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    fn new(slab: u32, object: u16) -> Self {
        Self(slab << OBJECT_BITS | object as u32)
    }

    fn slab(self) -> u32 {
        self.0 >> OBJECT_BITS
    }

    fn object(self) -> u16 {
        (self.0 & ((1 << OBJECT_BITS) - 1)) as u16
    }
}

#[derive(Clone, Copy)]
struct Slab {
    /// Links of the fullness list.
    prev: u32,
    next: u32,
    /// Live objects.
    used: u16,
    /// Objects handed out at least once since the slab was taken; those above were never touched.
    fresh: u16,
    /// Head of the chain of freed objects.
    free: u16,
    class: u8,
    /// The fullness list it hangs in, or `Unlisted`.
    group: u8,
}

/// `Slab::group` of a full slab, a spare, or one not in use.
const UNLISTED: u8 = u8::MAX;

#[derive(Clone, Copy)]
struct Class {
    groups: [u32; FULLNESS_GROUPS],
    spare: u32,
    /// Slabs that hold objects of the class.
    slabs: u32,
    /// Live objects of the class.
    live: u32,
}

/// The allocator. See the module text for its layout.
pub struct Pool<B> {
    backing: B,
    slabs: Vec<Slab>,
    /// Slabs given back, to be taken again before new ones.
    released: Vec<u32>,
    classes: [Class; CLASSES],
    max_slabs: u32,
    limit_slabs: u32,
    slabs_in_use: u32,
    spares: u32,
    stored_bytes: u64,
    objects: u64,
}

impl<B: Backing> Pool<B> {
    /// A pool over `backing` that uses at most `limit_bytes` of it (rounded down to whole slabs).
    pub fn new(backing: B, limit_bytes: u64) -> Self {
        let max_slabs = (backing.bytes().len() / SLAB_SIZE).min(1 << (32 - OBJECT_BITS)) as u32;
        let mut pool = Self {
            backing,
            slabs: Vec::with_capacity(max_slabs as usize),
            released: Vec::with_capacity(max_slabs as usize),
            classes: [Class { groups: [NONE; FULLNESS_GROUPS], spare: NONE, slabs: 0, live: 0 }; CLASSES],
            max_slabs,
            limit_slabs: 0,
            slabs_in_use: 0,
            spares: 0,
            stored_bytes: 0,
            objects: 0,
        };
        pool.set_limit(limit_bytes);
        pool
    }

    /// Bytes of memory taken: slabs in use and spares, whole.
    pub fn used_bytes(&self) -> u64 {
        self.slabs_in_use as u64 * SLAB_SIZE as u64
    }

    /// Bytes of all live objects together.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Live objects.
    pub fn objects(&self) -> u64 {
        self.objects
    }

    /// The most that [`used_bytes`](Self::used_bytes) may become.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_slabs as u64 * SLAB_SIZE as u64
    }

    /// Changes the limit. What is stored stays; nothing new is taken above it. Spares above it are given back.
    pub fn set_limit(&mut self, limit_bytes: u64) {
        self.limit_slabs = (limit_bytes / SLAB_SIZE as u64).min(self.max_slabs as u64) as u32;
        while self.slabs_in_use > self.limit_slabs && self.drop_a_spare() {}
    }

    /// Gives all spare slabs back.
    pub fn drop_spares(&mut self) {
        while self.drop_a_spare() {}
    }

    /// Stores a copy of `bytes`; `None` when the limit allows no slab for it.
    ///
    /// # Panics
    /// When `bytes` is longer than [`MAX_OBJECT`].
    pub fn alloc(&mut self, bytes: &[u8]) -> Option<Handle> {
        assert!(bytes.len() <= MAX_OBJECT);
        let class = class_of(bytes.len());
        let index = match self.fullest(class) {
            Some(slab) => slab,
            None => self.take_slab(class)?,
        };
        let object = self.take_object(index);
        let start = self.start_of(index, object);
        let place = &mut self.backing.bytes_mut()[start..start + HEADER + bytes.len()];
        place[..HEADER].copy_from_slice(&(bytes.len() as u16).to_ne_bytes());
        place[HEADER..].copy_from_slice(bytes);
        self.stored_bytes += bytes.len() as u64;
        self.objects += 1;
        Some(Handle::new(index, object))
    }

    /// The bytes of a live object.
    ///
    /// # Panics
    /// When `handle` names no live object.
    pub fn read(&self, handle: Handle) -> &[u8] {
        let start = self.start_of(handle.slab(), handle.object());
        let length = self.u16_at(start);
        assert!(length != FREE_MARK, "object {handle:?} is not live");
        &self.backing.bytes()[start + HEADER..start + HEADER + length as usize]
    }

    /// Ends the life of an object.
    ///
    /// # Panics
    /// When `handle` names no live object.
    pub fn free(&mut self, handle: Handle) {
        let (index, object) = (handle.slab(), handle.object());
        self.stored_bytes -= self.read(handle).len() as u64;
        self.objects -= 1;
        let start = self.start_of(index, object);
        let next = self.slabs[index as usize].free;
        self.set_u16_at(start, FREE_MARK);
        self.set_u16_at(start + 2, next);
        let slab = &mut self.slabs[index as usize];
        slab.free = object;
        slab.used -= 1;
        let (used, class) = (slab.used, &mut self.classes[slab.class as usize]);
        class.live -= 1;
        class.slabs -= (used == 0) as u32;
        match used {
            0 => self.retire(index),
            _ => self.regroup(index),
        }
    }

    /// Picks the thinnest slab of some class whose objects all fit into the holes of its other slabs, and appends the
    /// handles of its live objects to `handles`; false when there is none. Classes take turns, from `turn` on.
    pub fn pick_thin(&self, turn: usize, handles: &mut Vec<Handle>) -> bool {
        let classes = (0..CLASSES).map(|i| (i + turn) % CLASSES);
        let Some(index) = classes.filter_map(|class| self.thinnest(class)).next() else { return false };
        let slab = self.slabs[index as usize];
        let objects = (0..slab.fresh).filter(|&o| self.u16_at(self.start_of(index, o)) != FREE_MARK);
        handles.extend(objects.map(|object| Handle::new(index, object)));
        true
    }

    /// Moves a live object into the fullest other slab of its class that has a hole, and returns its new name.
    pub fn relocate(&mut self, handle: Handle) -> Option<Handle> {
        let old = handle.slab();
        let class = self.slabs[old as usize].class as usize;
        let groups = self.classes[class].groups;
        let mut slabs = groups.iter().rev().flat_map(|&head| [head, self.next_of(head)]);
        let index = slabs.find(|&i| i != NONE && i != old)?;
        let from = self.start_of(old, handle.object());
        let length = HEADER + self.read(handle).len();
        let object = self.take_object(index);
        let to = self.start_of(index, object);
        self.backing.bytes_mut().copy_within(from..from + length, to);
        self.stored_bytes += (length - HEADER) as u64;
        self.objects += 1;
        self.free(handle);
        Some(Handle::new(index, object))
    }

    fn thinnest(&self, class: usize) -> Option<u32> {
        let Class { groups, slabs, live, .. } = self.classes[class];
        let holes = slabs as usize * capacity_of(class) - live as usize;
        let thin = groups.into_iter().find(|&head| head != NONE)?;
        (slabs > 1 && holes >= capacity_of(class)).then_some(thin)
    }

    fn next_of(&self, slab: u32) -> u32 {
        if slab == NONE { NONE } else { self.slabs[slab as usize].next }
    }

    /// The slab to allocate from: the spare counts as the thinnest.
    fn fullest(&mut self, class: usize) -> Option<u32> {
        let class = &mut self.classes[class];
        let listed = class.groups.iter().rev().copied().find(|&head| head != NONE);
        listed.or_else(|| {
            let spare = std::mem::replace(&mut class.spare, NONE);
            (spare != NONE).then(|| {
                self.spares -= 1;
                spare
            })
        })
    }

    fn take_slab(&mut self, class: usize) -> Option<u32> {
        if self.slabs_in_use >= self.limit_slabs && !(self.slabs_in_use == self.limit_slabs && self.drop_a_spare()) {
            return None;
        }
        let slab =
            Slab { prev: NONE, next: NONE, used: 0, fresh: 0, free: NO_OBJECT, class: class as u8, group: UNLISTED };
        let index = match self.released.pop() {
            Some(index) => {
                self.slabs[index as usize] = slab;
                index
            }
            None => {
                self.slabs.push(slab);
                self.slabs.len() as u32 - 1
            }
        };
        self.slabs_in_use += 1;
        Some(index)
    }

    fn take_object(&mut self, index: u32) -> u16 {
        let slab = self.slabs[index as usize];
        let object = match slab.free {
            NO_OBJECT => {
                self.slabs[index as usize].fresh += 1;
                slab.fresh
            }
            object => {
                self.slabs[index as usize].free = self.u16_at(self.start_of(index, object) + 2);
                object
            }
        };
        self.slabs[index as usize].used += 1;
        let class = &mut self.classes[slab.class as usize];
        class.live += 1;
        class.slabs += (slab.used == 0) as u32;
        self.regroup(index);
        object
    }

    /// An empty slab: kept when the class has no spare and the limit allows it, else given back.
    fn retire(&mut self, index: u32) {
        self.unlist(index);
        let class = self.slabs[index as usize].class as usize;
        if self.classes[class].spare == NONE && self.slabs_in_use <= self.limit_slabs {
            self.classes[class].spare = index;
            self.spares += 1;
        } else {
            self.give_back(index);
        }
    }

    fn give_back(&mut self, index: u32) {
        let start = index as usize * SLAB_SIZE;
        self.backing.release(start..start + SLAB_SIZE);
        self.released.push(index);
        self.slabs_in_use -= 1;
    }

    fn drop_a_spare(&mut self) -> bool {
        if self.spares == 0 {
            return false;
        }
        let class = self.classes.iter_mut().find(|c| c.spare != NONE).expect("a spare is counted");
        let index = std::mem::replace(&mut class.spare, NONE);
        self.spares -= 1;
        self.give_back(index);
        true
    }

    /// Hangs the slab into the list that fits its use.
    fn regroup(&mut self, index: u32) {
        let slab = self.slabs[index as usize];
        let capacity = capacity_of(slab.class as usize);
        let group = match slab.used as usize {
            used if used == capacity => UNLISTED,
            used => (used * FULLNESS_GROUPS / capacity) as u8,
        };
        if group != slab.group {
            self.unlist(index);
            self.list(index, group);
        }
    }

    fn list(&mut self, index: u32, group: u8) {
        self.slabs[index as usize].group = group;
        if group == UNLISTED {
            return;
        }
        let class = self.slabs[index as usize].class as usize;
        let head = std::mem::replace(&mut self.classes[class].groups[group as usize], index);
        self.slabs[index as usize].next = head;
        self.slabs[index as usize].prev = NONE;
        if head != NONE {
            self.slabs[head as usize].prev = index;
        }
    }

    fn unlist(&mut self, index: u32) {
        let slab = self.slabs[index as usize];
        if slab.group == UNLISTED {
            return;
        }
        match slab.prev {
            NONE => self.classes[slab.class as usize].groups[slab.group as usize] = slab.next,
            prev => self.slabs[prev as usize].next = slab.next,
        }
        if slab.next != NONE {
            self.slabs[slab.next as usize].prev = slab.prev;
        }
        self.slabs[index as usize].group = UNLISTED;
    }

    fn start_of(&self, index: u32, object: u16) -> usize {
        let slab = &self.slabs[index as usize];
        debug_assert!(object < slab.fresh, "object {object} of slab {index} was never handed out");
        index as usize * SLAB_SIZE + object as usize * size_of_class(slab.class as usize)
    }

    fn u16_at(&self, at: usize) -> u16 {
        let bytes = &self.backing.bytes()[at..at + 2];
        u16::from_ne_bytes([bytes[0], bytes[1]])
    }

    fn set_u16_at(&mut self, at: usize, value: u16) {
        self.backing.bytes_mut()[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    }
}

fn class_of(length: usize) -> usize {
    (length + HEADER).div_ceil(CLASS_STEP) - 1
}

const fn size_of_class(class: usize) -> usize {
    (class + 1) * CLASS_STEP
}

const fn capacity_of(class: usize) -> usize {
    SLAB_SIZE / size_of_class(class)
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
