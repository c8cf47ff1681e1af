//! A dense allocator for compressed pages (the idea of the kernel's zsmalloc).
//!
//! ```text
//! class:    | slab | slab | slab | ...                objects of nearly one size, and a lock of its own
//! slab:     | obj | obj | free | obj | ... | never used    64 KiB, cut into n equal places
//! obj:      | length: u16 | bytes ...                 free: | 0xFFFF | next free: u16 | ...
//! ```
//! The classes are the sizes that divide a slab into a whole number of places, so that no slab has
//! a remainder, as far as two sizes are at least [`MIN_STEP`] apart. No object has a page of its
//! own, and none lies in two slabs.
//!
//! Freed places of a slab are chained through the slab itself. A slab with room is in one of four
//! lists of its class, by how full it is. A new object goes into the fullest slab, so that the
//! emptiest slabs run empty. An empty slab goes back to the system at once.
//!
//! **Compaction** ([`Allocator::pick_thin`], [`Allocator::relocate`]) goes in two steps. As long as
//! the holes of the other slabs can take all objects of the thinnest (emptiest) slab, that slab is
//! emptied into them. The one slab that is left with holes is then cut: objects from its end move
//! into its lowest holes, and the pages behind them go back. So in the end a class wastes only part
//! of a page.
//!
//! **Locks.** Each class has a lock, and a thread holds only one of them at a time. So threads wait
//! for one another only when they store, load or free objects of nearly the same size at the same
//! moment. All threads fill the same slabs: sharing them costs nothing here, and separate slabs for
//! each thread would leave a thin slab for each size and thread. The class is part of a handle, so
//! a handle tells which lock protects its object.
//!
//! **Charging.** A slab is charged for the pages from its beginning up to the last place that was
//! ever used, so a slab that has just been begun costs one page. A new slab is begun only when all
//! others of the class are full.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::supply::{PoolPiece, Supply};
use super::{AllocError, Allocator, HEADER, Handle, MAX_OBJECT, Usage, length_at, set_length_at, write_object};
use crate::PAGE_SIZE;
use crate::util::rank::{RankedMutex, ranks};

/// Bytes in a slab.
pub const SLAB_SIZE: usize = 64 << 10;
/// Sizes of classes are at least this many bytes apart: finer classes would waste more in thin
/// slabs than they save.
const MIN_STEP: usize = 16;
/// Size of the smallest class.
const MIN_SIZE: usize = 48;
const FULLNESS_GROUPS: usize = 4;
const FREE_MARK: u16 = u16::MAX;
const NONE: u32 = u32::MAX;
const NO_OBJECT: u16 = u16::MAX;
/// A handle is class | slab of the class | object: the fewer objects a slab has, the more slabs can
/// be named.
const CLASS_BITS: u32 = 7;
const PLACE_BITS: u32 = 32 - CLASS_BITS;
/// The most objects that a slab can hold.
const MAX_OBJECTS: usize = SLAB_SIZE / MIN_SIZE;

const _: () = assert!(MAX_OBJECT < FREE_MARK as usize);
const _: () = assert!(MAX_OBJECTS < NO_OBJECT as usize);

/// The sizes of the classes, largest first, and their number.
const SIZES: ([u16; 1 << CLASS_BITS], usize) = {
    let (mut sizes, mut count, mut objects) = ([0; 1 << CLASS_BITS], 0, SLAB_SIZE / (HEADER + MAX_OBJECT));
    while objects <= MAX_OBJECTS {
        let size = SLAB_SIZE / objects;
        if count == 0 || sizes[count - 1] as usize - size >= MIN_STEP {
            sizes[count] = size as u16;
            count += 1;
        }
        objects += 1;
    }
    (sizes, count)
};
const CLASSES: usize = SIZES.1;

/// The smallest class for an object with its header.
const CLASS_OF: [u8; HEADER + MAX_OBJECT + 1] = {
    let (mut classes, mut left, mut class) = ([0; HEADER + MAX_OBJECT + 1], HEADER + MAX_OBJECT + 1, 0);
    while left > 0 {
        left -= 1;
        while class + 1 < CLASSES && SIZES.0[class + 1] as usize >= left {
            class += 1;
        }
        classes[left] = class as u8;
    }
    classes
};

const fn size_of_class(class: usize) -> usize {
    SIZES.0[class] as usize
}

const fn capacity_of(class: usize) -> usize {
    SLAB_SIZE / size_of_class(class)
}

/// Bits of a handle for the object.
const fn object_bits(class: usize) -> u32 {
    usize::BITS - (capacity_of(class) - 1).leading_zeros()
}

/// Pages that `objects` places of a class reach into.
const fn pages_of(class: usize, objects: u16) -> u32 {
    (objects as usize * size_of_class(class)).div_ceil(PAGE_SIZE) as u32
}

struct Slab<P> {
    /// `None`: the entry has no slab and can be used again.
    memory: Option<P>,
    /// Links of the fullness list; `next` also of vacant ones.
    prev: u32,
    next: u32,
    /// Live objects.
    used: u16,
    /// Places handed out at least once since the slab was begun; the places above were never
    /// touched.
    fresh: u16,
    /// Head of the chain of freed places.
    free: u16,
    /// The fullness list that the slab is in, or `UNLISTED`.
    group: u8,
}

/// `Slab::group` of a full slab, or of none.
const UNLISTED: u8 = u8::MAX;

impl<P: PoolPiece> Slab<P> {
    fn bytes(&self) -> &[u8] {
        self.memory.as_ref().expect("a handle names a slab").bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().expect("a handle names a slab").bytes_mut()
    }
}

/// The slabs of one class.
struct Class<P> {
    number: usize,
    slabs: Vec<Slab<P>>,
    vacant: u32,
    groups: [u32; FULLNESS_GROUPS],
    /// Slabs that hold objects.
    slabs_in_use: u32,
    /// Live objects, freed places, bytes of live objects.
    live: u64,
    holes: u64,
    stored_bytes: u64,
}

/// The allocator. See the module text for its layout.
pub struct Slabs<P> {
    supply: Supply<P>,
    compacted_pages: AtomicU64,
    classes: Box<[RankedMutex<Class<P>>]>,
}

/// A slab that has run empty, and the pages charged for it.
type Emptied<P> = Option<(P, u32)>;

impl<P: PoolPiece> Slabs<P> {
    /// Number of classes. Each can have one slab that is begun and not full, so the supply needs
    /// this many pieces more than the limit's bytes: then the limit is reached before the pieces
    /// run out.
    pub const CLASSES: usize = CLASSES;

    /// An allocator on pieces of [`SLAB_SIZE`].
    ///
    /// # Panics
    /// When the pieces have another size.
    pub fn new(supply: Supply<P>) -> Self {
        let class = |number| RankedMutex::new(ranks::POOL, Class::new(number));
        Self { supply, compacted_pages: AtomicU64::new(0), classes: (0..CLASSES).map(class).collect() }
    }

    fn class(&self, handle: Handle) -> &RankedMutex<Class<P>> {
        &self.classes[(handle.0 >> PLACE_BITS) as usize]
    }

    fn settle(&self, emptied: Emptied<P>) {
        if let Some((piece, pages)) = emptied {
            self.supply.take_back(piece, pages);
        }
    }
}

impl<P: PoolPiece> Allocator for Slabs<P> {
    fn name(&self) -> &'static str {
        "slab"
    }

    fn alloc(&self, bytes: &[u8]) -> Result<Handle, AllocError> {
        let class = CLASS_OF[HEADER + bytes.len()] as usize;
        self.classes[class].lock().alloc(&self.supply, bytes)
    }

    fn read(&self, handle: Handle, see: &mut dyn FnMut(&[u8])) {
        let class = self.class(handle).lock();
        see(class.read(handle));
    }

    fn free(&self, handle: Handle) {
        let emptied = self.class(handle).lock().free(handle);
        self.settle(emptied);
    }

    fn pick_thin(&self, turn: usize, see: &mut dyn FnMut(Handle, &[u8])) -> bool {
        (0..CLASSES).any(|i| {
            let mut class = self.classes[(i + turn) % CLASSES].lock();
            let thinnest = class.thinnest();
            if let Some(index) = thinnest {
                class.show(index, 0, see);
            }
            thinnest.is_some() || class.show_end(&self.supply, &self.compacted_pages, see)
        })
    }

    fn relocate(&self, handle: Handle) -> Option<Handle> {
        let (handle, emptied) = self.class(handle).lock().relocate(&self.supply, &self.compacted_pages, handle)?;
        self.compacted_pages.fetch_add(emptied.as_ref().map_or(0, |(_, pages)| u64::from(*pages)), Relaxed);
        self.settle(emptied);
        Some(handle)
    }

    fn set_limit(&self, bytes: u64) {
        self.supply.set_limit(bytes);
    }

    fn used_bytes(&self) -> u64 {
        self.supply.used_bytes()
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for class in &self.classes {
            let class = class.lock();
            usage.objects += class.live;
            usage.stored_bytes += class.stored_bytes;
            usage.hole_bytes += class.holes * size_of_class(class.number) as u64;
        }
        usage.compacted_pages = self.compacted_pages.load(Relaxed);
        usage.used_bytes = self.supply.used_bytes();
        usage.used_max_bytes = self.supply.used_max_bytes();
        usage.limit_bytes = self.supply.limit_bytes();
        usage
    }
}

impl<P: PoolPiece> Class<P> {
    fn new(number: usize) -> Self {
        let groups = [NONE; FULLNESS_GROUPS];
        Self { number, slabs: Vec::new(), vacant: NONE, groups, slabs_in_use: 0, live: 0, holes: 0, stored_bytes: 0 }
    }

    fn handle(&self, slab: u32, object: u16) -> Handle {
        Handle((self.number as u32) << PLACE_BITS | slab << object_bits(self.number) | u32::from(object))
    }

    fn split(&self, handle: Handle) -> (u32, u16) {
        let bits = object_bits(self.number);
        let place = handle.0 & ((1 << PLACE_BITS) - 1);
        (place >> bits, (place & ((1 << bits) - 1)) as u16)
    }

    fn alloc(&mut self, supply: &Supply<P>, bytes: &[u8]) -> Result<Handle, AllocError> {
        let (index, object) = self.take_place(supply, NONE)?;
        let start = self.start_of(object);
        write_object(self.slabs[index as usize].bytes_mut(), start, bytes);
        self.stored_bytes += bytes.len() as u64;
        Ok(self.handle(index, object))
    }

    fn read(&self, handle: Handle) -> &[u8] {
        let (index, object) = self.split(handle);
        let (slab, start) = (&self.slabs[index as usize], self.start_of(object));
        let length = length_at(slab.bytes(), start);
        assert!(object < slab.fresh && length != FREE_MARK, "object {handle:?} is not live");
        &slab.bytes()[start + HEADER..start + HEADER + length as usize]
    }

    fn free(&mut self, handle: Handle) -> Emptied<P> {
        self.stored_bytes -= self.read(handle).len() as u64;
        let (index, object) = self.split(handle);
        let start = self.start_of(object);
        let slab = &mut self.slabs[index as usize];
        let next = std::mem::replace(&mut slab.free, object);
        set_length_at(slab.bytes_mut(), start, FREE_MARK);
        set_length_at(slab.bytes_mut(), start + HEADER, next);
        slab.used -= 1;
        let used = slab.used;
        self.live -= 1;
        self.holes += 1;
        if used > 0 {
            self.regroup(index);
            return None;
        }
        self.retire(index)
    }

    /// Removes an empty slab.
    fn retire(&mut self, index: u32) -> Emptied<P> {
        self.unlist(index);
        let slab = &mut self.slabs[index as usize];
        let fresh = std::mem::replace(&mut slab.fresh, 0);
        let memory = slab.memory.take().expect("a slab with objects has memory");
        slab.next = std::mem::replace(&mut self.vacant, index);
        self.holes -= u64::from(fresh);
        self.slabs_in_use -= 1;
        Some((memory, pages_of(self.number, fresh)))
    }

    /// The thinnest slab, if the holes of the others can take all its objects.
    fn thinnest(&self) -> Option<u32> {
        let index = self.groups.into_iter().find(|head| *head != NONE)?;
        let slab = &self.slabs[index as usize];
        let elsewhere = self.holes - u64::from(slab.fresh - slab.used);
        (self.slabs_in_use > 1 && u64::from(slab.used) <= elsewhere).then_some(index)
    }

    /// Calls `see` with the objects of a slab from place `from` on, the last first; returns their
    /// number.
    fn show(&self, index: u32, from: u16, see: &mut dyn FnMut(Handle, &[u8])) -> u32 {
        let slab = &self.slabs[index as usize];
        let live = (from..slab.fresh).rev().filter(|object| !self.is_free(slab, *object));
        live.map(|object| see(self.handle(index, object), self.read(self.handle(index, object)))).count() as u32
    }

    fn is_free(&self, slab: &Slab<P>, object: u16) -> bool {
        length_at(slab.bytes(), self.start_of(object)) == FREE_MARK
    }

    /// Calls `see` with the objects at the end of a slab if it would need fewer pages with these
    /// objects in its holes; returns whether there are any. If only holes lie at the end they are
    /// cut off at once.
    fn show_end(&mut self, supply: &Supply<P>, compacted: &AtomicU64, see: &mut dyn FnMut(Handle, &[u8])) -> bool {
        let heads = self.groups;
        heads.into_iter().filter(|head| *head != NONE).any(|index| {
            let slab = &self.slabs[index as usize];
            let (used, fresh) = (slab.used, slab.fresh);
            if pages_of(self.number, used) == pages_of(self.number, fresh) {
                return false;
            }
            let shown = self.show(index, used, see);
            if shown == 0 {
                compacted.fetch_add(self.cut(supply, index).into(), Relaxed);
            }
            shown > 0
        })
    }

    /// Gives back the pages behind the last object of a slab, and chains the holes before it, the
    /// lowest first. Returns the number of pages.
    fn cut(&mut self, supply: &Supply<P>, index: u32) -> u32 {
        let mut slab = &self.slabs[index as usize];
        let (before, mut next) = (slab.fresh, NO_OBJECT);
        let end = (0..before).rev().find(|object| !self.is_free(slab, *object)).map_or(0, |last| last + 1);
        for object in (0..end).rev() {
            if self.is_free(slab, object) {
                let at = self.start_of(object) + HEADER;
                set_length_at(self.slabs[index as usize].bytes_mut(), at, next);
                slab = &self.slabs[index as usize];
                next = object;
            }
        }
        let slab = &mut self.slabs[index as usize];
        (slab.free, slab.fresh) = (next, end);
        self.holes -= u64::from(before - end);
        let pages = pages_of(self.number, end)..pages_of(self.number, before);
        let memory = slab.memory.as_mut().expect("a slab with objects has memory");
        memory.release(pages.start as usize * PAGE_SIZE..pages.end as usize * PAGE_SIZE);
        supply.uncharge(pages.len() as u32);
        pages.len() as u32
    }

    /// Moves an object into another slab, or if none has room, to the lowest hole of its own slab.
    fn relocate(&mut self, supply: &Supply<P>, compacted: &AtomicU64, handle: Handle) -> Option<(Handle, Emptied<P>)> {
        let mut copy = [0; MAX_OBJECT];
        let length = self.read(handle).len();
        copy[..length].copy_from_slice(self.read(handle));
        let (old, old_object) = self.split(handle);
        let (index, object) = match self.take_place(supply, old) {
            Ok(place) => place,
            Err(_) => {
                compacted.fetch_add(self.cut(supply, old).into(), Relaxed);
                if self.slabs[old as usize].free >= old_object {
                    return None;
                }
                (old, self.take_place_of(old))
            }
        };
        let start = self.start_of(object);
        write_object(self.slabs[index as usize].bytes_mut(), start, &copy[..length]);
        self.stored_bytes += length as u64;
        let emptied = self.free(handle);
        if index == old {
            compacted.fetch_add(self.cut(supply, old).into(), Relaxed);
        }
        Some((self.handle(index, object), emptied))
    }

    /// A place in the fullest slab except `not_in`; in a new slab only if no slab is excluded.
    fn take_place(&mut self, supply: &Supply<P>, not_in: u32) -> Result<(u32, u16), AllocError> {
        let mut any = false;
        for group in (0..FULLNESS_GROUPS).rev() {
            let mut index = self.groups[group];
            // One slab may be excluded, and another may have no hole, only never used places that
            // the limit does not allow. Few slabs have such places: the one begun last, and those
            // that were cut.
            for _ in 0..3 {
                if index == NONE {
                    break;
                }
                any = true;
                if index != not_in && self.reaches(supply, index) {
                    return Ok((index, self.take_place_of(index)));
                }
                index = self.slabs[index as usize].next;
            }
        }
        if any || not_in != NONE {
            return Err(AllocError::Limit);
        }
        let index = self.begin_slab(supply)?;
        Ok((index, self.take_place_of(index)))
    }

    /// Whether the next place of a slab may be used: one that was freed, or one that was never used
    /// and is charged now.
    fn reaches(&self, supply: &Supply<P>, index: u32) -> bool {
        let slab = &self.slabs[index as usize];
        let pages = pages_of(self.number, slab.fresh + 1) - pages_of(self.number, slab.fresh);
        slab.free != NO_OBJECT || pages == 0 || supply.charge(pages)
    }

    fn begin_slab(&mut self, supply: &Supply<P>) -> Result<u32, AllocError> {
        let index = if self.vacant == NONE { self.slabs.len() as u32 } else { self.vacant };
        if index >> (PLACE_BITS - object_bits(self.number)) != 0 {
            return Err(AllocError::NoMemory);
        }
        let pages = pages_of(self.number, 1);
        if !supply.charge(pages) {
            return Err(AllocError::Limit);
        }
        let Some(memory) = supply.lend() else {
            supply.uncharge(pages);
            return Err(AllocError::NoMemory);
        };
        assert_eq!(memory.bytes().len(), SLAB_SIZE, "slabs are made of pieces of their size");
        let slab =
            Slab { memory: Some(memory), prev: NONE, next: NONE, used: 0, fresh: 0, free: NO_OBJECT, group: UNLISTED };
        if self.vacant == NONE {
            self.slabs.push(slab);
        } else {
            self.vacant = std::mem::replace(&mut self.slabs[index as usize], slab).next;
        }
        self.slabs_in_use += 1;
        Ok(index)
    }

    /// Takes the next place of a slab, which is charged already.
    fn take_place_of(&mut self, index: u32) -> u16 {
        let slab = &self.slabs[index as usize];
        let object = match slab.free {
            NO_OBJECT => {
                let object = slab.fresh;
                self.slabs[index as usize].fresh += 1;
                object
            }
            object => {
                let next = length_at(slab.bytes(), self.start_of(object) + HEADER);
                self.slabs[index as usize].free = next;
                self.holes -= 1;
                object
            }
        };
        self.slabs[index as usize].used += 1;
        self.live += 1;
        self.regroup(index);
        object
    }

    /// Puts the slab into the list that fits its fullness.
    fn regroup(&mut self, index: u32) {
        let (slab, capacity) = (&self.slabs[index as usize], capacity_of(self.number));
        let (used, old) = (slab.used as usize, slab.group);
        let group = if used == capacity { UNLISTED } else { (used * FULLNESS_GROUPS / capacity) as u8 };
        if group != old {
            self.unlist(index);
            self.list(index, group);
        }
    }

    fn list(&mut self, index: u32, group: u8) {
        self.slabs[index as usize].group = group;
        if group == UNLISTED {
            return;
        }
        let head = std::mem::replace(&mut self.groups[group as usize], index);
        self.slabs[index as usize].next = head;
        self.slabs[index as usize].prev = NONE;
        if head != NONE {
            self.slabs[head as usize].prev = index;
        }
    }

    fn unlist(&mut self, index: u32) {
        let slab = &self.slabs[index as usize];
        let (prev, next, group) = (slab.prev, slab.next, slab.group);
        if group == UNLISTED {
            return;
        }
        match prev {
            NONE => self.groups[group as usize] = next,
            prev => self.slabs[prev as usize].next = next,
        }
        if next != NONE {
            self.slabs[next as usize].prev = prev;
        }
        self.slabs[index as usize].group = UNLISTED;
    }

    fn start_of(&self, object: u16) -> usize {
        object as usize * size_of_class(self.number)
    }
}
