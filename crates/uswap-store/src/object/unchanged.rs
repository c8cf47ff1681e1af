//! Pages that are evicted again unchanged: the swap cache, and equal pages that are evicted by
//! processes of one fork family.
//!
//! A page equals the copy if half of its 128-bit hash is the copy's checksum and, for a copy in
//! memory, all bytes are the same. A copy on a device is not read for this: there the 64 bits
//! decide. They are keyed with a secret, so that a changed page is taken for an unchanged one only
//! by chance, once in 2^64.

use std::sync::atomic::Ordering::Relaxed;

use uswap_core::{PAGE_SIZE, PageBuf, PageHash, same_filled};

use crate::codec::{MAX_COMPRESSED, expand};
use crate::config::ObjectId;
use crate::object::table::ObjectPlace;
use crate::path::load::LoadFound;
use crate::stats::add;
use crate::store::Store;

impl Store {
    /// The page of a cached reference is evicted again with this hash. True: the copy exists, may
    /// stay where it is, and is equal, and the reference is authoritative again. False: the
    /// reference was dropped, and the page must be `put`.
    pub fn reuse_cached(&self, id: ObjectId, page: &PageBuf, hash: PageHash) -> bool {
        // The content of an object never changes as long as it has references.
        let equal = self.faults.trust_copy.load(Relaxed) || self.holds(id, page, hash);
        let (shard, index) = self.split(id);
        let mut guard = self.shards[shard].lock();
        let place = guard.entry(index).place;
        let reused = equal && place != ObjectPlace::Gone && !self.is_leaving(place);
        let freed = match reused {
            true => guard.add_refs(index, 0, -1),
            false => guard.add_refs(index, -1, -1),
        };
        if reused {
            // Now it is as recent as a page that was just stored.
            guard.set_referenced(index);
        }
        drop(guard);
        add(if reused { &self.counters.cache_reused } else { &self.counters.cache_stale }, 1);
        self.free_copy(freed);
        reused
    }

    /// Adds an authoritative reference to an object to which the caller has none, if it still
    /// exists with these bytes.
    pub fn retain_if(&self, id: ObjectId, page: &PageBuf, hash: PageHash) -> bool {
        let (shard, index) = self.split(id);
        let mut guard = self.shards[shard].lock();
        let entry = guard.entry(index);
        let there = entry.refs > 0
            && !matches!(entry.place, ObjectPlace::Gone | ObjectPlace::Vacant)
            && !self.is_leaving(entry.place);
        if there {
            let freed = guard.add_refs(index, 1, 0);
            debug_assert!(freed.is_none());
        }
        drop(guard);
        // The comparison holds a reference, which keeps the copy from being given up and the id
        // from being used for another object.
        let equal = there && self.holds(id, page, hash);
        if there && !equal {
            self.release(id);
        }
        equal
    }

    /// Whether the object holds this page. The caller has a reference.
    fn holds(&self, id: ObjectId, page: &PageBuf, hash: PageHash) -> bool {
        let (shard, index) = self.split(id);
        let entry = self.shards[shard].lock().entry(index);
        if !matches!(entry.place, ObjectPlace::Filled(_)) && entry.check != hash.check() {
            return false;
        }
        let mut bytes = [0; MAX_COMPRESSED];
        match self.find(id, &mut bytes) {
            LoadFound::Filled(word) => same_filled(page) == Some(word),
            LoadFound::Device(wanted) => wanted.check == hash.check(),
            LoadFound::Compressed { length, check } => {
                let mut copy = [0; PAGE_SIZE];
                check == hash.check() && expand(&bytes[..length], &mut copy) && copy == *page
            }
            LoadFound::Gone => false,
        }
    }
}
