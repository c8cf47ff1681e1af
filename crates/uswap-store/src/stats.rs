//! The counters of a store, under the kernel's names where the kernel has the same counter.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};
use uswap_device::ConnectionStatus;

/// Figures of a store at one time. Counters never fall; gauges are marked.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoreStats {
    /// Gauge: pages in the memory tier, compressed or same-filled.
    pub stored_pages: u64,
    /// Gauge: of these, pages that are one word repeated and take no pool memory.
    pub same_filled_pages: u64,
    /// Gauge: memory taken by the pool, whole pages.
    pub pool_bytes: u64,
    /// The most that `pool_bytes` has been.
    pub pool_max_bytes: u64,
    /// The most that `pool_bytes` may become.
    pub pool_limit_bytes: u64,
    /// Gauge: compressed bytes in the pool.
    pub stored_bytes: u64,
    /// Gauge: of `pool_bytes`, places of freed objects that only objects of their size can use.
    pub hole_bytes: u64,
    /// The pool's allocator.
    pub allocator: String,
    /// The compressor of pages that are stored now.
    pub compressor: String,
    /// Gauge: pages that lie on devices as they are, because they did not compress enough or their
    /// compression failed.
    pub stored_incompressible_pages: u64,
    /// Gauge: memory of the object table.
    pub table_bytes: u64,
    /// Grows when a page compressed to more than 3/4 of itself and was not taken into the pool.
    pub reject_compress_poor: u64,
    /// Grows when the compressor failed on a page (for lack of memory); the page goes to a device
    /// as it is.
    pub reject_compress_fail: u64,
    /// Grows when a page found no room in the pool under its limit.
    pub pool_limit_hit: u64,
    /// Grows when the pool was below its limit and its allocator had no memory for a page all the
    /// same.
    pub reject_alloc_fail: u64,
    /// Grows when the table of objects had no entry for a page (the kernel's entries come from a
    /// kmem_cache).
    pub reject_kmemcache_fail: u64,
    /// Grows when stored bytes could not be expanded to a page, each time they were read;
    /// `checksum_errors` grows too.
    pub decompress_fail: u64,
    /// Grows per page that writeback moved from the pool to a device (freed meanwhile or not).
    pub written_back_pages: u64,
    /// Grows per compressed page that found no room in the pool and was written to a device in a
    /// pack.
    pub spilled_pages: u64,
    /// Grows per page that was moved on a device, or given up because all its references were
    /// cached, to free a thin slot.
    pub repacked_pages: u64,
    /// Grows when a writeback batch had to be put back, in part or whole, because no device took
    /// it.
    pub reject_reclaim_fail: u64,
    /// Grows when neither pool nor device took a page.
    pub put_full: u64,
    /// Grows per page loaded from the memory tier.
    pub zswpin: u64,
    /// Grows per page stored into the memory tier.
    pub zswpout: u64,
    /// The same as `written_back_pages`, under the name of vmstat.
    pub zswpwb: u64,
    /// Grows per page read from a device (a second read for a bad checksum counts).
    pub pswpin: u64,
    /// Grows per page written to a device, directly or by writeback.
    pub pswpout: u64,
    /// Grows when an evicted page was unchanged and its cached copy became the page again.
    pub cache_reused: u64,
    /// Grows when an evicted page found its cached copy different or given up.
    pub cache_stale: u64,
    /// Grows per cached copy given up to make room.
    pub cache_given_up: u64,
    /// Grows when a loaded page had the wrong checksum, each time it was read.
    pub checksum_errors: u64,
    /// Grows per compressed page moved inside the pool to empty a thin slab.
    pub compact_moved: u64,
    /// Grows per page of memory that the pool gave back by that.
    pub pages_compacted: u64,
    /// One per device, highest priority first.
    pub devices: Vec<DeviceStatus>,
}

/// State of one device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// Higher is used first.
    pub priority: i32,
    /// It is being emptied (`swapoff`) and takes no more pages.
    pub draining: bool,
    /// Gauge: slots in use.
    pub slots_used: u64,
    /// All slots of the device.
    pub slots_total: u64,
    /// It ran out of room before it ran out of slots (a sparse file on a full disk); only freed
    /// slots are used again.
    pub out_of_room: bool,
    /// Three write errors in a row: it gets no more writes, reads go on.
    pub latched_off: bool,
    /// Grows per failed read.
    pub read_errors: u64,
    /// Grows per failed write, lack of room not counted.
    pub write_errors: u64,
    /// Grows per write refused for lack of room (ENOSPC, EDQUOT).
    pub no_room: u64,
    /// Gauge: compressed pages that lie there, packed together.
    pub packed_objects: u64,
    /// Gauge: the room that these take, without the holes that freed ones left.
    pub packed_bytes: u64,
    /// Gauge: slots in which they lie, holes included.
    pub packed_slots: u64,
    /// Grows by the bytes of each read.
    pub read_bytes: u64,
    /// Grows by the bytes of each write that did not fail.
    pub written_bytes: u64,
    /// A note on its state, if that is not as usual.
    pub note: Option<String>,
    /// The connections of a device on the network.
    pub connections: Vec<ConnectionStatus>,
}

/// The live counters. Each is documented at [`StoreStats`].
#[derive(Default)]
pub(crate) struct StoreCounters {
    pub same_filled_pages: AtomicU64,
    pub stored_incompressible_pages: AtomicU64,
    pub reject_compress_poor: AtomicU64,
    pub reject_compress_fail: AtomicU64,
    pub reject_alloc_fail: AtomicU64,
    pub reject_kmemcache_fail: AtomicU64,
    pub decompress_fail: AtomicU64,
    pub pool_limit_hit: AtomicU64,
    pub written_back_pages: AtomicU64,
    pub spilled_pages: AtomicU64,
    pub repacked_pages: AtomicU64,
    pub reject_reclaim_fail: AtomicU64,
    pub put_full: AtomicU64,
    pub zswpin: AtomicU64,
    pub zswpout: AtomicU64,
    pub pswpin: AtomicU64,
    pub pswpout: AtomicU64,
    pub cache_reused: AtomicU64,
    pub cache_stale: AtomicU64,
    pub cache_given_up: AtomicU64,
    pub checksum_errors: AtomicU64,
    pub compact_moved: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl StoreCounters {
    /// The counters; gauges that live elsewhere are left at 0.
    pub fn snapshot(&self) -> StoreStats {
        let get = |c: &AtomicU64| c.load(Relaxed);
        StoreStats {
            same_filled_pages: get(&self.same_filled_pages),
            stored_incompressible_pages: get(&self.stored_incompressible_pages),
            reject_compress_poor: get(&self.reject_compress_poor),
            reject_compress_fail: get(&self.reject_compress_fail),
            reject_alloc_fail: get(&self.reject_alloc_fail),
            reject_kmemcache_fail: get(&self.reject_kmemcache_fail),
            decompress_fail: get(&self.decompress_fail),
            pool_limit_hit: get(&self.pool_limit_hit),
            written_back_pages: get(&self.written_back_pages),
            spilled_pages: get(&self.spilled_pages),
            repacked_pages: get(&self.repacked_pages),
            reject_reclaim_fail: get(&self.reject_reclaim_fail),
            put_full: get(&self.put_full),
            zswpin: get(&self.zswpin),
            zswpout: get(&self.zswpout),
            zswpwb: get(&self.written_back_pages),
            pswpin: get(&self.pswpin),
            pswpout: get(&self.pswpout),
            cache_reused: get(&self.cache_reused),
            cache_stale: get(&self.cache_stale),
            cache_given_up: get(&self.cache_given_up),
            checksum_errors: get(&self.checksum_errors),
            compact_moved: get(&self.compact_moved),
            ..StoreStats::default()
        }
    }
}
