//! Loading pages: from memory at once, from devices by one read or a batch of reads. Every page is
//! verified.
//!
//! A page that is wrong is first looked up again: it may have been moved while it was read, and
//! another object may have got its old place ([`crate::background::relocate`]). Only a page that is
//! still in the place where it was read counts as damaged.
//!
//! Loading allocates no memory: the buffers that it needs are made before ([`LoadScratch`]).

use std::borrow::BorrowMut;

use uswap_core::{PAGE_SIZE, PageBuf};
use uswap_sys::AlignedBuf;

use crate::codec::{MAX_COMPRESSED, TAG, expand, fill};
use crate::config::{Load, LoadError, ObjectId};
use crate::device::extent::{Extent, unpack};
use crate::device::{ReadPlan, SwapDevice};
use crate::object::table::ObjectPlace;
use crate::path::put::IO_PAGES;
use crate::stats::add;
use crate::store::Store;

/// The most reads of one page, if it is moved again and again while it is read.
const MAX_READS: usize = 16;

/// Where an object lies on a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Spot {
    device: u8,
    start: u64,
    end: u64,
}

impl Spot {
    /// The number of the device.
    pub fn device(&self) -> u8 {
        self.device
    }

    /// Whether it is an uncompressed page.
    pub fn is_whole(&self) -> bool {
        self.end - self.start == PAGE_SIZE as u64
    }

    /// Whether a read of `before` brings the beginning of this one at almost no cost: this one lies
    /// behind `before`, in the same slot or directly after its end.
    pub fn is_read_with(&self, before: &Self) -> bool {
        let reach = before.start..=before.end.next_multiple_of(PAGE_SIZE as u64);
        self.device == before.device && reach.contains(&self.start)
    }
}

/// A page to be read from a device.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub extent: Extent,
    pub check: u64,
    /// Its position in the caller's batch.
    pub position: usize,
}

/// The working memory of a thread that loads (512 KiB, touched only when used).
pub struct LoadScratch {
    pub(crate) io: AlignedBuf,
    pub(crate) wanted: Vec<Wanted>,
    plan: ReadPlan,
}

impl Default for LoadScratch {
    fn default() -> Self {
        let io = AlignedBuf::zeroed(IO_PAGES * PAGE_SIZE);
        Self { io, wanted: Vec::with_capacity(IO_PAGES), plan: ReadPlan::default() }
    }
}

impl AsMut<LoadScratch> for LoadScratch {
    fn as_mut(&mut self) -> &mut LoadScratch {
        self
    }
}

/// The result of looking an object up in the table, with the bytes if the pool has them.
pub(crate) enum LoadFound {
    Filled(u64),
    Compressed { length: usize, check: u64 },
    Device(Wanted),
    Gone,
}

impl Store {
    /// Loads without ever waiting for a device.
    ///
    /// # Errors
    /// [`LoadError::Gone`] when the copy was given up; [`LoadError::Checksum`] when the pool's
    /// bytes are damaged.
    pub fn load(&self, id: ObjectId, out: &mut PageBuf) -> Result<Load, LoadError> {
        self.load_memory(id, out).map(|wanted| if wanted.is_none() { Load::Ready } else { Load::OnDevice })
    }

    /// The place of the object, if its only copy is on a device now.
    pub fn spot_of(&self, id: ObjectId) -> Option<Spot> {
        let (shard, index) = self.split(id);
        match self.shards[shard].lock().entry(index).place {
            ObjectPlace::Device(extent) => {
                Some(Spot { device: extent.device, start: extent.bytes().start, end: extent.bytes().end })
            }
            _ => None,
        }
    }

    /// The same, with the checksum that its bytes must have.
    pub(crate) fn wanted_of(&self, id: ObjectId) -> Option<Wanted> {
        let (shard, index) = self.split(id);
        let guard = self.shards[shard].lock();
        let entry = guard.entry(index);
        match entry.place {
            ObjectPlace::Device(extent) => Some(Wanted { extent, check: entry.check, position: 0 }),
            _ => None,
        }
    }

    /// Whether the object's copy is in this place of a device now.
    pub(crate) fn is_at(&self, id: ObjectId, extent: &Extent) -> bool {
        let (shard, index) = self.split(id);
        self.shards[shard].lock().entry(index).place == ObjectPlace::Device(*extent)
    }

    /// Loads, waiting for a device if need be. A page with a bad checksum is read a second time; a
    /// page that was moved meanwhile is read again each time, up to a bound. The caller has a
    /// reference; if it has only a cached one, the page may be `Gone` while it is read.
    ///
    /// # Errors
    /// [`LoadError`]; `out` is then undefined.
    pub fn load_blocking(
        &self,
        id: ObjectId,
        out: &mut PageBuf,
        scratch: &mut impl AsMut<LoadScratch>,
    ) -> Result<(), LoadError> {
        let scratch = scratch.as_mut();
        let (mut last, mut failures) = (LoadError::Gone, 0);
        for _ in 0..MAX_READS {
            let Some(wanted) = self.load_memory(id, out)? else { return Ok(()) };
            let Err(error) = self.read_one(&wanted, matches!(last, LoadError::Checksum { .. }), out, scratch) else {
                return Ok(());
            };
            last = error;
            if !self.is_at(id, &wanted.extent) {
                continue;
            }
            failures += 1;
            let damaged = matches!(last, LoadError::Checksum { .. });
            add(&self.counters.checksum_errors, damaged as u64);
            if !damaged || failures == 2 {
                break;
            }
        }
        Err(last)
    }

    fn read_one(
        &self,
        wanted: &Wanted,
        again: bool,
        out: &mut PageBuf,
        scratch: &mut LoadScratch,
    ) -> Result<(), LoadError> {
        let bay = self.bay(wanted.extent.device);
        let (device, slot) = (bay.name.clone(), wanted.extent.slot);
        match bay.read(&wanted.extent, again, &mut scratch.io) {
            Ok(units) if self.accept(wanted, units, out) => Ok(()),
            Ok(_) => Err(LoadError::Checksum { device: Some(device), slot }),
            Err(errno) => Err(LoadError::Io { device, slot, errno: errno.0 }),
        }
    }

    /// Loads several pages, reading from each device in batches. `results` receives one result per
    /// id, in order; pages whose result is an error are undefined.
    ///
    /// # Panics
    /// When `ids` and `outs` differ in length.
    pub fn load_many_blocking(
        &self,
        ids: &[ObjectId],
        outs: &mut [impl BorrowMut<PageBuf>],
        results: &mut Vec<Result<(), LoadError>>,
        scratch: &mut impl AsMut<LoadScratch>,
    ) {
        let scratch = scratch.as_mut();
        assert_eq!(ids.len(), outs.len());
        results.clear();
        let mut wanted = std::mem::take(&mut scratch.wanted);
        wanted.clear();
        for (position, (&id, out)) in ids.iter().zip(&mut *outs).enumerate() {
            let found = self.load_memory(id, out.borrow_mut());
            wanted.extend(found.as_ref().ok().and_then(|w| *w).map(|w| Wanted { position, ..w }));
            results.push(found.map(|_| ()));
        }
        let mut result_of = |position: usize, result| results[position] = result;
        self.load_wanted(&mut wanted, |position| ids[position], outs, &mut result_of, scratch);
        scratch.wanted = wanted;
    }

    /// Reads the pages that were found to lie on devices, from each device in batches.
    pub(crate) fn load_wanted(
        &self,
        wanted: &mut [Wanted],
        id_of: impl Fn(usize) -> ObjectId,
        outs: &mut [impl BorrowMut<PageBuf>],
        result_of: &mut impl FnMut(usize, Result<(), LoadError>),
        scratch: &mut LoadScratch,
    ) {
        wanted.sort_unstable_by_key(|w| w.extent);
        for same in wanted.chunk_by(|a, b| a.extent.device == b.extent.device) {
            let mut rest = same;
            while !rest.is_empty() {
                let good = self.read_batch(rest, outs, scratch);
                let (batch, after) = rest.split_at(scratch.plan.len());
                for (w, _) in batch.iter().zip(good).filter(|(_, good)| !good) {
                    let out = outs[w.position].borrow_mut();
                    result_of(w.position, self.load_blocking(id_of(w.position), out, scratch));
                }
                rest = after;
            }
        }
    }

    /// Reads some pages of one device, sorted by their places: the first ones, at least one; the
    /// plan in `scratch` then tells how many. Returns which of these are good; the caller tries the
    /// others alone.
    fn read_batch(
        &self,
        wanted: &[Wanted],
        outs: &mut [impl BorrowMut<PageBuf>],
        scratch: &mut LoadScratch,
    ) -> [bool; IO_PAGES] {
        let LoadScratch { io, plan, .. } = scratch;
        self.bay(wanted[0].extent.device).read_many(wanted.iter().map(|w| w.extent), plan, io);
        let mut good = [false; IO_PAGES];
        for (n, w) in wanted.iter().enumerate().take(plan.len()) {
            let units = plan.place(n).map(|place| &io[place]);
            good[n] = units.is_some_and(|units| self.accept(w, units, outs[w.position].borrow_mut()));
        }
        good
    }

    pub(crate) fn bay(&self, device: u8) -> &SwapDevice {
        self.devices.bay(device)
    }

    /// Expands a page; `false` if it does not have that checksum.
    pub(crate) fn expand_whole(&self, bytes: &[u8], check: u64, out: &mut PageBuf) -> bool {
        if !expand(bytes, out) {
            add(&self.counters.decompress_fail, 1);
            return false;
        }
        self.hasher.hash(out).check() == check
    }

    /// Expands a page as read from a device and verifies it.
    pub(crate) fn accept(&self, wanted: &Wanted, units: &[u8], out: &mut PageBuf) -> bool {
        add(&self.counters.pswpin, 1);
        unpack(units).is_some_and(|bytes| self.expand_whole(bytes, wanted.check, out))
    }

    /// Loads from the memory tier, or returns the place to read from.
    pub(crate) fn load_memory(&self, id: ObjectId, out: &mut PageBuf) -> Result<Option<Wanted>, LoadError> {
        let mut bytes = [0; MAX_COMPRESSED];
        match self.find(id, &mut bytes) {
            LoadFound::Gone => return Err(LoadError::Gone),
            LoadFound::Device(wanted) => return Ok(Some(wanted)),
            LoadFound::Filled(word) => fill(out, word),
            LoadFound::Compressed { length, check } => {
                if !self.expand_whole(&bytes[..length], check, out) {
                    add(&self.counters.checksum_errors, 1);
                    return Err(LoadError::Checksum { device: None, slot: 0 });
                }
            }
        }
        add(&self.counters.zswpin, 1);
        Ok(None)
    }

    /// Looks an object up, and copies its compressed bytes out.
    pub(crate) fn find(&self, id: ObjectId, bytes: &mut [u8; MAX_COMPRESSED]) -> LoadFound {
        let (shard, index) = self.split(id);
        let mut guard = self.shards[shard].lock();
        let entry = guard.entry(index);
        debug_assert!(entry.refs > 0, "{id:?} is loaded without a reference");
        let check = entry.check;
        match entry.place {
            ObjectPlace::Filled(word) => LoadFound::Filled(word),
            ObjectPlace::Device(extent) => LoadFound::Device(Wanted { extent, check, position: 0 }),
            ObjectPlace::Gone | ObjectPlace::Vacant => LoadFound::Gone,
            ObjectPlace::Pool { handle, .. } => {
                guard.set_referenced(index);
                let mut length = 0;
                self.pool.read(handle, &mut |stored| {
                    length = stored.len() - TAG;
                    bytes[..length].copy_from_slice(&stored[TAG..]);
                });
                LoadFound::Compressed { length, check }
            }
        }
    }
}
