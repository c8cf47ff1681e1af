//! Emptying thin slabs of the pool by moving their objects into the holes of fuller ones.
//!
//! Objects leave the pool in LRU order, not in the order of their slabs, so slabs thin out and hold memory that stores
//! nothing. Each object in the pool begins with its id: the one who moves it finds the entry to change.

use uswap_core::Handle;

use crate::codec::TAG;
use crate::config::ObjectId;
use crate::stats::add;
use crate::store::Store;
use crate::table::Place;
use crate::writeback::WritebackScratch;

impl Store {
    /// Gives spare slabs back, and empties one slab if the holes elsewhere suffice; returns how many objects moved.
    pub(crate) fn compact(&self, scratch: &mut WritebackScratch) -> u32 {
        scratch.handles.clear();
        scratch.moves.clear();
        self.with_pool(|pool| pool.drop_spares());
        let pool = self.pool.lock();
        scratch.turn += 1;
        if pool.pick_thin(scratch.turn, &mut scratch.handles) {
            let owner = |handle| {
                let bytes = pool.read(handle);
                ObjectId::from_bits(u32::from_ne_bytes(bytes[..TAG].try_into().expect("the tag is 4 bytes")))
            };
            scratch.moves.extend(scratch.handles.iter().map(|&handle| (owner(handle), handle)));
        }
        drop(pool);
        let moved = scratch.moves.iter().filter(|&&(id, handle)| self.move_object(id, handle)).count() as u32;
        add(&self.counters.compact_moved, moved as u64);
        moved
    }

    /// Moves one object, unless it has changed since its slab was picked or is being written.
    fn move_object(&self, id: ObjectId, handle: Handle) -> bool {
        let (shard, index) = self.split(id);
        let mut guard = self.shards[shard].lock();
        match guard.entry(index).place {
            Place::Pool { handle: now, referenced, writing: false } if now == handle => {
                let Some(handle) = self.with_pool(|pool| pool.relocate(handle)) else { return false };
                guard.set_place(index, Place::Pool { handle, referenced, writing: false });
                true
            }
            _ => false,
        }
    }
}
