//! Draining: moves all objects off a device while programs run (`swapoff`).
//!
//! The device takes no more pages: none is written to it, and a page that is evicted again does not
//! reuse its copy there. Each object on it, packed or not, is put into the pool if it is compressed
//! and there is room, else on another device ([`crate::background::relocate`]); copies that are
//! only cached are given up. Objects that neither has room for are not read here but left to the
//! spaces that own the pages: when these bring the pages back into memory, the objects lose their
//! last reference. After the device was closed, a reader that looked an object up before looks
//! again and finds the new place.
//!
//! **Room** is checked beforehand ([`DrainRoom`]). A page that does not compress cannot go to the
//! pool; a compressed page takes a whole page when it is brought back into memory; and a page that
//! several processes have takes a page for each of them.
//!
//! An object that cannot be read stays where it is: then the device cannot be closed, and its other
//! pages are safe.

use uswap_core::PAGE_SIZE;
use uswap_device::{Device, News};

use crate::background::relocate::Mover;
use crate::device::extent::{Extent, SLOT_UNITS, UNIT};
use crate::object::table::ObjectPlace;
use crate::store::Store;

/// Why a device is not drained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DrainRefusal {
    /// There is no device of that name; the devices have these names.
    Unknown(Vec<String>),
    /// It is being drained already.
    Busy,
    /// The objects on it do not fit elsewhere.
    NoRoom {
        /// Pages that the objects take on the device.
        slots: u64,
        /// Pages that they would take in memory.
        pages: u64,
        /// The room that there is.
        room: DrainRoom,
    },
}

/// The room for the objects of a device, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DrainRoom {
    /// Compressed objects that the pool takes.
    pub pool: u64,
    /// Slots of other devices.
    pub devices: u64,
    /// Pages that can come back into the memory of the programs, besides the memory of the pool.
    pub memory: u64,
}

/// The objects on a device, without copies that are only cached.
#[derive(Clone, Copy, Default)]
struct Holdings {
    /// Pages that are not compressed.
    whole: u64,
    /// Units of the compressed objects.
    units: u64,
    /// Pages in memory, if all came back: one for each reference.
    pages: u64,
}

impl Holdings {
    fn compressed(&self) -> u64 {
        self.units.div_ceil(SLOT_UNITS as u64)
    }

    fn slots(&self) -> u64 {
        self.whole + self.compressed()
    }

    /// Whether all objects can leave: to the pool as many as it takes, then to other devices, and
    /// the rest as pages into memory.
    fn fits(&self, room: &DrainRoom) -> bool {
        let left = self.slots().saturating_sub(room.pool + room.devices);
        left == 0 || (self.pages * left).div_ceil(self.slots()) <= room.memory
    }
}

/// The result of one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DrainReport {
    /// Pages that lie elsewhere now, were given up, or freed meanwhile.
    pub moved: u32,
    /// Pages that could not be read or were damaged.
    pub unreadable: u32,
    /// Pages that neither the pool nor a device took.
    pub refused: u32,
    /// All objects have been looked at once since the start or since this was last true.
    pub round_done: bool,
}

/// Entries that are looked at each time a shard is locked.
const LOOKS: u32 = 8192;

/// The progress of a drain, and its working memory.
pub struct Drain {
    device: u8,
    mover: Mover,
}

impl Drain {
    /// The device's number.
    pub fn device(&self) -> u8 {
        self.device
    }
}

impl Store {
    /// Adds a device; those of higher priority are used first. `None` when there were too many in
    /// the life of the store.
    pub fn add_device(&self, device: Box<dyn Device>, priority: i32) -> Option<u8> {
        let added = self.devices.add(device, priority);
        self.unstall();
        added
    }

    /// Calls `tell` with the news of the devices.
    pub fn device_news(&self, tell: impl FnMut(News)) {
        self.devices.news(tell);
    }

    /// Begins to drain the device of this name: it takes no more pages. `memory` is the number of
    /// pages that could come back into memory, pool and programs together.
    ///
    /// # Errors
    /// [`DrainRefusal`]; then nothing is changed.
    pub fn begin_drain(&self, name: &str, memory: u64) -> Result<Drain, DrainRefusal> {
        let named = self.devices.open().find(|(_, bay)| &*bay.name == name);
        let Some((device, bay)) = named else {
            return Err(DrainRefusal::Unknown(self.devices.open().map(|(_, bay)| bay.name.to_string()).collect()));
        };
        if bay.is_draining() {
            return Err(DrainRefusal::Busy);
        }
        let holdings = self.holdings(device);
        let room = self.room_beside(device, &holdings, memory);
        if !holdings.fits(&room) {
            return Err(DrainRefusal::NoRoom { slots: holdings.slots(), pages: holdings.pages, room });
        }
        bay.set_draining(true);
        Ok(Drain { device, mover: Mover::new() })
    }

    fn room_beside(&self, device: u8, holdings: &Holdings, memory: u64) -> DrainRoom {
        let others = self.devices.open().filter(|(index, _)| *index != device);
        let devices = others.map(|(_, bay)| u64::from(bay.slots_free())).sum();
        let pool = holdings.compressed().min(self.pool_room() / PAGE_SIZE as u64);
        DrainRoom { pool, devices, memory: memory.saturating_sub(pool) }
    }

    fn holdings(&self, device: u8) -> Holdings {
        let (mut all, mut found) = (Holdings::default(), Vec::new());
        for shard in (0..self.shards.len()).filter(|shard| self.is_in_use(*shard)) {
            let mut from = Some(0);
            while let Some(index) = from {
                found.clear();
                let shard = self.shards[shard].lock();
                from = shard.on_device(device, index, usize::MAX, LOOKS, |_| true, &mut found);
                for entry in found.iter().map(|index| shard.entry(*index)).filter(|entry| !entry.all_cached()) {
                    let ObjectPlace::Device(extent) = entry.place else { continue };
                    all.whole += u64::from(extent.is_page());
                    all.units += if extent.is_page() { 0 } else { u64::from(extent.units) };
                    all.pages += entry.refs - entry.cached;
                }
            }
        }
        all
    }

    /// Whether the copy lies on a device that is being drained: then it must not be reused.
    pub(crate) fn is_leaving(&self, place: ObjectPlace) -> bool {
        matches!(place, ObjectPlace::Device(extent) if self.devices.bay(extent.device).is_draining())
    }

    /// Whether it makes sense to read the object in order to move it.
    fn has_place_for(&self, extent: &Extent) -> bool {
        self.devices.has_room() || !extent.is_page() && self.pool_room() >= extent.units as u64 * UNIT as u64
    }

    fn pool_room(&self) -> u64 {
        use std::sync::atomic::Ordering::Relaxed;
        self.pool_limit.load(Relaxed).saturating_sub(self.pool_bytes())
    }

    /// Pages that still lie on the device.
    pub fn left_to_drain(&self, drain: &Drain) -> u64 {
        u64::from(self.devices.bay(drain.device).slots_used())
    }

    /// Ends a drain; the device is used again.
    pub fn cancel_drain(&self, drain: &Drain) {
        self.devices.bay(drain.device).set_draining(false);
        self.unstall();
    }

    /// Closes the device; `false` while objects still lie on it.
    pub fn end_drain(&self, drain: &Drain) -> bool {
        self.devices.bay(drain.device).close()
    }

    /// Moves some pages off the device. May wait for devices.
    pub fn drain_step(&self, drain: &mut Drain) -> DrainReport {
        let next = self.find_next(drain.device, &mut drain.mover, LOOKS, |_| true);
        let mut report = DrainReport { moved: next.given_up, round_done: next.round_done, ..DrainReport::default() };
        let found = drain.mover.pages.len();
        drain.mover.pages.retain(|page| self.has_place_for(&page.extent));
        report.refused = (found - drain.mover.pages.len()) as u32;
        if !drain.mover.pages.is_empty() {
            let moved = self.move_pages(drain.device, &mut drain.mover, true);
            report.moved += moved.moved;
            report.unreadable = moved.unreadable;
            report.refused += moved.refused;
        }
        report
    }
}
