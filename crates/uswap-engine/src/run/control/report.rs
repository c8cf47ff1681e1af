//! What a run tells: the figures as JSON, and the summary line for people.

use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Map, Value, json};
use uswap_core::util::growth;
use uswap_core::util::size::human;
use uswap_store::StoreStats;

use crate::pager::latency::Latencies;
use crate::remote::Shared;
use crate::run::measure::unmanaged::{self, Unmanaged};

/// All figures of the run so far, by the kernel's names where it has one.
pub fn figures(shared: &Shared) -> Value {
    let store = with_zeros(shared.store.stats(), shared.zero_pages.get());
    let budget = &shared.budget;
    let mut all = Map::new();
    for (name, value) in shared.counters.snapshot() {
        all.insert(name.into(), value.into());
    }
    for (name, value) in [
        ("ram_bytes", (budget.usage().max(0) as u64) << 12),
        ("ram_peak_bytes", (budget.peak().max(0) as u64) << 12),
        ("shared_memory_bytes", shared.of_memory.run.shared_memory.load(Relaxed)),
        ("ram_limit_bytes", (budget.limit() as u64) << 12),
        ("pool_bytes", store.pool_bytes),
        ("pool_limit_bytes", store.pool_limit_bytes),
        ("pool_stored_bytes", store.stored_bytes),
        ("stored_pages", store.stored_pages),
        ("same_filled_pages", store.same_filled_pages),
        ("stored_incompressible_pages", store.stored_incompressible_pages),
        ("pool_total_size", store.pool_bytes),
        ("pool_pages", store.pool_bytes >> 12),
        ("duplicate_entry", 0),
        ("pool_hole_bytes", store.hole_bytes),
        ("reject_compress_poor", store.reject_compress_poor),
        ("reject_compress_fail", store.reject_compress_fail),
        ("reject_alloc_fail", store.reject_alloc_fail),
        ("reject_kmemcache_fail", store.reject_kmemcache_fail),
        ("decompress_fail", store.decompress_fail),
        ("pool_limit_hit", store.pool_limit_hit),
        ("written_back_pages", store.written_back_pages),
        ("spilled_pages", store.spilled_pages),
        ("repacked_pages", store.repacked_pages),
        ("reject_reclaim_fail", store.reject_reclaim_fail),
        ("put_full", store.put_full),
        ("zswpin", store.zswpin),
        ("zswpout", store.zswpout),
        ("zswpwb", store.zswpwb),
        ("pswpin", store.pswpin),
        ("pswpout", store.pswpout),
    ] {
        all.insert(name.into(), value.into());
    }
    all.insert("mm_stat".into(), mm_stat(&store));
    all.insert("pool_share".into(), shared.pool_share.asked().to_string().into());
    all.insert("pool_share_percent".into(), shared.pool_share.now().into());
    all.insert("pool_allocator".into(), store.allocator.clone().into());
    all.insert("compressor".into(), store.compressor.clone().into());
    all.insert("devices".into(), store.devices.iter().map(device).collect());
    all.insert("reserve".into(), reserve(shared));
    all.insert("readers".into(), readers(shared));
    all.insert("growth".into(), Value::Object(growth::figures().map(|(name, n)| (name.into(), n.into())).collect()));
    all.insert("groups".into(), crate::run::control::group_orders::figures(shared));
    all.insert("swapoff".into(), shared.of_memory.run.orders.swapoff_figures());
    all.insert("detach".into(), shared.of_memory.leaving.figures());
    all.insert("load_control".into(), shared.load.figures());
    all.insert("fault_latency".into(), latencies(&shared.latencies));
    all.insert("attach_stop".into(), histogram(&shared.of_memory.attach_stops));
    let processes = shared.managed.all();
    let list = processes.iter().map(|(pid, process)| {
        let (held, waiting, waited) = shared.load.figures_of(process.owner, process.space);
        json!({ "pid": pid, "held": held, "waiting_ms": waiting, "waited_ms": waited, "name": process.name, "managed": process.active, "forked": process.forked,
            "resident_pages": process.resident, "staged_pages": process.staged, "queues": process.queues,
            "unmovable_pages": process.set_aside[0], "shared_pages": process.set_aside[1] })
    });
    all.insert("processes".into(), list.collect());
    let unmanaged = shared.of_memory.run.unmanaged.lock().expect("unmanaged");
    all.insert("unmanaged".into(), unmanaged.iter().map(unmanaged_program).collect());
    Value::Object(all)
}

/// Evicted pages of zeros are known to the page tables only; they are same-filled pages like others that take no memory.
fn with_zeros(mut store: StoreStats, zeros: u64) -> StoreStats {
    store.same_filled_pages += zeros;
    store.stored_pages += zeros;
    store
}

/// What is in memory, by the names of zram's mm_stat (Documentation/admin-guide/blockdev/zram.rst).
fn mm_stat(store: &StoreStats) -> Value {
    json!({
        "orig_data_size": store.stored_pages << 12,
        "compr_data_size": store.stored_bytes,
        "mem_used_total": store.pool_bytes,
        "mem_limit": store.pool_limit_bytes,
        "mem_used_max": store.pool_max_bytes,
        "same_pages": store.same_filled_pages,
        "pages_compacted": store.pages_compacted,
        "huge_pages": store.stored_incompressible_pages,
        "huge_pages_since": store.reject_compress_poor,
    })
}

fn reserve(shared: &Shared) -> Value {
    let reserve = shared.readers.reserve().usage();
    let bytes = |pages: u32| u64::from(pages) << 12;
    json!({ "size_bytes": bytes(reserve.total), "used_bytes": bytes(reserve.used), "peak_bytes": bytes(reserve.peak),
        "refused": reserve.refused })
}

/// One for each device that there ever was, in order.
fn readers(shared: &Shared) -> Value {
    let lanes = shared.readers.in_flight();
    let lane = |(in_flight, waiting, latency): (u32, usize, std::time::Duration)| json!({ "in_flight": in_flight, "waiting": waiting, "latency_us": latency.as_micros() as u64 });
    lanes.map(lane).collect()
}

fn unmanaged_program(program: &Unmanaged) -> Value {
    json!({
        "pid": program.pid,
        "name": program.name,
        "why": program.why.to_string(),
        "anonymous_bytes": program.pages << 12,
        "peak_anonymous_bytes": program.peak_pages << 12,
        "running": program.running,
    })
}

fn device(device: &uswap_store::DeviceStatus) -> Value {
    json!({
        "name": device.name,
        "priority": device.priority,
        "draining": device.draining,
        "used_bytes": device.slots_used << 12,
        "size_bytes": device.slots_total << 12,
        "out_of_room": device.out_of_room,
        "latched_off": device.latched_off,
        "read_errors": device.read_errors,
        "write_errors": device.write_errors,
        "packed_pages": device.packed_objects,
        "packed_bytes": device.packed_bytes,
        "packed_slots_bytes": device.packed_slots << 12,
        "read_bytes": device.read_bytes,
        "written_bytes": device.written_bytes,
        "note": device.note,
        "connections": device.connections,
    })
}

fn latencies(latencies: &Latencies) -> Value {
    let tiers = latencies.all().map(|(name, histogram)| (name.to_string(), self::histogram(histogram)));
    Value::Object(tiers.collect())
}

fn histogram(histogram: &uswap_core::Histogram) -> Value {
    let s = histogram.snapshot();
    json!({
        "count": s.count, "mean_ns": s.mean_ns, "p50_ns": s.p50_ns, "p99_ns": s.p99_ns, "p999_ns": s.p999_ns,
        "max_ns": s.max_ns,
    })
}

/// One line for people. `end`: what is to be said of the command's end.
pub fn summary(shared: &Shared, end: Option<String>) -> String {
    let budget = &shared.budget;
    let (peak, limit) = (budget.peak().max(0), budget.limit());
    let begin = format!("uswap: peak {} of {}", human((peak as u64) << 12), human((limit as u64) << 12));
    let unmanaged = unmanaged::in_words(&shared.of_memory.run.unmanaged.lock().expect("unmanaged"));
    let unmanaged = unmanaged.map(|programs| format!("; unmanaged: {programs}")).unwrap_or_default();
    let middle = match shared.counters.managed_processes.get() {
        0 if peak > limit => "nothing could be managed".into(),
        0 => "memory was never short, nothing was managed".into(),
        _ => traffic(shared),
    };
    let turns = shared.load.in_words().map(|words| format!("; {words}")).unwrap_or_default();
    let unevicted = match shared.of_memory.run.shared_memory.load(Relaxed) {
        0 => String::new(),
        bytes => format!("; {} of shared memory, never evicted", human(bytes)),
    };
    let end = end.map(|words| format!("; {words}")).unwrap_or_default();
    format!("{begin}; {middle}{turns}{unmanaged}{unevicted}{end}")
}

/// What went out and came back.
fn traffic(shared: &Shared) -> String {
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
