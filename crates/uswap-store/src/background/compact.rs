//! Compaction: empties thin slabs of the pool by moving their objects into the holes of fuller
//! ones.
//!
//! Objects leave the pool in LRU order, not in the order of their slabs, so slabs thin out and hold
//! memory that stores nothing. Each object in the pool begins with its id, by which the thread that
//! moves it finds the entry to change.
//!
//! Another thread may free, write or move a chosen object before its turn comes. So an object is
//! moved under the lock of its shard, and only if its entry still names the chosen place.

use uswap_core::Handle;
use uswap_core::util::growth::{Growth, during};

use crate::background::writeback::WritebackScratch;
use crate::codec::TAG;
use crate::config::ObjectId;
use crate::object::table::ObjectPlace;
use crate::stats::add;
use crate::store::Store;

/// If more than one byte in this number of the pool is a hole, a compaction is worthwhile when
/// there is time.
const THIN: u64 = 64;
/// The same for a compaction that should not wait: a crowd of processes frees more places than its
/// next pages take.
const QUITE_THIN: u64 = 32;
/// The same when room is needed at once: with fewer holes, writing a batch to a device makes more
/// room than moving many objects to free a page.
const VERY_THIN: u64 = 8;

/// The id that an object in the pool begins with.
pub(crate) fn owner(bytes: &[u8]) -> ObjectId {
    ObjectId::from_bits(u32::from_ne_bytes(bytes[..TAG].try_into().expect("the tag is 4 bytes")))
}

impl Store {
    /// Whether freed places take more than a sixty-fourth of the pool's memory.
    pub fn is_thin(&self) -> bool {
        self.has_a_hole_in(THIN)
    }

    /// Whether freed places take more than a thirty-second of the pool's memory.
    pub fn is_quite_thin(&self) -> bool {
        self.has_a_hole_in(QUITE_THIN)
    }

    /// Whether compaction makes room faster than a device.
    pub(crate) fn is_worth_compacting(&self) -> bool {
        self.has_a_hole_in(VERY_THIN)
    }

    fn has_a_hole_in(&self, bytes: u64) -> bool {
        let usage = self.pool.usage();
        usage.hole_bytes * bytes > usage.used_bytes
    }

    /// Empties one slab if the holes elsewhere suffice; returns the number of objects that moved.
    pub fn compact(&self, scratch: &mut WritebackScratch) -> u32 {
        scratch.moves.clear();
        scratch.turn += 1;
        let moves = &mut scratch.moves;
        self.pool.pick_thin(scratch.turn, &mut |handle, bytes| moves.push((owner(bytes), handle)));
        self.faults.pause_compact();
        let moved = scratch.moves.iter().filter(|&&(id, handle)| self.move_object(id, handle)).count() as u32;
        add(&self.counters.compact_moved, moved as u64);
        moved
    }

    /// Moves one object, unless it has changed since its slab was picked or is being written.
    fn move_object(&self, id: ObjectId, handle: Handle) -> bool {
        let (shard, index) = self.split(id);
        let mut guard = self.shards[shard].lock();
        match guard.entry(index).place {
            ObjectPlace::Pool { handle: now, referenced, writing: false } if now == handle => {
                let moved = during(Growth::Pool, || self.pool.relocate(handle));
                let Some(handle) = moved else { return false };
                guard.set_place(index, ObjectPlace::Pool { handle, referenced, writing: false });
                true
            }
            _ => false,
        }
    }
}
