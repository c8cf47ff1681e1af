//! The swap devices of a store: slots, the order in which they are used, error latches, coming and going.
//!
//! Pages go to the device of the highest priority that takes them; those of equal priority take turns, batch by batch,
//! so that neighbours stay together. A device keeps its number for the life of the store, since objects name it; one
//! that has gone leaves its place empty.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, RwLock};

use uswap_core::{Locking, PAGE_SIZE, Run, Slots, worker_number};
use uswap_device::{Device, Errno, ReadRequest};

use crate::stats::DeviceStatus;

/// Write errors in a row after which a device gets no more writes.
const LATCH_AFTER: u32 = 3;
/// Empty clusters that are kept written, because they will be used again soon.
const KEEP_DIRTY: u32 = 4;
/// Clusters discarded per trim: the rest waits for the next one.
const TRIM_CLUSTERS: u32 = 8;

/// Devices in the life of a store, at most.
pub(crate) const MOST_DEVICES: usize = 255;

/// A device with its slots and its record.
pub(crate) struct Bay {
    /// `None` once it has gone. Cloned for each transfer: it is closed when the last one has ended.
    device: RwLock<Option<Arc<dyn Device>>>,
    pub name: String,
    pub priority: i32,
    /// No page goes to it any more.
    draining: AtomicBool,
    slots: Slots,
    errors_in_a_row: AtomicU32,
    latched: AtomicBool,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    no_room: AtomicU64,
}

/// Where a page was written: index of the device, slot.
pub(crate) type Spot = (u8, u32);

impl Bay {
    pub fn new(device: Box<dyn Device>, priority: i32, locking: Locking) -> Self {
        let slots = Slots::new(device.slots(), locking);
        Self {
            name: device.name().to_owned(),
            device: RwLock::new(Some(device.into())),
            priority,
            draining: AtomicBool::new(false),
            slots,
            errors_in_a_row: AtomicU32::new(0),
            latched: AtomicBool::new(false),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            no_room: AtomicU64::new(0),
        }
    }

    fn device(&self) -> Option<Arc<dyn Device>> {
        self.device.read().expect("device").clone()
    }

    /// Whether it still is there.
    pub fn is_open(&self) -> bool {
        self.device.read().expect("device").is_some()
    }

    /// Reads one page.
    pub fn read(&self, slot: u32, page: &mut [u8]) -> Result<(), Errno> {
        let Some(device) = self.device() else { return Err(Errno::IO) };
        device.read(slot, page).inspect_err(|_| self.note_read_error())
    }

    /// Reads pages of rising slots into `io`, one after the other, contiguous ones in one request. Says which were read:
    /// none of a device that has gone.
    pub fn read_slots(&self, slots: &[u32], io: &mut [u8]) -> Vec<bool> {
        let mut requests = Vec::with_capacity(slots.len());
        let mut room = io;
        for run in slots.chunk_by(|a, b| a + 1 == *b) {
            let (part, rest) = room.split_at_mut(run.len() * PAGE_SIZE);
            requests.push(ReadRequest::new(run[0], part));
            room = rest;
        }
        if let Some(device) = self.device() {
            device.read_many(&mut requests);
        }
        requests.iter().flat_map(|r| std::iter::repeat_n(r.result.is_ok(), r.buf.len() / PAGE_SIZE)).collect()
    }

    pub fn note_read_error(&self) {
        self.read_errors.fetch_add(1, Relaxed);
    }

    pub fn free(&self, slot: u32) {
        self.slots.free(worker_number(), Run { first: slot, count: 1 });
    }

    pub fn usable(&self) -> bool {
        !self.latched.load(Relaxed) && !self.draining.load(SeqCst)
    }

    /// Begins or ends draining. When it has begun no more slots are handed out, and none lie in caches.
    pub fn set_draining(&self, draining: bool) {
        self.draining.store(draining, SeqCst);
        if draining { self.slots.stop() } else { self.slots.resume() }
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(SeqCst)
    }

    pub fn slots_used(&self) -> u32 {
        self.slots.used()
    }

    /// Slots that could still be handed out.
    pub fn slots_free(&self) -> u32 {
        let slots = &self.slots;
        if self.usable() && !slots.is_frozen() { slots.total().saturating_sub(slots.used()) } else { 0 }
    }

    /// Lets the device go; `false`, and nothing is changed, while a slot is in use.
    pub fn close(&self) -> bool {
        // While it drains nothing is handed out: what is free now stays free.
        let empty = self.is_draining() && self.slots.used() == 0;
        if empty {
            self.device.write().expect("device").take();
        }
        empty
    }

    /// Writes pages from the start of `bytes` into slots of this device until all are written or one write failed;
    /// the slots are appended to `slots`.
    fn write_pages(&self, bytes: &[u8], slots: &mut Vec<u32>, runs: &mut Vec<Run>) {
        runs.clear();
        if self.usable() {
            self.slots.allocate(worker_number(), (bytes.len() / PAGE_SIZE) as u32, runs);
        }
        let mut rest = bytes;
        let mut failed = false;
        for &run in runs.iter() {
            let (part, after) = rest.split_at(run.count as usize * PAGE_SIZE);
            if failed {
                self.slots.free(worker_number(), run);
            } else if self.write_run(run, part) {
                slots.extend(run.first..run.first + run.count);
                rest = after;
            } else {
                failed = true;
            }
        }
    }

    /// Writes one run; on failure its slots are given back or set aside.
    fn write_run(&self, run: Run, bytes: &[u8]) -> bool {
        let device = self.device().filter(|_| !self.latched.load(Relaxed));
        let result = device.map_or(Err(Errno::IO), |device| device.write(run.first, bytes));
        match result {
            Ok(()) => self.errors_in_a_row.store(0, Relaxed),
            Err(errno) if errno.is_no_room() => {
                self.no_room.fetch_add(1, Relaxed);
                self.slots.no_room(run);
            }
            Err(_) => {
                self.slots.free(worker_number(), run);
                self.write_errors.fetch_add(1, Relaxed);
                if self.errors_in_a_row.fetch_add(1, Relaxed) + 1 >= LATCH_AFTER {
                    self.latched.store(true, Relaxed);
                }
            }
        }
        result.is_ok()
    }

    /// Discards some empty clusters; returns how many slots.
    fn trim(&self) -> u32 {
        let mut discarded = 0;
        for _ in 0..TRIM_CLUSTERS {
            let Some(run) = self.slots.take_trimmable(KEEP_DIRTY) else { break };
            // A device that cannot discard loses nothing but room.
            let _ = self.device().map(|device| device.discard(run.first, run.count));
            self.slots.trimmed(run);
            discarded += run.count;
        }
        discarded
    }

    fn status(&self) -> DeviceStatus {
        let slots = &self.slots;
        DeviceStatus {
            name: self.name.clone(),
            priority: self.priority,
            draining: self.is_draining(),
            slots_used: slots.used() as u64,
            slots_total: slots.total() as u64,
            out_of_room: slots.is_frozen(),
            latched_off: self.latched.load(Relaxed),
            read_errors: self.read_errors.load(Relaxed),
            write_errors: self.write_errors.load(Relaxed),
            no_room: self.no_room.load(Relaxed),
        }
    }
}

/// Buffers of a writing thread, so that writing does not allocate.
#[derive(Default)]
pub(crate) struct WriteLists {
    slots: Vec<u32>,
    runs: Vec<Run>,
    turns: Vec<u8>,
}

/// All devices that ever were.
pub(crate) struct Devices {
    bays: Box<[OnceLock<Bay>]>,
    turn: AtomicU32,
    locking: Locking,
}

impl Devices {
    pub fn new(locking: Locking) -> Self {
        Self { bays: (0..MOST_DEVICES).map(|_| OnceLock::new()).collect(), turn: AtomicU32::new(0), locking }
    }

    /// Adds a device; `None` when there were too many.
    pub fn add(&self, device: Box<dyn Device>, priority: i32) -> Option<u8> {
        let mut bay = Bay::new(device, priority, self.locking);
        for (index, place) in self.bays.iter().enumerate() {
            match place.set(bay) {
                Ok(()) => return Some(index as u8),
                Err(back) => bay = back,
            }
        }
        None
    }

    /// The device of this number.
    pub fn bay(&self, index: u8) -> &Bay {
        self.bays[index as usize].get().expect("a device that was added")
    }

    /// Number and bay of each that has not gone.
    pub fn open(&self) -> impl Iterator<Item = (u8, &Bay)> {
        let added = self.bays.iter().map_while(OnceLock::get).enumerate();
        added.filter(|(_, bay)| bay.is_open()).map(|(index, bay)| (index as u8, bay))
    }

    /// The devices in the order in which they are used now.
    fn turns(&self, turns: &mut Vec<u8>) {
        let turn = self.turn.fetch_add(1, Relaxed);
        turns.clear();
        turns.extend(self.open().map(|(index, _)| index));
        let count = turns.len().max(1) as u32;
        turns.sort_unstable_by_key(|index| (Reverse(self.bay(*index).priority), (u32::from(*index) + turn) % count));
    }

    /// Writes the pages of `bytes` (aligned) in order to the first devices that take them, and appends where each
    /// went to `spots`: a prefix of the pages, all of them when there was room.
    pub fn write_pages(&self, bytes: &[u8], spots: &mut Vec<Spot>, lists: &mut WriteLists) {
        let mut written = 0;
        let mut turns = std::mem::take(&mut lists.turns);
        self.turns(&mut turns);
        for &index in &turns {
            let bay = self.bay(index);
            // The second try is for a device that just found out that it has no new room: freed slots own theirs.
            for _ in 0..2 {
                if written == bytes.len() || !bay.usable() {
                    break;
                }
                lists.slots.clear();
                bay.write_pages(&bytes[written..], &mut lists.slots, &mut lists.runs);
                spots.extend(lists.slots.iter().map(|&slot| (index, slot)));
                written += lists.slots.len() * PAGE_SIZE;
            }
        }
        lists.turns = turns;
    }

    /// Whether a device might take a page.
    pub fn has_room(&self) -> bool {
        self.open().any(|(_, bay)| bay.usable() && bay.slots.has_room())
    }

    pub fn thaw(&self) {
        self.open().for_each(|(_, bay)| bay.slots.thaw());
    }

    pub fn free(&self, (device, slot): Spot) {
        self.bay(device).free(slot);
    }

    pub fn trim(&self) -> u32 {
        // What leaves is not trimmed: a reader may still be at a slot that was freed a moment ago.
        self.open().filter(|(_, bay)| !bay.is_draining()).map(|(_, bay)| bay.trim()).sum()
    }

    pub fn status(&self) -> Vec<DeviceStatus> {
        let mut all: Vec<DeviceStatus> = self.open().map(|(_, bay)| bay.status()).collect();
        all.sort_by_key(|device| Reverse(device.priority));
        all
    }
}
