//! Draining: everything leaves a device while programs run (`swapoff`).
//!
//! The device takes no more pages. Each object on it, packed or not, is put into the pool if it is compressed and there is
//! room, else on another device ([`crate::moving`]); copies that are only cached are given up. Once the device has been
//! closed a reader that looked an object up before looks again and finds the new place.
//!
//! What cannot be read stays where it is: the device can then not be closed, and its other pages are safe.

use uswap_core::PAGE_SIZE;
use uswap_device::{Device, News};

use crate::moving::Mover;
use crate::store::Store;

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

/// Entries looked at per lock of a shard.
const LOOKS: u32 = 8192;

/// How far a drain has come, and its working memory.
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
    /// Adds a device; those of higher priority are used first. `None` when there were too many in the life of the store.
    pub fn add_device(&self, device: Box<dyn Device>, priority: i32) -> Option<u8> {
        let added = self.devices.add(device, priority);
        self.unstall();
        added
    }

    /// Hands over what the devices have to tell their user.
    pub fn device_news(&self, tell: impl FnMut(News)) {
        self.devices.news(tell);
    }

    /// Begins to drain the device of this name: it takes no more pages.
    ///
    /// # Errors
    /// [`DrainRefusal`]; then nothing is changed.
    pub fn begin_drain(&self, name: &str) -> Result<Drain, DrainRefusal> {
        let named = self.devices.open().find(|(_, bay)| &*bay.name == name);
        let Some((device, bay)) = named else {
            return Err(DrainRefusal::Unknown(self.devices.open().map(|(_, bay)| bay.name.to_string()).collect()));
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
        Ok(Drain { device, mover: Mover::new() })
    }

    fn pool_room(&self) -> u64 {
        use std::sync::atomic::Ordering::Relaxed;
        self.pool_limit.load(Relaxed).saturating_sub(self.pool_bytes())
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
        let next = self.find_next(drain.device, &mut drain.mover, LOOKS, |_| true);
        let mut report = DrainReport { moved: next.given_up, round_done: next.round_done, ..DrainReport::default() };
        if !drain.mover.pages.is_empty() {
            let moved = self.move_pages(drain.device, &mut drain.mover, true);
            report.moved += moved.moved;
            (report.unreadable, report.refused) = (moved.unreadable, moved.refused);
        }
        report
    }
}
