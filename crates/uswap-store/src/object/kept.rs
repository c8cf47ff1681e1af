//! Objects that outlive the store: what must be known of an object to find it on its device again,
//! and how another store takes it in.
//!
//! Nothing else about it is trusted. The device may have changed since, so the object's checksum
//! (64 bits, keyed by the seed of the store's hasher) decides when it is read: a page that is not
//! the one that was kept is an error of the load, as damage is.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::config::ObjectId;
use crate::device::extent::{Extent, SLOT_UNITS};
use crate::object::table::ObjectPlace;
use crate::store::Store;

/// Objects that go into one shard before the next has its turn.
const SHARD_STAY: u32 = 64;

/// An object on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptObject {
    check: u64,
    extent: Extent,
}

impl KeptObject {
    /// As two numbers: the checksum; and units (8 bits), first unit (8), device (8), slot (32 from
    /// bit 32 on).
    pub fn to_words(self) -> [u64; 2] {
        let Extent { device, slot, offset, units } = self.extent;
        [self.check, u64::from(slot) << 32 | u64::from(device) << 16 | u64::from(offset) << 8 | u64::from(units)]
    }

    /// From two numbers. `None`: no object lies like that.
    pub fn from_words(words: [u64; 2]) -> Option<Self> {
        let [units, offset, device, unused, ..] = words[1].to_le_bytes();
        let extent = Extent { device, slot: (words[1] >> 32) as u32, offset, units };
        let lies = (1..=SLOT_UNITS as u8).contains(&units)
            && usize::from(offset) < SLOT_UNITS
            && (offset == 0 || !extent.is_page());
        (lies && unused == 0).then_some(Self { check: words[0], extent })
    }

    /// The number of its device.
    pub fn device(&self) -> u8 {
        self.extent.device
    }

    /// The same object, on a device whose number is another one now.
    pub fn on_device(self, device: u8) -> Self {
        Self { extent: Extent { device, ..self.extent }, ..self }
    }
}

impl Store {
    /// The part of an object that is to be kept; `None`: it does not lie on a device now.
    pub fn kept(&self, id: ObjectId) -> Option<KeptObject> {
        self.wanted_of(id).map(|wanted| KeptObject { check: wanted.check, extent: wanted.extent })
    }

    /// Takes an object in that an earlier store has kept, as one with an authoritative reference.
    /// For the time before the first page is stored. `None`: another page has its slot, or the
    /// device does not have it.
    pub fn adopt(&self, object: KeptObject) -> Option<ObjectId> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let KeptObject { check, extent } = object;
        let (_, bay) = self.devices.open().find(|(number, _)| *number == extent.device)?;
        if !bay.adopt(&extent) {
            return None;
        }
        let shard = (NEXT.fetch_add(1, Relaxed) / SHARD_STAY) as usize % self.shards.len();
        self.note_in_use(shard);
        self.note_whole(&extent);
        let place = ObjectPlace::Device(extent);
        let index = self.shards[shard].lock().insert(check, place, self.most_of_a_shard());
        if index.is_none() {
            self.free_copy(Some(place));
        }
        index.map(|index| self.join(shard, index))
    }

    /// Number and name of each device that is there.
    pub fn device_names(&self) -> Vec<(u8, String)> {
        self.devices.open().map(|(number, bay)| (number, bay.name.to_string())).collect()
    }

    /// The content of the devices is to stay when the store is closed. Returns the names of those
    /// whose content goes all the same.
    pub fn keep_devices(&self) -> Vec<String> {
        self.devices.open().filter(|(_, bay)| !bay.keep()).map(|(_, bay)| bay.name.to_string()).collect()
    }
}
