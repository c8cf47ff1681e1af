//! The counters of a store, by the kernel's names where it has one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// Figures of a store at one time. Counters never fall; gauges are marked.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StoreStats {
    /// Gauge: pages in the memory tier, compressed or same-filled.
    pub stored_pages: u64,
    /// Gauge: of these, pages that are one word repeated and take no pool memory.
    pub same_filled_pages: u64,
    /// Gauge: memory taken by the pool, whole slabs.
    pub pool_bytes: u64,
    /// The most that `pool_bytes` may become.
    pub pool_limit_bytes: u64,
    /// Gauge: compressed bytes in the pool.
    pub stored_bytes: u64,
    /// Gauge: memory of the object table.
    pub table_bytes: u64,
    /// Grows when a page compressed to more than 3/4 of itself and was not taken into the pool.
    pub reject_compress_poor: u64,
    /// Grows when a page found no room in the pool under its limit.
    pub pool_limit_hit: u64,
    /// Grows per page that writeback moved from the pool to a device (freed meanwhile or not).
    pub written_back_pages: u64,
    /// Grows when a writeback batch had to be put back, in part or whole, because no device took it.
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
    /// Slots there are.
    pub slots_total: u64,
    /// It ran out of room before it ran out of slots (a sparse file on a full disk); only freed slots are used again.
    pub out_of_room: bool,
    /// Three write errors in a row: it gets no more writes, reads go on.
    pub latched_off: bool,
    /// Grows per failed read.
    pub read_errors: u64,
    /// Grows per failed write, lack of room not counted.
    pub write_errors: u64,
    /// Grows per write refused for lack of room (ENOSPC, EDQUOT).
    pub no_room: u64,
}

/// The counters as they are counted. Each is documented at [`StoreStats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub same_filled_pages: AtomicU64,
    pub reject_compress_poor: AtomicU64,
    pub pool_limit_hit: AtomicU64,
    pub written_back_pages: AtomicU64,
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

impl Counters {
    /// The counters; gauges that live elsewhere are left at 0.
    pub fn snapshot(&self) -> StoreStats {
        let get = |c: &AtomicU64| c.load(Relaxed);
        StoreStats {
            same_filled_pages: get(&self.same_filled_pages),
            reject_compress_poor: get(&self.reject_compress_poor),
            pool_limit_hit: get(&self.pool_limit_hit),
            written_back_pages: get(&self.written_back_pages),
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
