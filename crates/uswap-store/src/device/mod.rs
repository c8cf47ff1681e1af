//! The swap devices of a store: their slots, the order in which they are used, error latches,
//! adding and removing.
//!
//! Pages go to the device of the highest priority that takes them; those of equal priority take
//! turns, batch by batch, so that neighbours stay together. A device keeps its number for the life
//! of the store, since objects name it; a removed device leaves its place empty.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use uswap_core::{Locking, PAGE_SIZE, RankedRwLock, SlotRun, Slots, ranks, worker_number};
use uswap_device::{Device, DeviceClass, Errno, News, ReadQueue, ReadRequest};

use crate::background::squeeze::Taker;
use crate::device::extent::{Extent, SLOT_UNITS, UNIT};
use crate::device::packs::{Packed, Packs};
use crate::device::write_batch::{BATCH_OBJECTS, WriteBatch};
use crate::path::put::IO_PAGES;
use crate::stats::DeviceStatus;

pub(crate) mod extent;
pub(crate) mod packs;
mod room;
pub(crate) mod write_batch;

/// Write errors in a row after which a device gets no more writes.
const LATCH_AFTER: u32 = 3;
/// Empty clusters that are not discarded, because they will be used again soon.
const KEEP_DIRTY: u32 = 4;
/// Clusters discarded per trim; the rest waits for the next trim.
const TRIM_CLUSTERS: u32 = 8;

/// The most devices in the life of a store.
pub(crate) const MAX_DEVICES: usize = 255;

/// A device with its slots and its figures.
pub(crate) struct SwapDevice {
    /// `None` after the device was removed. Each transfer has a clone, so the device is closed when
    /// the last transfer has ended.
    device: RankedRwLock<Option<Arc<dyn Device>>>,
    pub name: Arc<str>,
    pub priority: i32,
    /// The device takes no more pages.
    draining: AtomicBool,
    rules: Arc<Rules>,
    slots: Slots,
    packs: Packs,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors_in_a_row: AtomicU32,
    latched: AtomicBool,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    no_room: AtomicU64,
}

/// Rules for all devices that tests and measurements change.
#[derive(Default)]
pub(crate) struct Rules {
    /// Devices read whole pages only, whatever sector size they report.
    pub whole_pages: AtomicBool,
    /// Rule off: objects may touch two slots also on devices that read whole pages only.
    pub crossing: AtomicBool,
    /// Rule off: no slots are reserved for repacking.
    pub no_reserve: AtomicBool,
}

/// Where a page was written: index of the device, slot.
pub(crate) type DeviceSpot = (u8, u32);

impl SwapDevice {
    pub fn new(device: Box<dyn Device>, priority: i32, locking: Locking, rules: Arc<Rules>) -> Self {
        let slots = Slots::new(device.slots(), locking);
        let packs = Packs::new(device.slots());
        Self {
            name: device.name().into(),
            device: RankedRwLock::new(ranks::DEVICE, Some(device.into())),
            priority,
            draining: AtomicBool::new(false),
            rules,
            slots,
            packs,
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            errors_in_a_row: AtomicU32::new(0),
            latched: AtomicBool::new(false),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            no_room: AtomicU64::new(0),
        }
    }

    fn device(&self) -> Option<Arc<dyn Device>> {
        self.device.read().clone()
    }

    /// Asks the device a question that it answers at once.
    fn look<T>(&self, ask: impl FnOnce(&dyn Device) -> T) -> Option<T> {
        self.device.read().as_deref().map(ask)
    }

    /// Whether the device is still there.
    pub fn is_open(&self) -> bool {
        self.device.read().is_some()
    }

    /// Reads one object into `io`, and returns its units there. `again`: the bytes of the first
    /// read were wrong, and are read from another copy if there is one.
    ///
    /// # Panics
    /// When `io` is shorter than two pages.
    pub fn read<'a>(&self, extent: &Extent, again: bool, io: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        let Some(device) = self.device() else { return Err(Errno::IO) };
        let bytes = whole_sectors(&extent.bytes(), self.sector_of(&*device));
        let (slot, skip) = slot_and_skip(bytes.start);
        let io = &mut io[..(bytes.end - bytes.start) as usize];
        self.read_bytes.fetch_add(io.len() as u64, Relaxed);
        let read = if again { device.read_again(slot, skip, io) } else { device.read_part(slot, skip, io) };
        read.inspect_err(|_| self.note_read_error())?;
        let start = (extent.bytes().start - bytes.start) as usize;
        Ok(&io[start..start + extent.units as usize * UNIT])
    }

    /// Reads the first of several objects, which are sorted by their places: as many as `io` and
    /// `plan` have room for, and at least one if `io` has two pages. Objects in the same or in
    /// neighbouring sectors are read by one request. Afterwards `plan` says for each object where
    /// in `io` its units are; `None` if they could not be read, for example because the device was
    /// removed.
    pub fn read_many(&self, extents: impl Iterator<Item = Extent>, plan: &mut ReadPlan, io: &mut [u8]) {
        let device = self.device();
        plan.make(extents, device.as_ref().map_or(PAGE_SIZE, |device| self.sector_of(&**device)), io.len());
        let mut requests: [ReadRequest<'_>; IO_PAGES] = std::array::from_fn(|_| ReadRequest::new(0, &mut []));
        let mut room = &mut *io;
        for (bytes, request) in plan.requests.iter().zip(&mut requests) {
            let (part, rest) = room.split_at_mut((bytes.end - bytes.start) as usize);
            let (slot, skip) = slot_and_skip(bytes.start);
            *request = ReadRequest::part(slot, skip, part);
            room = rest;
        }
        let requests = &mut requests[..plan.requests.len()];
        self.serve(requests);
        for (request, place) in &mut plan.places {
            *place = place.take().filter(|_| requests[*request].result.is_ok());
        }
    }

    /// Serves these reads; if the device was removed they keep their errors.
    pub fn serve(&self, requests: &mut [ReadRequest<'_>]) {
        if let Some(device) = self.device() {
            device.read_many(requests);
            self.read_bytes.fetch_add(requests.iter().map(|request| request.buf.len() as u64).sum(), Relaxed);
        }
    }

    /// A queue of reads for one thread, if the device supports queues.
    pub fn read_queue(&self) -> Option<Box<dyn ReadQueue>> {
        self.device()?.read_queue()
    }

    /// The size at whose multiples reads of the device may begin and end; `None` if the device was
    /// removed.
    pub fn sector(&self) -> Option<usize> {
        self.look(|device| self.sector_of(device))
    }

    fn sector_of(&self, device: &dyn Device) -> usize {
        if self.rules.whole_pages.load(Relaxed) { PAGE_SIZE } else { device.sector() }
    }

    /// Whether each object is to lie within one slot: the device reads whole pages, and an object
    /// in two slots would cost a read of two.
    fn wants_within(&self) -> bool {
        self.sector() == Some(PAGE_SIZE) && !self.rules.crossing.load(Relaxed)
    }

    /// Counts bytes that were read by other means.
    pub fn note_read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// The speed class of the device; `None` if it was removed.
    pub fn class(&self) -> Option<DeviceClass> {
        self.device().map(|device| device.class())
    }

    /// Whether the device is reached over connections.
    pub fn is_networked(&self) -> bool {
        self.look(|device| !device.connections().is_empty()).unwrap_or(false)
    }

    pub fn note_read_error(&self) {
        self.read_errors.fetch_add(1, Relaxed);
    }

    /// Frees a page's slot.
    pub fn free_slot(&self, slot: u32) {
        self.slots.free(worker_number(), SlotRun { first: slot, count: 1 });
    }

    /// Frees an object, and the slots in which it was the last one.
    pub fn free(&self, extent: &Extent) {
        match extent.is_page() {
            true => self.free_slot(extent.slot),
            false => self.packs.remove(extent, |slot| self.free_slot(slot)),
        }
    }

    /// Takes slots for an object that lies there from before. `false`: another one has its place,
    /// or the device is shorter. Nothing is changed then.
    pub fn adopt(&self, extent: &Extent) -> bool {
        if extent.is_page() {
            return self.slots.claim(extent.slot);
        }
        let fits = |&(slot, units): &(u32, u8)| {
            slot < self.slots.total()
                && match self.packs.living(slot) {
                    0 => !self.slots.is_taken(slot),
                    living => usize::from(living) + usize::from(units) <= SLOT_UNITS,
                }
        };
        let free = extent.parts().all(|part| fits(&part));
        if free {
            for (slot, _) in extent.parts() {
                // It shares the slot with others if that is taken already.
                let _ = self.slots.claim(slot);
            }
            self.packs.add(extent);
        }
        free
    }

    /// The content is to stay when the device is closed; `false`: it goes.
    pub fn keep(&self) -> bool {
        self.look(|device| device.keep()).unwrap_or(false)
    }

    /// Whether it holds compressed objects.
    pub fn has_packs(&self) -> bool {
        self.packs.figures().objects > 0
    }

    /// Whether the object shares its slots.
    pub fn is_packed(&self, extent: &Extent) -> bool {
        !extent.is_page()
    }

    /// Whether moving the object helps to free a slot; `squeezed`: a slot that is no more alive
    /// than the mean counts as thin.
    pub fn is_in_thin_slot(&self, extent: &Extent, squeezed: bool) -> bool {
        let packs = &self.packs;
        !extent.is_page() && if squeezed { packs.is_in_mean_slot(extent) } else { packs.is_in_thin_slot(extent) }
    }

    pub fn usable(&self) -> bool {
        !self.latched.load(Relaxed) && !self.draining.load(SeqCst)
    }

    /// Begins or ends draining. While the device drains no slots are handed out, and none are in
    /// caches.
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

    /// Removes the device; `false`, and nothing is changed, while a slot is in use.
    pub fn close(&self) -> bool {
        // A draining device hands out no slots, so slots that are free now stay free.
        let empty = self.is_draining() && self.slots.used() == 0;
        if empty {
            // Closing the device can take time, and no thread should wait at the lock for that.
            let gone = self.device.change(Option::take);
            drop(gone);
        }
        empty
    }

    /// Writes pages from the start of `bytes` into slots of this device until all are written or
    /// one write failed; the slots are appended to `slots`.
    fn write_pages(&self, bytes: &[u8], slots: &mut Vec<u32>, runs: &mut Vec<SlotRun>) {
        self.take_slots((bytes.len() / PAGE_SIZE) as u32, runs, Taker::Anybody);
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

    /// Writes the objects of a batch from the one at `first` on into slots of this device until all
    /// are written, the slots that it got are full, or one write failed. Appends the extent of each
    /// to `extents`.
    fn write_objects(
        &self,
        index: u8,
        batch: &mut WriteBatch,
        extents: &mut Vec<Extent>,
        lists: &mut WriteLists,
        taker: Taker,
    ) {
        let first = extents.len();
        batch.within = self.wants_within();
        self.take_slots(batch.slots_from(first), &mut lists.runs, taker);
        let mut failed = false;
        for &run in &lists.runs {
            if failed || extents.len() == batch.len() {
                self.slots.free(worker_number(), run);
                continue;
            }
            let part = batch.lay_out(extents.len(), run.count, &mut lists.places);
            let count = (part.bytes.len() / PAGE_SIZE) as u32;
            if count < run.count {
                self.slots.free(worker_number(), SlotRun { first: run.first + count, count: run.count - count });
            }
            failed = !self.write_run(SlotRun { first: run.first, count }, part.bytes);
            if !failed {
                extents.extend(part.places.iter().map(|&(unit, units)| Extent {
                    device: index,
                    slot: run.first + unit / SLOT_UNITS as u32,
                    offset: (unit % SLOT_UNITS as u32) as u8,
                    units,
                }));
            }
        }
        extents[first..].iter().filter(|extent| !extent.is_page()).for_each(|extent| self.packs.add(extent));
    }

    /// Writes one run; on failure its slots are given back or set aside.
    fn write_run(&self, run: SlotRun, bytes: &[u8]) -> bool {
        let device = self.device().filter(|_| !self.latched.load(Relaxed));
        let result = device.map_or(Err(Errno::IO), |device| device.write(run.first, bytes));
        match result {
            Ok(()) => {
                self.errors_in_a_row.store(0, Relaxed);
                self.written_bytes.fetch_add(bytes.len() as u64, Relaxed);
            }
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
            // A failed discard costs only room on the device.
            let _ = self.device().map(|device| device.discard(run.first, run.count));
            self.slots.trimmed(run);
            discarded += run.count;
        }
        discarded
    }

    fn status(&self) -> DeviceStatus {
        let slots = &self.slots;
        let Packed { objects, units, slots: packed_slots } = self.packs.figures();
        DeviceStatus {
            name: self.name.to_string(),
            priority: self.priority,
            draining: self.is_draining(),
            slots_used: slots.used() as u64,
            slots_total: slots.total() as u64,
            out_of_room: slots.is_frozen(),
            latched_off: self.latched.load(Relaxed),
            read_errors: self.read_errors.load(Relaxed),
            write_errors: self.write_errors.load(Relaxed),
            no_room: self.no_room.load(Relaxed),
            packed_objects: objects,
            packed_bytes: units * UNIT as u64,
            packed_slots,
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            note: self.look(|device| device.note()).flatten(),
            connections: self.look(|device| device.connections()).unwrap_or_default(),
        }
    }
}

/// The bytes of whole sectors that must be read to get these.
pub(crate) fn whole_sectors(bytes: &Range<u64>, sector: usize) -> Range<u64> {
    bytes.start / sector as u64 * sector as u64..bytes.end.next_multiple_of(sector as u64)
}

pub(crate) fn slot_and_skip(byte: u64) -> (u32, usize) {
    ((byte / PAGE_SIZE as u64) as u32, (byte % PAGE_SIZE as u64) as usize)
}

/// The plan for reading several objects: at most as many as pages are read at once.
pub(crate) struct ReadPlan {
    /// The range of each request, in bytes of the device.
    requests: Vec<Range<u64>>,
    /// For each object the request that brings it, and its place in the buffer afterwards.
    places: Vec<(usize, Option<Range<usize>>)>,
}

impl Default for ReadPlan {
    fn default() -> Self {
        Self { requests: Vec::with_capacity(IO_PAGES), places: Vec::with_capacity(IO_PAGES) }
    }
}

impl ReadPlan {
    /// Objects of the last read.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Where the units of the n-th object are, if they could be read.
    pub fn place(&self, n: usize) -> Option<Range<usize>> {
        self.places[n].1.clone()
    }

    /// Plans to read the first extents, as many as fit into `room` bytes.
    fn make(&mut self, extents: impl Iterator<Item = Extent>, sector: usize, room: usize) {
        self.requests.clear();
        self.places.clear();
        let mut filled = 0;
        for extent in extents.take(IO_PAGES) {
            let bytes = whole_sectors(&extent.bytes(), sector);
            let last = self.requests.last_mut().filter(|last| last.start <= bytes.start && bytes.start <= last.end);
            let added = match &last {
                Some(last) => bytes.end.saturating_sub(last.end),
                None => bytes.end - bytes.start,
            };
            if filled + added as usize > room {
                break;
            }
            filled += added as usize;
            match last {
                Some(last) => last.end = last.end.max(bytes.end),
                None => self.requests.push(bytes),
            }
            // The last request ends where the buffer is filled to.
            let last = &self.requests[self.requests.len() - 1];
            let start = filled - (last.end - extent.bytes().start) as usize;
            self.places.push((self.requests.len() - 1, Some(start..start + extent.units as usize * UNIT)));
        }
    }
}

/// Buffers of a writing thread, so that writing does not allocate.
pub(crate) struct WriteLists {
    slots: Vec<u32>,
    runs: Vec<SlotRun>,
    turns: Vec<u8>,
    places: Vec<(u32, u8)>,
}

impl Default for WriteLists {
    fn default() -> Self {
        let (slots, runs) = (Vec::with_capacity(IO_PAGES), Vec::with_capacity(IO_PAGES));
        Self { slots, runs, turns: Vec::with_capacity(MAX_DEVICES), places: Vec::with_capacity(BATCH_OBJECTS) }
    }
}

/// All devices that the store ever had.
pub(crate) struct SwapDevices {
    bays: Box<[OnceLock<SwapDevice>]>,
    turn: AtomicU32,
    locking: Locking,
    pub rules: Arc<Rules>,
}

impl SwapDevices {
    pub fn new(locking: Locking) -> Self {
        let bays = (0..MAX_DEVICES).map(|_| OnceLock::new()).collect();
        Self { bays, turn: AtomicU32::new(0), locking, rules: Arc::default() }
    }

    /// Adds a device; `None` when there were too many.
    pub fn add(&self, device: Box<dyn Device>, priority: i32) -> Option<u8> {
        let mut bay = SwapDevice::new(device, priority, self.locking, self.rules.clone());
        for (index, place) in self.bays.iter().enumerate() {
            match place.set(bay) {
                Ok(()) => return Some(index as u8),
                Err(back) => bay = back,
            }
        }
        None
    }

    /// The device of this number.
    pub fn bay(&self, index: u8) -> &SwapDevice {
        self.bays[index as usize].get().expect("a device that was added")
    }

    /// Number and device of each that was not removed.
    pub fn open(&self) -> impl Iterator<Item = (u8, &SwapDevice)> {
        let added = self.bays.iter().map_while(OnceLock::get).enumerate();
        added.filter(|(_, bay)| bay.is_open()).map(|(index, bay)| (index as u8, bay))
    }

    /// The devices in the order in which they are used now.
    fn turns(&self, turns: &mut Vec<u8>) {
        let turn = self.turn.fetch_add(1, Relaxed);
        turns.clear();
        turns.extend(self.open().map(|(index, _)| index));
        turns.sort_unstable_by_key(|index| (Reverse(self.bay(*index).priority), *index));
        let alike = |a: &u8, b: &u8| self.bay(*a).priority == self.bay(*b).priority;
        for equal in turns.chunk_by_mut(alike) {
            equal.rotate_left(turn as usize % equal.len());
        }
    }

    /// Writes the pages of `bytes` (aligned) in order to the first devices that take them, and
    /// appends the place of each to `spots`: a prefix of the pages, all of them if there was room.
    pub fn write_pages(&self, bytes: &[u8], spots: &mut Vec<DeviceSpot>, lists: &mut WriteLists) {
        let mut written = 0;
        let mut turns = std::mem::take(&mut lists.turns);
        self.turns(&mut turns);
        for &index in &turns {
            let bay = self.bay(index);
            // The second try is for a device that just found out that it has no new room: freed
            // slots still have theirs.
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

    /// Writes the objects of a batch in order to the first devices that take them, and appends the
    /// extent of each to `extents`. It begins with the object whose index is the length of
    /// `extents`, and writes a prefix of the rest, all of it if there was room.
    pub fn write_objects(
        &self,
        batch: &mut WriteBatch,
        extents: &mut Vec<Extent>,
        lists: &mut WriteLists,
        taker: Taker,
    ) {
        let mut turns = std::mem::take(&mut lists.turns);
        self.turns(&mut turns);
        for &index in &turns {
            let bay = self.bay(index);
            // The second idle try is for a device that just found out that it has no new room:
            // freed slots still have theirs.
            let mut idle = 0;
            while idle < 2 && extents.len() < batch.len() && bay.usable() {
                let before = extents.len();
                bay.write_objects(index, batch, extents, lists, taker);
                idle += u32::from(extents.len() == before);
            }
        }
        lists.turns = turns;
    }

    /// Whether a device might take a page.
    pub fn has_room(&self) -> bool {
        self.open().any(|(_, bay)| bay.has_room())
    }

    pub fn thaw(&self) {
        self.open().for_each(|(_, bay)| bay.slots.thaw());
    }

    pub fn free(&self, extent: &Extent) {
        self.bay(extent.device).free(extent);
    }

    pub fn trim(&self) -> u32 {
        // A draining device is not trimmed: a reader may still be reading a slot that was freed a
        // moment ago.
        self.open().filter(|(_, bay)| !bay.is_draining()).map(|(_, bay)| bay.trim()).sum()
    }

    /// Calls `tell` with the news of the devices.
    pub fn news(&self, mut tell: impl FnMut(News)) {
        for (_, bay) in self.open() {
            while let Some(news) = bay.look(|device| device.news()).flatten() {
                tell(news);
            }
        }
    }

    pub fn status(&self) -> Vec<DeviceStatus> {
        let mut all: Vec<DeviceStatus> = self.open().map(|(_, bay)| bay.status()).collect();
        all.sort_by_key(|device| Reverse(device.priority));
        all
    }
}
