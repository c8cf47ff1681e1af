//! The answer to `status`: identity and figures of a run. `--stats` writes the figures too. Sizes
//! are in bytes and times in the unit that a name ends with; figures without either are counts of
//! pages or of events. Counters grow, the figures marked as gauges rise and fall.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uswap_core::HistogramSnapshot;
use uswap_device::ConnectionStatus;

pub use uswap_pager::counters::CounterValues;
pub use uswap_pager::load_control::{LoadFigures, LoadState};
pub use uswap_remote::detach_progress::DetachProgress;

/// A run and its figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunStatus {
    /// Its name.
    pub name: String,
    /// Process id of its keeper, in the run's pid namespace.
    pub pid: u32,
    /// Process id of its engine, in the run's pid namespace.
    pub engine_pid: u32,
    /// User id that it runs as.
    pub user: u32,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Process id of the program that was attached to; null: the run began with its command.
    pub attached_to: Option<u32>,
    /// Milliseconds since it began.
    pub uptime_ms: u64,
    /// The version of its build.
    pub version: String,
    /// Its figures.
    pub figures: RunFigures,
    /// The figures of its cache; null: it is no mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount: Option<MountFigures>,
}

/// The figures of a mount's cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountFigures {
    /// The folder whose files are cached.
    pub source: String,
    /// Where it is mounted.
    pub mountpoint: String,
    /// Gauge: files of which something is cached or was.
    pub files: u64,
    /// Gauge: pages in memory.
    pub resident_pages: u64,
    /// Gauge: of these, active ones.
    pub active_pages: u64,
    /// Gauge: pages in pool and devices.
    pub stored_pages: u64,
    /// Gauge: pages that left of which is known when.
    pub history_pages: u64,
    /// Gauge: bytes of the tables that say where pages are.
    pub table_bytes: u64,
    /// Pages that were asked for.
    pub asked_pages: u64,
    /// Of these, found in memory.
    pub hit_pages: u64,
    /// Of these, found in pool or devices.
    pub store_hit_pages: u64,
    /// Pages read from the source, those read ahead included.
    pub source_pages: u64,
    /// Pages that the store could not give back, and that the source had.
    pub store_errors: u64,
    /// Pages that an earlier mount had kept, found when this one began.
    pub found_pages: u64,
    /// Gauge: pages that the next mount would find (`--keep`).
    pub kept_pages: u64,
    /// Pages written to the source.
    pub written_pages: u64,
    /// Times at which the cached content of a file was found changed by others.
    pub invalidations: u64,
    /// Pages that left memory.
    pub evicted_pages: u64,
    /// Pages that came back after they had left.
    pub refault_pages: u64,
    /// Of these, pages that became active.
    pub activated_pages: u64,
    /// Sentences about what goes wrong at present.
    pub warnings: Vec<String>,
}

/// All figures of a run, by the kernel's names where it has one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFigures {
    /// The engine's counters.
    #[serde(flatten)]
    pub counters: CounterValues,
    /// Gauge: bytes of the budget in use.
    pub ram_bytes: u64,
    /// The most bytes that were in use.
    pub ram_peak_bytes: u64,
    /// Gauge: bytes of shared memory, which is never evicted.
    pub shared_memory_bytes: u64,
    /// The budget in bytes.
    pub ram_limit_bytes: u64,
    /// Gauge: bytes of memory that the pool takes, whole pages.
    pub pool_bytes: u64,
    /// The most bytes that the pool may take.
    pub pool_limit_bytes: u64,
    /// Gauge: compressed bytes in the pool.
    pub pool_stored_bytes: u64,
    /// Gauge: pages in the pool, those of one repeated word included.
    pub stored_pages: u64,
    /// Gauge: of `stored_pages`, pages that are one word repeated and take no memory.
    pub same_filled_pages: u64,
    /// Gauge: pages that lie on devices as they are, because they do not compress.
    pub stored_incompressible_pages: u64,
    /// Gauge: `pool_bytes` by its name in zswap.
    pub pool_total_size: u64,
    /// Gauge: `pool_bytes` in pages.
    pub pool_pages: u64,
    /// Always 0: an entry is never stored twice. zswap has this figure.
    pub duplicate_entry: u64,
    /// Gauge: of `pool_bytes`, bytes of freed objects that only objects of their size can use.
    pub pool_hole_bytes: u64,
    /// Pages that compressed too little for the pool.
    pub reject_compress_poor: u64,
    /// Pages on which the compressor failed.
    pub reject_compress_fail: u64,
    /// Pages for which the pool's allocator had no memory below the limit.
    pub reject_alloc_fail: u64,
    /// Pages for which the table of objects had no entry.
    pub reject_kmemcache_fail: u64,
    /// Reads of stored bytes that could not be expanded.
    pub decompress_fail: u64,
    /// Pages that found no room in the pool under its limit.
    pub pool_limit_hit: u64,
    /// Pages that writeback moved from the pool to a device.
    pub written_back_pages: u64,
    /// Compressed pages that found no room in the pool and were written to a device.
    pub spilled_pages: u64,
    /// Pages that were moved on a device, or given up there, to free a slot.
    pub repacked_pages: u64,
    /// Writeback batches that no device took.
    pub reject_reclaim_fail: u64,
    /// Pages that neither pool nor device took.
    pub put_full: u64,
    /// Pages loaded from the pool.
    pub zswpin: u64,
    /// Pages stored into the pool.
    pub zswpout: u64,
    /// `written_back_pages` by its name in vmstat.
    pub zswpwb: u64,
    /// Pages read from devices.
    pub pswpin: u64,
    /// Pages written to devices.
    pub pswpout: u64,
    /// The pool by the names of zram.
    pub mm_stat: MmStat,
    /// The pool's share of the budget as it was asked for: `auto`, or a part in percent.
    pub pool_share: String,
    /// Gauge: the pool's share in percent of the budget.
    pub pool_share_percent: f64,
    /// The pool's allocator.
    pub pool_allocator: String,
    /// The compressor of pages that are stored now.
    pub compressor: String,
    /// The devices, highest priority first.
    pub devices: Vec<DeviceFigures>,
    /// The reserve, from which buffers of reads come.
    pub reserve: ReserveFigures,
    /// The readers of each device that there ever was, in the order in which these came.
    pub readers: Vec<LaneFigures>,
    /// Bytes by which tables and lists of the engine have grown, by their names in `growth.rs`.
    pub growth: BTreeMap<String, u64>,
    /// The groups, each after the group above it; the first is the run itself.
    pub groups: Vec<GroupFigures>,
    /// The last swapoff; null: there was none.
    pub swapoff: Option<SwapoffProgress>,
    /// The last detach; null: there was none.
    pub detach: Option<DetachProgress>,
    /// Load control as a whole.
    pub load_control: LoadFigures,
    /// Times from fault messages to installed pages.
    pub fault_latency: FaultLatency,
    /// Times for which programs were stopped to be attached to.
    pub attach_stop: HistogramSnapshot,
    /// The processes with an agent.
    pub processes: Vec<ProcessFigures>,
    /// The processes without an agent.
    pub unmanaged: Vec<UnmanagedFigures>,
}

/// The pool by the names of zram's mm_stat (Documentation/admin-guide/blockdev/zram.rst).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MmStat {
    /// Gauge: bytes that the stored pages had.
    pub orig_data_size: u64,
    /// Gauge: bytes that they have compressed.
    pub compr_data_size: u64,
    /// Gauge: bytes of memory that the pool takes.
    pub mem_used_total: u64,
    /// The most bytes that it may take.
    pub mem_limit: u64,
    /// The most bytes that it has taken.
    pub mem_used_max: u64,
    /// Gauge: pages that are one word repeated.
    pub same_pages: u64,
    /// Pages of memory that compaction gave back.
    pub pages_compacted: u64,
    /// Gauge: pages that do not compress.
    pub huge_pages: u64,
    /// Pages that did not compress when they were evicted.
    pub huge_pages_since: u64,
}

/// The reserve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReserveFigures {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Gauge: bytes in use.
    pub used_bytes: u64,
    /// The most bytes that were in use.
    pub peak_bytes: u64,
    /// Buffers that it could not give.
    pub refused: u64,
}

/// The readers of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneFigures {
    /// Gauge: reads under way.
    pub in_flight: u32,
    /// Gauge: reads that wait for a reader.
    pub waiting: u64,
    /// Gauge: microseconds that a read takes.
    pub latency_us: u64,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceFigures {
    /// Its name.
    pub name: String,
    /// Devices of higher priority are used first.
    pub priority: i32,
    /// It is being emptied and takes no more pages.
    pub draining: bool,
    /// Gauge: bytes of slots in use.
    pub used_bytes: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its file system ran out of room.
    pub out_of_room: bool,
    /// It gets no more writes after write errors.
    pub latched_off: bool,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed, lack of room not counted.
    pub write_errors: u64,
    /// Gauge: compressed pages that lie there, packed together.
    pub packed_pages: u64,
    /// Gauge: bytes that these take without the holes that others left.
    pub packed_bytes: u64,
    /// Gauge: bytes of slots in which these lie, holes included.
    pub packed_slots_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Further remarks on its state; null: there are none.
    pub note: Option<String>,
    /// Connections of a device on the network.
    pub connections: Vec<ConnectionStatus>,
}

/// Times of faults by where the page came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FaultLatency {
    /// First touch or evicted zeros.
    pub zero: HistogramSnapshot,
    /// Staged pages.
    pub staged: HistogramSnapshot,
    /// Pages from the pool.
    pub pool: HistogramSnapshot,
    /// Pages from devices.
    pub device: HistogramSnapshot,
}

/// A process with an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessFigures {
    /// Its number in the run's pid namespace.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Its memory is managed.
    pub managed: bool,
    /// It was forked from a managed process.
    pub forked: bool,
    /// It waits for its turn.
    pub held: bool,
    /// Milliseconds that it has waited for its turn without a break.
    pub waiting_ms: u64,
    /// Milliseconds that it has waited for turns in all.
    pub waited_ms: u64,
    /// Gauge: pages believed resident.
    pub resident_pages: u64,
    /// Gauge: pages staged.
    pub staged_pages: u64,
    /// Gauges: entries of its lists, staging batches being filled, faults that wait.
    pub queues: [u64; 3],
    /// Gauge: pages that could not be moved when they were tried last.
    pub unmovable_pages: u64,
    /// Gauge: pages that relatives share.
    pub shared_pages: u64,
}

/// A process without an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnmanagedFigures {
    /// Its number in the run's pid namespace.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Why it has no agent, in words.
    pub why: String,
    /// Gauge: bytes of its anonymous memory.
    pub anonymous_bytes: u64,
    /// The most bytes of anonymous memory that were seen.
    pub peak_anonymous_bytes: u64,
    /// It still runs.
    pub running: bool,
}

/// A group of processes, or of the files of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupFigures {
    /// Its path; `/` is the run itself.
    pub name: String,
    /// Gauge: bytes of memory in use.
    pub ram_bytes: u64,
    /// The most bytes that were in use.
    pub ram_peak_bytes: u64,
    /// Its limit in bytes; null: it has none of its own.
    pub ram_limit_bytes: Option<u64>,
    /// Gauge: bytes of its evicted pages.
    pub swapped_bytes: u64,
    /// Its processes, by their numbers in the run's pid namespace.
    pub processes: Vec<u32>,
    /// Of a mount: gauge, files of which something is known. Null: it is a group of processes.
    pub files: Option<u64>,
}

/// A swapoff, under way or over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SwapoffProgress {
    /// The device's name.
    pub device: String,
    /// Pages that lay there when it began.
    pub pages: u64,
    /// Gauge: pages that lie there still.
    pub pages_left: u64,
    /// It is under way.
    pub running: bool,
    /// Why the device was not let go; null: it was, or may be.
    pub error: Option<String>,
}
