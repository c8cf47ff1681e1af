//! Storing pages: into memory if they compress and there is room, else straight to a device. A page
//! that compresses but finds no room in the pool goes there compressed and packed, as writeback
//! would write it; a page that does not compress fills a slot.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use uswap_core::util::growth::{Growth, during};
use uswap_core::{AllocError, PAGE_SIZE, PageBuf, PageHash, same_filled};
use uswap_sys::AlignedBuf;

use crate::background::squeeze::Taker;
use crate::codec::{Compressor, Reject, TAG};
use crate::config::{GROUP, ObjectId, PutError};
use crate::device::extent::Extent;
use crate::device::write_batch::{BATCH_OBJECTS, WriteBatch};
use crate::device::{DeviceSpot, WriteLists};
use crate::object::table::{EntryList, ObjectPlace, Shard};
use crate::path::load::LoadScratch;
use crate::stats::add;
use crate::store::Store;

/// Pages that the I/O buffer of a worker holds.
pub(crate) const IO_PAGES: usize = 128;
/// Pages that a worker puts into one shard before it goes on to the next: neighbours stay together,
/// so that writeback gives them neighbouring slots.
const SHARD_STAY: u32 = 64;
/// Cached copies that are given up together when a page finds no room, and how often this is
/// repeated.
const GIVE_UP: u32 = 32;
const GIVE_UP_ROUNDS: usize = 4;

/// The reason why a page does not go into the memory tier.
enum Leaves {
    /// It does not compress, or the compressor failed, or it is one word repeated and was `refused`
    /// an entry.
    Whole { refused: bool },
    /// There is no room. The page is compressed, and waits in [`Scratch::outgoing`] to be written
    /// in a pack.
    Compressed,
}

/// A page on its way to a device.
#[derive(Clone, Copy)]
struct Outbound {
    /// The page's position in the batch.
    position: usize,
    hash: PageHash,
    /// The table had no entry for the page in memory, and that is counted already.
    refused: bool,
}

/// The working memory of one thread that puts and loads (about a MiB, most of it touched only when
/// used).
pub struct Scratch {
    codec: Compressor,
    pub(crate) io: AlignedBuf,
    /// Pages staged in `io` to be written as they are.
    staged: Vec<Outbound>,
    spots: Vec<DeviceSpot>,
    /// Compressed pages on their way to a device, and the position in the batch and the hash of
    /// each.
    outgoing: WriteBatch,
    spilled: Vec<Outbound>,
    extents: Vec<Extent>,
    lists: WriteLists,
    load: LoadScratch,
    /// The worker's number, and its position in its group of shards.
    worker: u32,
    turn: u32,
    stay: u32,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl AsMut<LoadScratch> for Scratch {
    fn as_mut(&mut self) -> &mut LoadScratch {
        &mut self.load
    }
}

impl Scratch {
    /// Working memory for a new thread.
    pub fn new() -> Self {
        static WORKERS: AtomicU32 = AtomicU32::new(0);
        Self {
            codec: Compressor::new(),
            io: AlignedBuf::zeroed(IO_PAGES * PAGE_SIZE),
            staged: Vec::with_capacity(IO_PAGES),
            spots: Vec::with_capacity(IO_PAGES),
            outgoing: WriteBatch::new(),
            spilled: Vec::with_capacity(BATCH_OBJECTS),
            extents: Vec::with_capacity(BATCH_OBJECTS),
            lists: WriteLists::default(),
            load: LoadScratch::default(),
            worker: WORKERS.fetch_add(1, Relaxed),
            turn: 0,
            stay: 0,
        }
    }

    fn next_shard(&mut self, shards: usize) -> usize {
        if self.stay == SHARD_STAY {
            self.stay = 0;
            self.turn = (self.turn + 1) % GROUP;
        }
        self.stay += 1;
        (self.worker as usize * GROUP as usize + self.turn as usize) % shards
    }

    fn stage(&mut self, page: &PageBuf, outbound: Outbound) {
        let at = self.staged.len() * PAGE_SIZE;
        self.io[at..at + PAGE_SIZE].copy_from_slice(page);
        self.staged.push(outbound);
    }

    /// Puts the page that was compressed last, `length` bytes with the tag, into the pack to be
    /// written.
    fn spill(&mut self, outbound: Outbound, length: usize, packing: bool) {
        self.outgoing.packing = packing;
        self.outgoing.push(&self.codec.output()[..length - TAG]);
        self.spilled.push(outbound);
    }
}

impl Store {
    /// Stores a page whose hash is known, as a new object with one authoritative reference. May
    /// wait for a device write when the page does not compress or the pool is full.
    ///
    /// # Errors
    /// [`PutError::Full`]: the page is stored nowhere.
    pub fn put(&self, page: &PageBuf, hash: PageHash, scratch: &mut Scratch) -> Result<ObjectId, PutError> {
        let mut result = Err(PutError::Full);
        match self.put_in_memory(0, page, hash, scratch) {
            Ok(id) => return Ok(id),
            Err(Leaves::Compressed) => self.write_spilled(scratch, |_, id| result = Ok(id)),
            Err(Leaves::Whole { refused }) => {
                scratch.stage(page, Outbound { position: 0, hash, refused });
                self.write_staged(scratch, |_, id| result = Ok(id));
            }
        }
        result
    }

    /// Stores several pages; `out` receives one result per page, in order. Those that go to a
    /// device are written together to contiguous slots.
    pub fn put_batch(
        &self,
        pages: &[(&PageBuf, PageHash)],
        out: &mut Vec<Result<ObjectId, PutError>>,
        scratch: &mut Scratch,
    ) {
        out.clear();
        for (position, &(page, hash)) in pages.iter().enumerate() {
            out.push(self.put_in_memory(position, page, hash, scratch).map_err(|leaves| {
                if let Leaves::Whole { refused } = leaves {
                    scratch.stage(page, Outbound { position, hash, refused });
                }
                PutError::Full
            }));
            if scratch.staged.len() == IO_PAGES {
                self.write_staged(scratch, |position, id| out[position] = Ok(id));
            }
            if scratch.outgoing.is_full() {
                self.write_spilled(scratch, |position, id| out[position] = Ok(id));
            }
        }
        if !scratch.staged.is_empty() {
            self.write_staged(scratch, |position, id| out[position] = Ok(id));
        }
        if !scratch.spilled.is_empty() {
            self.write_spilled(scratch, |position, id| out[position] = Ok(id));
        }
    }

    fn put_in_memory(
        &self,
        position: usize,
        page: &PageBuf,
        hash: PageHash,
        scratch: &mut Scratch,
    ) -> Result<ObjectId, Leaves> {
        let shard = scratch.next_shard(self.shards.len());
        let id = match same_filled(page) {
            Some(word) => {
                let id = self
                    .insert(shard, hash, ObjectPlace::Filled(word), false)
                    .ok_or(Leaves::Whole { refused: true })?;
                add(&self.counters.same_filled_pages, 1);
                id
            }
            None => {
                let bytes = self.compress(page, scratch).ok_or(Leaves::Whole { refused: false })?;
                match self.put_in_pool(shard, hash, bytes) {
                    Ok(id) => id,
                    Err(refused) => {
                        let length = bytes.len();
                        scratch.spill(Outbound { position, hash, refused }, length, self.packing());
                        return Err(Leaves::Compressed);
                    }
                }
            }
        };
        add(&self.counters.zswpout, 1);
        Ok(id)
    }

    fn compress<'a>(&self, page: &PageBuf, scratch: &'a mut Scratch) -> Option<&'a mut [u8]> {
        let compressed = match self.faults.compress.hits() {
            true => Err(Reject::Fail),
            false => scratch.codec.compress(page, self.compression()),
        };
        match compressed {
            Ok(bytes) => {
                if self.faults.flip.hits() {
                    bytes[TAG + (bytes.len() - TAG) / 2] ^= 0x10;
                }
                Some(bytes)
            }
            Err(reject) => {
                let poor = reject == Reject::Poor;
                let counter =
                    if poor { &self.counters.reject_compress_poor } else { &self.counters.reject_compress_fail };
                add(counter, 1);
                None
            }
        }
    }

    fn insert(&self, shard: usize, hash: PageHash, place: ObjectPlace, refused: bool) -> Option<ObjectId> {
        self.note_in_use(shard);
        let index = self.enter(&mut self.shards[shard].lock(), hash, place, refused)?;
        Some(self.join(shard, index))
    }

    /// Makes an entry for an object with one authoritative reference. `refused`: the page was
    /// refused an entry before, which is counted already.
    fn enter(&self, shard: &mut Shard, hash: PageHash, place: ObjectPlace, refused: bool) -> Option<u32> {
        let fails = self.faults.entry.hits();
        let index = if fails { None } else { shard.insert(hash.check(), place, self.most_of_a_shard()) };
        add(&self.counters.reject_kmemcache_fail, u64::from(index.is_none() && !refused));
        index
    }

    /// `bytes` begins with room for the tag. The error says whether the object was refused an
    /// entry, which is counted then.
    fn put_in_pool(&self, shard: usize, hash: PageHash, bytes: &mut [u8]) -> Result<ObjectId, bool> {
        match self.insert_in_pool(shard, hash, bytes, false) {
            Ok(id) => return Ok(id),
            Err(Some(AllocError::Limit)) => add(&self.counters.pool_limit_hit, 1),
            Err(Some(AllocError::NoMemory)) => {
                add(&self.counters.reject_alloc_fail, 1);
                return Err(false);
            }
            Err(None) => return Err(true),
        }
        self.writing_back.store(true, Relaxed);
        let mut refused = false;
        for _ in 0..GIVE_UP_ROUNDS {
            if self.give_up_cached(EntryList::PoolCached, GIVE_UP) == 0 {
                break;
            }
            match self.insert_in_pool(shard, hash, bytes, refused) {
                Ok(id) => return Ok(id),
                Err(error) => refused |= error.is_none(),
            }
        }
        Err(refused)
    }

    /// The error is the allocator's; `None` if the table had no entry.
    fn insert_in_pool(
        &self,
        shard: usize,
        hash: PageHash,
        bytes: &mut [u8],
        refused: bool,
    ) -> Result<ObjectId, Option<AllocError>> {
        self.note_in_use(shard);
        let mut guard = self.shards[shard].lock();
        let index = self.enter(&mut guard, hash, ObjectPlace::Gone, refused).ok_or(None)?;
        let id = self.join(shard, index);
        bytes[..TAG].copy_from_slice(&id.to_bits().to_ne_bytes());
        let fails = self.faults.memory.hits();
        match if fails { Err(AllocError::NoMemory) } else { during(Growth::Pool, || self.pool.alloc(bytes)) } {
            Ok(handle) => {
                let referenced = guard.is_among_older();
                guard.set_place(index, ObjectPlace::Pool { handle, referenced, writing: false });
                Ok(id)
            }
            Err(error) => {
                guard.vacate(index);
                Err(Some(error))
            }
        }
    }

    /// Writes the staged pages to devices, calls `done` for each that was written, and clears the
    /// staged pages.
    fn write_staged(&self, scratch: &mut Scratch, mut done: impl FnMut(usize, ObjectId)) {
        let bytes = scratch.staged.len() * PAGE_SIZE;
        scratch.spots.clear();
        self.write_pages(&scratch.io[..bytes], &mut scratch.spots, &mut scratch.lists);
        let written = scratch.spots.len() * PAGE_SIZE;
        if written < bytes && self.squeeze() {
            self.write_pages(&scratch.io[written..bytes], &mut scratch.spots, &mut scratch.lists);
        }
        let staged = std::mem::take(&mut scratch.staged);
        let spots = std::mem::take(&mut scratch.spots);
        for (page, &(device, slot)) in staged.iter().zip(&spots) {
            let extent = Extent::page(device, slot);
            self.note_whole(&extent);
            match self.insert(
                scratch.next_shard(self.shards.len()),
                page.hash,
                ObjectPlace::Device(extent),
                page.refused,
            ) {
                Some(id) => done(page.position, id),
                None => self.free_copy(Some(ObjectPlace::Device(extent))),
            }
        }
        add(&self.counters.put_full, (staged.len() - spots.len()) as u64);
        (scratch.staged, scratch.spots) = (staged, spots);
        scratch.staged.clear();
    }

    /// Writes the compressed pages that found no room in the pool to devices, calls `done` for each
    /// that was written, and clears the list of these pages.
    fn write_spilled(&self, scratch: &mut Scratch, mut done: impl FnMut(usize, ObjectId)) {
        scratch.extents.clear();
        self.write_objects(&mut scratch.outgoing, &mut scratch.extents, &mut scratch.lists, Taker::Anybody);
        if scratch.extents.len() < scratch.outgoing.len() && self.squeeze() {
            self.write_objects(&mut scratch.outgoing, &mut scratch.extents, &mut scratch.lists, Taker::Anybody);
        }
        scratch.outgoing.clear();
        let spilled = std::mem::take(&mut scratch.spilled);
        let extents = std::mem::take(&mut scratch.extents);
        for (page, extent) in spilled.iter().zip(&extents) {
            match self.insert(
                scratch.next_shard(self.shards.len()),
                page.hash,
                ObjectPlace::Device(*extent),
                page.refused,
            ) {
                Some(id) => done(page.position, id),
                None => self.devices.free(extent),
            }
        }
        add(&self.counters.spilled_pages, extents.len() as u64);
        add(&self.counters.put_full, (spilled.len() - extents.len()) as u64);
        (scratch.spilled, scratch.extents) = (spilled, extents);
        scratch.spilled.clear();
    }

    /// Writes a prefix of the objects of a batch, beginning with the object whose index is the
    /// length of `extents`, to devices and appends their extents; gives up cached copies on devices
    /// before it leaves objects unwritten.
    pub(crate) fn write_objects(
        &self,
        batch: &mut WriteBatch,
        extents: &mut Vec<Extent>,
        lists: &mut WriteLists,
        taker: Taker,
    ) {
        let before = extents.len();
        self.devices.write_objects(batch, extents, lists, taker);
        let left = batch.len() - extents.len();
        if left > 0 && self.give_up_cached(EntryList::DeviceCached, left as u32) > 0 {
            self.devices.write_objects(batch, extents, lists, taker);
        }
        add(&self.counters.pswpout, (extents.len() - before) as u64);
        if !extents.is_empty() {
            self.unstall();
        }
    }

    /// Writes a prefix of the pages of `bytes` to devices and appends their places to `spots`;
    /// gives up cached copies on devices before it leaves pages unwritten.
    pub(crate) fn write_pages(&self, bytes: &[u8], spots: &mut Vec<DeviceSpot>, lists: &mut WriteLists) {
        let before = spots.len();
        self.devices.write_pages(bytes, spots, lists);
        let done = spots.len() - before;
        let left = bytes.len() / PAGE_SIZE - done;
        if left > 0 && self.give_up_cached(EntryList::DeviceCached, left as u32) > 0 {
            self.devices.write_pages(&bytes[done * PAGE_SIZE..], spots, lists);
        }
        add(&self.counters.pswpout, (spots.len() - before) as u64);
        if !spots.is_empty() {
            self.unstall();
        }
    }
}
