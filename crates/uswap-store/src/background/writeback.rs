//! Writeback: moves objects from the tail of the pool's LRU to a device, in batches of contiguous
//! slots.
//!
//! It starts when the pool is above 95 % of its limit or a page found no room, and goes on to 90 %.
//! A step does the cheapest thing that makes room: it gives up cached copies; else, while holes
//! take more than an eighth of the pool, it moves objects to empty thin slabs; else it writes one
//! batch. Pages are written as they are compressed, packed one behind the other
//! ([`crate::device::write_batch`]) in the order in which they were stored: pages that were evicted
//! together lie together, and one read brings several.
//!
//! During the write an object stays in the pool and readable, marked `writing` so that no other
//! thread frees or moves its copy. A thread that releases the last reference meanwhile leaves the
//! entry with `refs == 0`; the writer then frees both copies. A loaded object gets a second chance:
//! writeback skips it once before it writes it.

use std::sync::atomic::Ordering::Relaxed;

use uswap_core::Handle;

use crate::background::repack::Repacker;
use crate::background::squeeze::Taker;
use crate::codec::TAG;
use crate::config::ObjectId;
use crate::device::WriteLists;
use crate::device::extent::Extent;
use crate::device::write_batch::{BATCH_OBJECTS, WriteBatch};
use crate::object::table::{EntryList, ObjectPlace, Shard};
use crate::stats::add;
use crate::store::Store;

/// Cached copies given up at a time.
const GIVE_UP: u32 = 128;
/// Objects that are looked at each time a shard is locked, so that a reader waits only for
/// microseconds.
const PER_LOCK: usize = 16;
/// Objects taken from one shard in a row: as many as are stored there in a row.
const PER_SHARD: usize = 64;
/// Shards that a batch empties, roughly.
const SHARDS: u32 = 3;
/// The most objects of a slab.
const MAX_MOVES: usize = 2048;
const HIGH_PERCENT: u64 = 95;
const LOW_PERCENT: u64 = 90;

/// The result of one call of [`Store::writeback`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WritebackReport {
    /// Cached copies given up.
    pub given_up: u32,
    /// Compressed pages moved inside the pool to empty slabs.
    pub moved: u32,
    /// Pages written to devices.
    pub written: u32,
    /// Pages that no device took; they stay in the pool.
    pub refused: u32,
    /// Slots discarded on devices.
    pub trimmed: u32,
    /// Bytes by which the pool shrank meanwhile.
    pub freed_bytes: u64,
}

impl WritebackReport {
    /// Whether the call made any room; if not, another call now will not either.
    pub fn progressed(&self) -> bool {
        self.given_up + self.moved + self.written > 0 || self.freed_bytes > 0
    }
}

struct Victim {
    id: ObjectId,
    handle: Handle,
}

/// The working memory of a writeback thread (512 KiB and lists; 1.5 times as much in addition once
/// it repacks).
pub struct WritebackScratch {
    batch: WriteBatch,
    victims: Vec<Victim>,
    extents: Vec<Extent>,
    lists: WriteLists,
    pub(crate) repacker: Repacker,
    pub(crate) handles: Vec<Handle>,
    pub(crate) moves: Vec<(ObjectId, Handle)>,
    pub(crate) turn: usize,
}

impl Default for WritebackScratch {
    fn default() -> Self {
        Self::new()
    }
}

impl WritebackScratch {
    /// Working memory for a new thread.
    pub fn new() -> Self {
        Self {
            batch: WriteBatch::new(),
            victims: Vec::with_capacity(BATCH_OBJECTS),
            extents: Vec::with_capacity(BATCH_OBJECTS),
            lists: WriteLists::default(),
            repacker: Repacker::new(),
            handles: Vec::with_capacity(BATCH_OBJECTS),
            moves: Vec::with_capacity(MAX_MOVES),
            turn: 0,
        }
    }
}

impl Store {
    /// Whether [`writeback`](Self::writeback) should be called, repeatedly, until this is false.
    pub fn needs_writeback(&self) -> bool {
        let percent = if self.writing_back.load(Relaxed) { LOW_PERCENT } else { HIGH_PERCENT };
        self.above(percent) && !self.stalled.load(Relaxed)
    }

    fn above(&self, percent: u64) -> bool {
        let limit = if self.eager_writeback() { 0 } else { self.pool_limit.load(Relaxed) };
        self.pool_bytes() * 100 > limit * percent
    }

    /// One step of making room in the pool, down to 90 % of its limit. May wait for a device write.
    /// Several threads may do it at once.
    pub fn writeback(&self, scratch: &mut WritebackScratch) -> WritebackReport {
        let mut report = WritebackReport::default();
        let before = self.pool_bytes();
        if self.above(LOW_PERCENT) {
            self.writing_back.store(true, Relaxed);
            report.given_up = self.give_up_cached(EntryList::PoolCached, GIVE_UP);
        }
        if self.above(LOW_PERCENT) && !report.progressed() && self.is_worth_compacting() {
            report.moved = self.compact(scratch);
        }
        if self.above(LOW_PERCENT) && !report.progressed() {
            self.write_batch(scratch, &mut report);
            self.stalled.store(!report.progressed() && !self.devices.has_room(), Relaxed);
        }
        if !self.above(LOW_PERCENT) {
            self.writing_back.store(false, Relaxed);
        }
        report.trimmed = self.trim();
        report.freed_bytes = before.saturating_sub(self.pool_bytes());
        report
    }

    /// Gives the room of freed slots back to the devices, some clusters per call; returns the slots
    /// discarded.
    pub fn trim(&self) -> u32 {
        self.devices.trim()
    }

    /// Gives memory of the table of objects that became empty after a peak back to the system;
    /// returns the number of pieces. To be called now and then.
    pub fn trim_table(&self) -> u32 {
        self.shards.iter().map(|shard| shard.lock().trim()).sum()
    }

    /// Lets devices that ran out of room before they ran out of slots be tried again. To be called
    /// now and then, because no event tells when a full disk has room again.
    pub fn retry_room(&self) {
        self.devices.thaw();
        self.unstall();
    }

    fn write_batch(&self, scratch: &mut WritebackScratch, report: &mut WritebackReport) {
        scratch.victims.clear();
        scratch.extents.clear();
        scratch.batch.clear();
        scratch.batch.packing = self.packing();
        if self.devices.has_room() || self.give_up_cached(EntryList::DeviceCached, GIVE_UP) > 0 || self.squeeze() {
            self.select(scratch);
            self.pause();
            self.write_objects(&mut scratch.batch, &mut scratch.extents, &mut scratch.lists, Taker::Anybody);
            self.pause();
        } else {
            add(&self.counters.reject_reclaim_fail, 1);
            return;
        }
        report.written = scratch.extents.len() as u32;
        report.refused = (scratch.victims.len() - scratch.extents.len()) as u32;
        add(&self.counters.written_back_pages, report.written as u64);
        add(&self.counters.reject_reclaim_fail, (report.refused > 0) as u64);
        self.settle(scratch);
    }

    /// Collects a batch from the tails of the shards and copies it. A second round is for the case
    /// that all objects had been loaded since the last look.
    fn select(&self, scratch: &mut WritebackScratch) {
        let shards = self.shards_in_turn(SHARDS);
        for round in 0..2 {
            if round == 1 && !scratch.victims.is_empty() {
                break;
            }
            for shard in shards.clone() {
                if scratch.batch.is_full() {
                    return;
                }
                (0..PER_SHARD / PER_LOCK).for_each(|_| self.select_some(shard, scratch));
            }
        }
    }

    fn select_some(&self, shard_number: usize, scratch: &mut WritebackScratch) {
        let mut guard = self.shards[shard_number].lock();
        let shard: &mut Shard = &mut guard;
        for _ in 0..PER_LOCK {
            if scratch.batch.is_full() {
                break;
            }
            let Some(index) = shard.next_victim(4 * PER_LOCK) else { break };
            let ObjectPlace::Pool { handle, .. } = shard.entry(index).place else {
                unreachable!("the LRU holds pool objects")
            };
            let batch = &mut scratch.batch;
            self.pool.read(handle, &mut |bytes| batch.push(&bytes[TAG..]));
            shard.set_place(index, ObjectPlace::Pool { handle, referenced: false, writing: true });
            scratch.victims.push(Victim { id: self.join(shard_number, index), handle });
        }
    }

    /// After the write: the entries of written objects get their new places, the other objects go
    /// back into the LRU.
    fn settle(&self, scratch: &mut WritebackScratch) {
        scratch.handles.clear();
        for (i, victim) in scratch.victims.iter().enumerate() {
            let extent = scratch.extents.get(i).copied();
            let (shard, index) = self.split(victim.id);
            let mut guard = self.shards[shard].lock();
            let released = guard.entry(index).refs == 0;
            match extent {
                _ if released => {
                    guard.vacate(index);
                }
                Some(extent) => guard.set_place(index, ObjectPlace::Device(extent)),
                None => guard.set_place(index, ObjectPlace::pool(victim.handle)),
            }
            drop(guard);
            if released && let Some(extent) = extent {
                self.devices.free(&extent);
            }
            if released || extent.is_some() {
                scratch.handles.push(victim.handle);
            }
        }
        scratch.handles.drain(..).for_each(|handle| self.free_in_pool(handle));
    }
}
