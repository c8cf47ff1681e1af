//! The reports of a run: its figures, and the summary line for people.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use uswap_core::util::growth;
use uswap_core::util::size::human;
use uswap_store::{DeviceStatus, StoreStats};

use crate::control::group_orders;
use crate::control::protocol::status::{
    DeviceFigures, FaultLatency, LaneFigures, MmStat, ProcessFigures, ReserveFigures, RunFigures, UnmanagedFigures,
};
use crate::measure::unmanaged::{self, Unmanaged};
use crate::shared::RunShared;
use uswap_pager::accounting::budget::Budget;
use uswap_pager::context::ManagedProcess;
use uswap_pager::latency::Latencies;
use uswap_remote::EngineContext;

/// All figures of the run so far, by the kernel's names where it has one.
pub fn figures(shared: &EngineContext) -> RunFigures {
    let store = with_zeros(shared.store.stats(), shared.gauges.zero_pages.get());
    let run = RunShared::of(shared);
    let of_run = RunFigures {
        counters: shared.counters.snapshot(),
        shared_memory_bytes: run.shared_memory.load(Relaxed),
        pool_share: shared.pool_share.asked().to_string(),
        pool_share_percent: shared.pool_share.now(),
        reserve: reserve(shared),
        readers: readers(shared),
        growth: growth::figures().map(|(name, bytes)| (name.to_owned(), bytes)).collect(),
        groups: group_orders::figures(shared),
        swapoff: run.orders.swapoff.figures(),
        detach: shared.of_memory.leaving.figures(),
        load_control: shared.load.figures(),
        fault_latency: latencies(&shared.latencies),
        attach_stop: shared.of_memory.attach_stops.snapshot(),
        processes: processes(shared),
        unmanaged: run.unmanaged.lock().expect("unmanaged").iter().map(unmanaged_program).collect(),
        ..of_budget(&shared.budget)
    };
    with_store(of_run, store)
}

fn of_budget(budget: &Budget) -> RunFigures {
    RunFigures {
        ram_bytes: (budget.usage().max(0) as u64) << 12,
        ram_peak_bytes: (budget.peak().max(0) as u64) << 12,
        ram_limit_bytes: (budget.limit() as u64) << 12,
        ..RunFigures::default()
    }
}

/// Adds the figures of the store.
pub fn with_store(figures: RunFigures, store: StoreStats) -> RunFigures {
    RunFigures {
        pool_bytes: store.pool_bytes,
        pool_limit_bytes: store.pool_limit_bytes,
        pool_stored_bytes: store.stored_bytes,
        stored_pages: store.stored_pages,
        same_filled_pages: store.same_filled_pages,
        stored_incompressible_pages: store.stored_incompressible_pages,
        pool_total_size: store.pool_bytes,
        pool_pages: store.pool_bytes >> 12,
        duplicate_entry: 0,
        pool_hole_bytes: store.hole_bytes,
        reject_compress_poor: store.reject_compress_poor,
        reject_compress_fail: store.reject_compress_fail,
        reject_alloc_fail: store.reject_alloc_fail,
        reject_kmemcache_fail: store.reject_kmemcache_fail,
        decompress_fail: store.decompress_fail,
        pool_limit_hit: store.pool_limit_hit,
        written_back_pages: store.written_back_pages,
        spilled_pages: store.spilled_pages,
        repacked_pages: store.repacked_pages,
        reject_reclaim_fail: store.reject_reclaim_fail,
        put_full: store.put_full,
        zswpin: store.zswpin,
        zswpout: store.zswpout,
        zswpwb: store.zswpwb,
        pswpin: store.pswpin,
        pswpout: store.pswpout,
        mm_stat: mm_stat(&store),
        devices: store.devices.iter().map(device).collect(),
        pool_allocator: store.allocator,
        compressor: store.compressor,
        ..figures
    }
}

fn processes(shared: &EngineContext) -> Vec<ProcessFigures> {
    let of_process = |(pid, process): (&u32, &ManagedProcess)| {
        let (held, waiting_ms, waited_ms) = shared.load.figures_of(process.owner, process.space);
        let [unmovable_pages, shared_pages] = process.set_aside.map(|pages| pages as u64);
        ProcessFigures {
            pid: *pid,
            name: process.name.clone(),
            managed: process.active,
            forked: process.forked,
            held,
            waiting_ms,
            waited_ms,
            resident_pages: process.resident,
            staged_pages: process.staged,
            queues: process.queues.map(|entries| entries as u64),
            unmovable_pages,
            shared_pages,
        }
    };
    shared.managed.all().iter().map(of_process).collect()
}

/// Adds evicted pages of zeros, which only the page tables know; they are same-filled pages that
/// take no memory, like those of the store.
fn with_zeros(mut store: StoreStats, zeros: u64) -> StoreStats {
    store.same_filled_pages += zeros;
    store.stored_pages += zeros;
    store
}

fn mm_stat(store: &StoreStats) -> MmStat {
    MmStat {
        orig_data_size: store.stored_pages << 12,
        compr_data_size: store.stored_bytes,
        mem_used_total: store.pool_bytes,
        mem_limit: store.pool_limit_bytes,
        mem_used_max: store.pool_max_bytes,
        same_pages: store.same_filled_pages,
        pages_compacted: store.pages_compacted,
        huge_pages: store.stored_incompressible_pages,
        huge_pages_since: store.reject_compress_poor,
    }
}

fn reserve(shared: &EngineContext) -> ReserveFigures {
    let reserve = shared.readers.reserve().usage();
    let bytes = |pages: u32| u64::from(pages) << 12;
    ReserveFigures {
        size_bytes: bytes(reserve.total),
        used_bytes: bytes(reserve.used),
        peak_bytes: bytes(reserve.peak),
        refused: reserve.refused,
    }
}

/// Figures of the readers of every device that there ever was, in order.
fn readers(shared: &EngineContext) -> Vec<LaneFigures> {
    let lane = |(in_flight, waiting, latency): (u32, usize, Duration)| LaneFigures {
        in_flight,
        waiting: waiting as u64,
        latency_us: latency.as_micros() as u64,
    };
    shared.readers.in_flight().map(lane).collect()
}

fn unmanaged_program(program: &Unmanaged) -> UnmanagedFigures {
    let bytes = |pages: i64| (pages.max(0) as u64) << 12;
    UnmanagedFigures {
        pid: program.pid,
        name: program.name.clone(),
        why: program.why.to_string(),
        anonymous_bytes: bytes(program.pages),
        peak_anonymous_bytes: bytes(program.peak_pages),
        running: program.running,
    }
}

fn device(device: &DeviceStatus) -> DeviceFigures {
    DeviceFigures {
        name: device.name.clone(),
        priority: device.priority,
        draining: device.draining,
        used_bytes: device.slots_used << 12,
        size_bytes: device.slots_total << 12,
        out_of_room: device.out_of_room,
        latched_off: device.latched_off,
        read_errors: device.read_errors,
        write_errors: device.write_errors,
        packed_pages: device.packed_objects,
        packed_bytes: device.packed_bytes,
        packed_slots_bytes: device.packed_slots << 12,
        read_bytes: device.read_bytes,
        written_bytes: device.written_bytes,
        note: device.note.clone(),
        connections: device.connections.clone(),
    }
}

fn latencies(latencies: &Latencies) -> FaultLatency {
    let [zero, staged, pool, device] = latencies.snapshots();
    FaultLatency { zero, staged, pool, device }
}

/// The summary line for people. `end`: a remark about the command's end.
pub fn summary(shared: &EngineContext, end: Option<String>) -> String {
    let budget = &shared.budget;
    let (peak, limit) = (budget.peak().max(0), budget.limit());
    let begin = format!("uswap: peak {} of {}", human((peak as u64) << 12), human((limit as u64) << 12));
    let unmanaged = unmanaged::in_words(&RunShared::of(shared).unmanaged.lock().expect("unmanaged"));
    let unmanaged = unmanaged.map(|programs| format!("; unmanaged: {programs}")).unwrap_or_default();
    let middle = match shared.counters.managed_processes.get() {
        0 if peak > limit => "nothing could be managed".into(),
        0 => "memory was never short, nothing was managed".into(),
        _ => traffic(shared),
    };
    let turns = shared.load.in_words().map(|words| format!("; {words}")).unwrap_or_default();
    let unevicted = match RunShared::of(shared).shared_memory.load(Relaxed) {
        0 => String::new(),
        bytes => format!("; {} of shared memory, never evicted", human(bytes)),
    };
    let end = end.map(|words| format!("; {words}")).unwrap_or_default();
    format!("{begin}; {middle}{turns}{unmanaged}{unevicted}{end}")
}

/// The amounts of evicted and returned memory, in words.
fn traffic(shared: &EngineContext) -> String {
    let store = shared.store.stats();
    let counters = &shared.counters;
    format!(
        "{} evicted, {} brought back ({} from disk), {} soft faults; pool {} for {} pages; {} written to disk",
        human(counters.pgsteal.get() << 12),
        human((store.zswpin + store.pswpin) << 12),
        human(store.pswpin << 12),
        counters.soft_faults.get(),
        human(store.pool_bytes),
        store.stored_pages,
        human(store.pswpout << 12),
    )
}
