//! The swap devices of a store in order of priority: slots, writes that fall through to the next one, error latches.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use uswap_core::{PAGE_SIZE, RankedMutex, Run, Slots};
use uswap_device::{Device, Errno};

use crate::rank;
use crate::stats::DeviceStatus;

/// Write errors in a row after which a device gets no more writes.
const LATCH_AFTER: u32 = 3;
/// Empty clusters that are kept written, because they will be used again soon.
const KEEP_DIRTY: u32 = 4;
/// Clusters discarded per trim: the rest waits for the next one.
const TRIM_CLUSTERS: u32 = 8;

/// A device with its slots and its record.
pub(crate) struct Bay {
    pub device: Box<dyn Device>,
    slots: RankedMutex<Slots>,
    errors_in_a_row: AtomicU32,
    latched: AtomicBool,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    no_room: AtomicU64,
}

/// Where a page was written: index of the device, slot.
pub(crate) type Spot = (u8, u32);

impl Bay {
    pub fn new(device: Box<dyn Device>) -> Self {
        let slots = Slots::new(device.slots());
        Self {
            device,
            slots: RankedMutex::new(rank::SLOTS, slots),
            errors_in_a_row: AtomicU32::new(0),
            latched: AtomicBool::new(false),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            no_room: AtomicU64::new(0),
        }
    }

    /// Reads one page.
    pub fn read(&self, slot: u32, page: &mut [u8]) -> Result<(), Errno> {
        self.device.read(slot, page).inspect_err(|_| self.note_read_error())
    }

    pub fn note_read_error(&self) {
        self.read_errors.fetch_add(1, Relaxed);
    }

    pub fn free(&self, slot: u32) {
        self.slots.lock().free(Run { first: slot, count: 1 });
    }

    fn usable(&self) -> bool {
        !self.latched.load(Relaxed)
    }

    /// Writes pages from the start of `bytes` into slots of this device until all are written or one write failed;
    /// the slots are appended to `slots`.
    fn write_pages(&self, bytes: &[u8], slots: &mut Vec<u32>, runs: &mut Vec<Run>) {
        runs.clear();
        self.slots.lock().allocate((bytes.len() / PAGE_SIZE) as u32, runs);
        let mut rest = bytes;
        let mut failed = false;
        for &run in runs.iter() {
            let (part, after) = rest.split_at(run.count as usize * PAGE_SIZE);
            if failed {
                self.slots.lock().free(run);
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
        let result = if self.usable() { self.device.write(run.first, bytes) } else { Err(Errno::IO) };
        match result {
            Ok(()) => self.errors_in_a_row.store(0, Relaxed),
            Err(errno) if errno.is_no_room() => {
                self.no_room.fetch_add(1, Relaxed);
                self.slots.lock().no_room(run);
            }
            Err(_) => {
                self.slots.lock().free(run);
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
            let Some(run) = self.slots.lock().take_trimmable(KEEP_DIRTY) else { break };
            // A device that cannot discard loses nothing but room.
            let _ = self.device.discard(run.first, run.count);
            self.slots.lock().trimmed(run);
            discarded += run.count;
        }
        discarded
    }

    fn status(&self) -> DeviceStatus {
        let slots = self.slots.lock();
        DeviceStatus {
            name: self.device.name().to_owned(),
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
}

/// All devices, highest priority first.
pub(crate) struct Devices {
    pub bays: Vec<Bay>,
}

impl Devices {
    /// Writes the pages of `bytes` (aligned) in order to the first devices that take them, and appends where each
    /// went to `spots`: a prefix of the pages, all of them when there was room.
    pub fn write_pages(&self, bytes: &[u8], spots: &mut Vec<Spot>, lists: &mut WriteLists) {
        let mut written = 0;
        for (index, bay) in self.bays.iter().enumerate() {
            // The second try is for a device that just found out that it has no new room: freed slots own theirs.
            for _ in 0..2 {
                if written == bytes.len() || !bay.usable() {
                    break;
                }
                lists.slots.clear();
                bay.write_pages(&bytes[written..], &mut lists.slots, &mut lists.runs);
                spots.extend(lists.slots.iter().map(|&slot| (index as u8, slot)));
                written += lists.slots.len() * PAGE_SIZE;
            }
        }
    }

    /// Whether a device might take a page.
    pub fn has_room(&self) -> bool {
        self.bays.iter().any(|bay| bay.usable() && bay.slots.lock().has_room())
    }

    pub fn thaw(&self) {
        self.bays.iter().for_each(|bay| bay.slots.lock().thaw());
    }

    pub fn free(&self, (device, slot): Spot) {
        self.bays[device as usize].free(slot);
    }

    pub fn trim(&self) -> u32 {
        self.bays.iter().map(Bay::trim).sum()
    }

    pub fn status(&self) -> Vec<DeviceStatus> {
        self.bays.iter().map(Bay::status).collect()
    }
}
