//! Storing pages: into memory if they compress and there is room, else straight to a device.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use uswap_core::{PAGE_SIZE, PageBuf, PageHash, same_filled};
use uswap_sys::AlignedBuf;

use crate::codec::{Compressor, TAG};
use crate::config::{GROUP, ObjectId, PutError};
use crate::devices::{Spot, WriteLists};
use crate::load::Wanted;
use crate::stats::add;
use crate::store::Store;
use crate::table::{List, Place};

/// Pages that the I/O buffer of a worker holds.
pub(crate) const IO_PAGES: usize = 128;
/// Pages that a worker puts into one shard before it goes on to the next: neighbours stay together, so that writeback
/// gives them neighbouring slots.
const SHARD_STAY: u32 = 64;
/// Cached copies given up at once, and how often, when a page finds no room.
const GIVE_UP: u32 = 32;
const GIVE_UP_ROUNDS: usize = 4;

/// The working memory of one thread that puts and loads (about 530 KiB, the I/O buffer touched only when used).
pub struct Scratch {
    codec: Compressor,
    pub(crate) io: AlignedBuf,
    /// Pages staged in `io` to be written: position in the batch, hash.
    staged: Vec<(usize, PageHash)>,
    spots: Vec<Spot>,
    lists: WriteLists,
    pub(crate) wanted: Vec<Wanted>,
    /// The worker's number, and where in its group of shards it is.
    worker: u32,
    turn: u32,
    stay: u32,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
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
            lists: WriteLists::default(),
            wanted: Vec::with_capacity(IO_PAGES),
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

    fn stage(&mut self, position: usize, page: &PageBuf, hash: PageHash) {
        let at = self.staged.len() * PAGE_SIZE;
        self.io[at..at + PAGE_SIZE].copy_from_slice(page);
        self.staged.push((position, hash));
    }
}

impl Store {
    /// Stores a page whose hash is known, as a new object with one authoritative reference. May wait for a device
    /// write when the page does not compress or the pool is full.
    ///
    /// # Errors
    /// [`PutError::Full`]: the page is stored nowhere.
    pub fn put(&self, page: &PageBuf, hash: PageHash, scratch: &mut Scratch) -> Result<ObjectId, PutError> {
        if let Some(id) = self.put_in_memory(page, hash, scratch) {
            return Ok(id);
        }
        let mut result = Err(PutError::Full);
        scratch.stage(0, page, hash);
        self.write_staged(scratch, |_, id| result = Ok(id));
        result
    }

    /// Stores several pages; `out` receives one result per page, in order. Those that go to a device are written
    /// together to contiguous slots.
    pub fn put_batch(
        &self,
        pages: &[(&PageBuf, PageHash)],
        out: &mut Vec<Result<ObjectId, PutError>>,
        scratch: &mut Scratch,
    ) {
        out.clear();
        for (position, &(page, hash)) in pages.iter().enumerate() {
            let id = self.put_in_memory(page, hash, scratch);
            out.push(id.ok_or(PutError::Full));
            if id.is_none() {
                scratch.stage(position, page, hash);
            }
            if scratch.staged.len() == IO_PAGES {
                self.write_staged(scratch, |position, id| out[position] = Ok(id));
            }
        }
        if !scratch.staged.is_empty() {
            self.write_staged(scratch, |position, id| out[position] = Ok(id));
        }
    }

    fn put_in_memory(&self, page: &PageBuf, hash: PageHash, scratch: &mut Scratch) -> Option<ObjectId> {
        let shard = scratch.next_shard(self.shards.len());
        let id = match same_filled(page) {
            Some(word) => {
                let id = self.insert(shard, hash, Place::Filled(word))?;
                add(&self.counters.same_filled_pages, 1);
                id
            }
            None => match scratch.codec.compress(page) {
                Some(bytes) => self.put_in_pool(shard, hash, bytes)?,
                None => {
                    add(&self.counters.reject_compress_poor, 1);
                    return None;
                }
            },
        };
        add(&self.counters.zswpout, 1);
        Some(id)
    }

    fn insert(&self, shard: usize, hash: PageHash, place: Place) -> Option<ObjectId> {
        self.note_in_use(shard);
        let index = self.shards[shard].lock().insert(hash, place, self.most_of_a_shard())?;
        Some(self.join(shard, index))
    }

    /// `bytes` begins with room for the tag.
    fn put_in_pool(&self, shard: usize, hash: PageHash, bytes: &mut [u8]) -> Option<ObjectId> {
        if let Some(id) = self.insert_in_pool(shard, hash, bytes) {
            return Some(id);
        }
        add(&self.counters.pool_limit_hit, 1);
        self.writing_back.store(true, Relaxed);
        for _ in 0..GIVE_UP_ROUNDS {
            if self.give_up_cached(List::PoolCached, GIVE_UP) == 0 {
                return None;
            }
            if let Some(id) = self.insert_in_pool(shard, hash, bytes) {
                return Some(id);
            }
        }
        None
    }

    fn insert_in_pool(&self, shard: usize, hash: PageHash, bytes: &mut [u8]) -> Option<ObjectId> {
        self.note_in_use(shard);
        let mut guard = self.shards[shard].lock();
        let index = guard.insert(hash, Place::Gone, self.most_of_a_shard())?;
        let id = self.join(shard, index);
        bytes[..TAG].copy_from_slice(&id.to_bits().to_ne_bytes());
        match self.with_pool(|pool| pool.alloc(bytes)) {
            Some(handle) => {
                guard.set_place(index, Place::pool(handle));
                Some(id)
            }
            None => {
                guard.vacate(index);
                None
            }
        }
    }

    /// Writes the staged pages to devices, calls `done` for each that got there, and unstages all.
    fn write_staged(&self, scratch: &mut Scratch, mut done: impl FnMut(usize, ObjectId)) {
        let bytes = scratch.staged.len() * PAGE_SIZE;
        scratch.spots.clear();
        self.write_pages(&scratch.io[..bytes], &mut scratch.spots, &mut scratch.lists);
        let staged = std::mem::take(&mut scratch.staged);
        let spots = std::mem::take(&mut scratch.spots);
        for (&(position, hash), &(device, slot)) in staged.iter().zip(&spots) {
            let place = Place::Device { device, length: PAGE_SIZE as u16, slot };
            match self.insert(scratch.next_shard(self.shards.len()), hash, place) {
                Some(id) => done(position, id),
                None => self.devices.free((device, slot)),
            }
        }
        add(&self.counters.put_full, (staged.len() - spots.len()) as u64);
        (scratch.staged, scratch.spots) = (staged, spots);
        scratch.staged.clear();
    }

    /// Writes a prefix of the pages of `bytes` to devices; cached copies there are given up before pages are left.
    pub(crate) fn write_pages(&self, bytes: &[u8], spots: &mut Vec<Spot>, lists: &mut WriteLists) {
        self.devices.write_pages(bytes, spots, lists);
        let left = bytes.len() / PAGE_SIZE - spots.len();
        if left > 0 && self.give_up_cached(List::DeviceCached, left as u32) > 0 {
            self.devices.write_pages(&bytes[spots.len() * PAGE_SIZE..], spots, lists);
        }
        add(&self.counters.pswpout, spots.len() as u64);
        if !spots.is_empty() {
            self.unstall();
        }
    }
}
