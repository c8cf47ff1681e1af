//! Draining: everything leaves a device while programs run (`swapoff`).
//!
//! The device takes no more pages. Each object on it is read, verified and put into the pool if it is compressed and
//! there is room, else on another device; copies that are only cached are given up. Then its entry is changed, if it
//! still names the slot that was read: a slot freed meanwhile cannot have been given to another object, because nothing
//! is allocated here. A reader that looked the object up before reads the old slot, whose bytes stay; once the device
//! has been closed it looks again and finds the new place.
//!
//! What cannot be read stays where it is: the device can then not be closed, and its other pages are safe.

use uswap_core::{PAGE_SIZE, PageBuf, PageHash};
use uswap_device::Device;
use uswap_sys::AlignedBuf;

use crate::codec::{MAX_COMPRESSED, TAG};
use crate::config::ObjectId;
use crate::devices::{Spot, WriteLists};
use crate::store::Store;
use crate::table::Place;

/// Objects of one step.
const BATCH: usize = 64;
/// Entries looked at per lock of a shard.
const LOOKS: u32 = 8192;

/// Why a device is not drained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DrainRefusal {
    /// There is no device of that name; these are there.
    Unknown(Vec<String>),
    /// It is being drained already.
    Busy,
    /// So many pages lie on it, and the others have room for fewer.
    NoRoom {
        /// Pages on the device.
        pages: u64,
        /// Pages that pool and other devices could take.
        room: u64,
    },
}

/// What one step did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DrainReport {
    /// Pages that lie elsewhere now, were given up, or freed meanwhile.
    pub moved: u32,
    /// Pages that could not be read or were damaged.
    pub unreadable: u32,
    /// Pages that nobody took.
    pub refused: u32,
    /// All objects have been looked at once since the cursor was new or this was said last.
    pub round_done: bool,
}

/// How far a drain has come, and its working memory (256 KiB).
pub struct Drain {
    device: u8,
    shard: usize,
    index: u32,
    found: Vec<u32>,
    pages: Vec<Leaving>,
    io: AlignedBuf,
    spots: Vec<Spot>,
    lists: WriteLists,
}

#[derive(Clone, Copy)]
struct Leaving {
    id: ObjectId,
    slot: u32,
    length: u16,
    hash: PageHash,
}

impl Leaving {
    fn place(&self, device: u8) -> Place {
        Place::Device { device, length: self.length, slot: self.slot }
    }
}

impl Drain {
    /// The device's number.
    pub fn device(&self) -> u8 {
        self.device
    }
}

impl Store {
    /// Adds a device; those of higher priority are used first. `None` when there were too many in the life of the store.
    pub fn add_device(&self, device: Box<dyn Device>, priority: i32) -> Option<u8> {
        let added = self.devices.add(device, priority);
        self.unstall();
        added
    }

    /// Begins to drain the device of this name: it takes no more pages.
    ///
    /// # Errors
    /// [`DrainRefusal`]; then nothing is changed.
    pub fn begin_drain(&self, name: &str) -> Result<Drain, DrainRefusal> {
        let named = self.devices.open().find(|(_, bay)| bay.name == name);
        let Some((device, bay)) = named else {
            return Err(DrainRefusal::Unknown(self.devices.open().map(|(_, bay)| bay.name.clone()).collect()));
        };
        if bay.is_draining() {
            return Err(DrainRefusal::Busy);
        }
        let pages = u64::from(bay.slots_used());
        let others = self.devices.open().filter(|(index, _)| *index != device);
        let free: u64 = others.map(|(_, bay)| u64::from(bay.slots_free())).sum();
        let room = free + self.pool_room() / PAGE_SIZE as u64;
        if pages > room {
            return Err(DrainRefusal::NoRoom { pages, room });
        }
        bay.set_draining(true);
        Ok(Drain {
            device,
            shard: 0,
            index: 0,
            found: Vec::with_capacity(BATCH),
            pages: Vec::with_capacity(BATCH),
            io: AlignedBuf::zeroed(BATCH * PAGE_SIZE),
            spots: Vec::with_capacity(BATCH),
            lists: WriteLists::default(),
        })
    }

    fn pool_room(&self) -> u64 {
        use std::sync::atomic::Ordering::Relaxed;
        self.pool_limit.load(Relaxed).saturating_sub(self.pool_used.load(Relaxed))
    }

    /// Pages that still lie on the device.
    pub fn left_to_drain(&self, drain: &Drain) -> u64 {
        u64::from(self.devices.bay(drain.device).slots_used())
    }

    /// The device is used again.
    pub fn cancel_drain(&self, drain: &Drain) {
        self.devices.bay(drain.device).set_draining(false);
        self.unstall();
    }

    /// Lets the device go; `false` while something still lies on it.
    pub fn end_drain(&self, drain: &Drain) -> bool {
        self.devices.bay(drain.device).close()
    }

    /// Moves some pages. May wait for devices.
    pub fn drain_step(&self, drain: &mut Drain) -> DrainReport {
        let mut report = DrainReport::default();
        self.find_leaving(drain, &mut report);
        if drain.pages.is_empty() {
            return report;
        }
        drain.pages.sort_unstable_by_key(|page| page.slot);
        let slots: Vec<u32> = drain.pages.iter().map(|page| page.slot).collect();
        let read = self.devices.bay(drain.device).read_slots(&slots, &mut drain.io);
        self.move_to_pool(drain, &read, &mut report);
        self.move_to_devices(drain, &mut report);
        report
    }

    /// The next objects on the device. Copies that are only cached are given up on the way.
    fn find_leaving(&self, drain: &mut Drain, report: &mut DrainReport) {
        drain.found.clear();
        drain.pages.clear();
        let mut shard = self.shards[drain.shard].lock();
        let next = shard.on_device(drain.device, drain.index, BATCH, LOOKS, &mut drain.found);
        for index in &drain.found {
            let entry = shard.entry(*index);
            let Place::Device { slot, length, .. } = entry.place else { continue };
            if entry.all_cached() {
                shard.set_place(*index, Place::Gone);
                self.free_copy(Some(entry.place));
                report.moved += 1;
            } else {
                let id = self.join(drain.shard, *index);
                drain.pages.push(Leaving { id, slot, length, hash: entry.hash });
            }
        }
        drop(shard);
        match next {
            Some(next) => drain.index = next,
            None => {
                let next = (drain.shard + 1..self.shards.len()).find(|shard| self.is_in_use(*shard));
                report.round_done = next.is_none();
                (drain.shard, drain.index) = (next.unwrap_or(0), 0);
            }
        }
    }

    /// Verifies what was read. What the pool does not take moves to the front of `pages` and `io`.
    fn move_to_pool(&self, drain: &mut Drain, read: &[bool], report: &mut DrainReport) {
        let mut whole: PageBuf = [0; PAGE_SIZE];
        let mut kept = 0;
        for (i, read) in read.iter().enumerate() {
            let page = drain.pages[i];
            let bytes = &drain.io[i * PAGE_SIZE..][..page.length as usize];
            if !read || !self.expand_whole(bytes, page.hash, &mut whole) {
                report.unreadable += 1;
            } else if let Some(place) = self.place_in_pool(&page, bytes) {
                self.settle_moved(drain.device, &page, place);
                report.moved += 1;
            } else {
                drain.io.copy_within(i * PAGE_SIZE..(i + 1) * PAGE_SIZE, kept * PAGE_SIZE);
                drain.pages[kept] = page;
                kept += 1;
            }
        }
        drain.pages.truncate(kept);
    }

    /// A copy of compressed bytes in the pool, if there is room; of others none.
    fn place_in_pool(&self, page: &Leaving, bytes: &[u8]) -> Option<Place> {
        let mut tagged = [0; TAG + MAX_COMPRESSED];
        let length = TAG + bytes.len();
        if length > tagged.len() {
            return None;
        }
        tagged[..TAG].copy_from_slice(&page.id.to_bits().to_ne_bytes());
        tagged[TAG..length].copy_from_slice(bytes);
        self.with_pool(|pool| pool.alloc(&tagged[..length])).map(Place::pool)
    }

    fn move_to_devices(&self, drain: &mut Drain, report: &mut DrainReport) {
        drain.spots.clear();
        let bytes = drain.pages.len() * PAGE_SIZE;
        self.write_pages(&drain.io[..bytes], &mut drain.spots, &mut drain.lists);
        for (page, (device, slot)) in drain.pages.iter().zip(&drain.spots) {
            let place = Place::Device { device: *device, length: page.length, slot: *slot };
            self.settle_moved(drain.device, page, place);
        }
        report.moved += drain.spots.len() as u32;
        report.refused += (drain.pages.len() - drain.spots.len()) as u32;
    }

    /// The page lies in `new` too. Its entry changes over if it still names the old slot; else the object was freed
    /// meanwhile, or its copy given up.
    fn settle_moved(&self, device: u8, page: &Leaving, new: Place) {
        let (shard, index) = self.split(page.id);
        let mut guard = self.shards[shard].lock();
        let old = page.place(device);
        let same = guard.entry(index).place == old;
        if same {
            guard.set_place(index, new);
        }
        drop(guard);
        self.free_copy(Some(if same { old } else { new }));
    }
}
