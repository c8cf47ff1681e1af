//! What a run tells: the figures as JSON, and the summary line for people.

use serde_json::{Map, Value, json};
use uswap_core::size::human;

use crate::census::{self, Unmanaged};
use crate::latency::Latencies;
use crate::shared::Shared;

/// All figures of the run so far, by the kernel's names where it has one.
pub fn figures(shared: &Shared) -> Value {
    let store = shared.store.stats();
    let budget = &shared.budget;
    let mut all = Map::new();
    for (name, value) in shared.counters.snapshot() {
        all.insert(name.into(), value.into());
    }
    for (name, value) in [
        ("ram_bytes", (budget.usage().max(0) as u64) << 12),
        ("ram_peak_bytes", (budget.peak().max(0) as u64) << 12),
        ("ram_limit_bytes", (budget.limit() as u64) << 12),
        ("pool_bytes", store.pool_bytes),
        ("pool_limit_bytes", store.pool_limit_bytes),
        ("pool_stored_bytes", store.stored_bytes),
        ("stored_pages", store.stored_pages),
        ("same_filled_pages", store.same_filled_pages),
        ("reject_compress_poor", store.reject_compress_poor),
        ("pool_limit_hit", store.pool_limit_hit),
        ("written_back_pages", store.written_back_pages),
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
    all.insert("devices".into(), store.devices.iter().map(device).collect());
    all.insert("groups".into(), crate::group_orders::figures(shared));
    all.insert("swapoff".into(), shared.orders.swapoff_figures());
    all.insert("fault_latency".into(), latencies(&shared.latencies));
    let processes = shared.managed.lock().expect("managed");
    let list = processes.iter().map(|(pid, process)| {
        json!({ "pid": pid, "name": process.name, "managed": process.active, "forked": process.forked,
            "resident_pages": process.resident, "staged_pages": process.staged, "queues": process.queues,
            "unmovable_pages": process.set_aside[0], "shared_pages": process.set_aside[1] })
    });
    all.insert("processes".into(), list.collect());
    let unmanaged = shared.unmanaged.lock().expect("unmanaged");
    all.insert("unmanaged".into(), unmanaged.iter().map(unmanaged_program).collect());
    Value::Object(all)
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
    })
}

fn latencies(latencies: &Latencies) -> Value {
    let tiers = latencies.all().map(|(name, histogram)| {
        let s = histogram.snapshot();
        let figures = json!({
            "count": s.count, "mean_ns": s.mean_ns, "p50_ns": s.p50_ns, "p99_ns": s.p99_ns, "p999_ns": s.p999_ns,
            "max_ns": s.max_ns,
        });
        (name.to_string(), figures)
    });
    Value::Object(tiers.collect())
}

/// One line for people.
pub fn summary(shared: &Shared) -> String {
    let budget = &shared.budget;
    let (peak, limit) = (budget.peak().max(0), budget.limit());
    let begin = format!("uswap: peak {} of {}", human((peak as u64) << 12), human((limit as u64) << 12));
    let unmanaged = census::in_words(&shared.unmanaged.lock().expect("unmanaged"));
    let unmanaged = unmanaged.map(|programs| format!("; unmanaged: {programs}")).unwrap_or_default();
    let middle = match shared.counters.managed_processes.get() {
        0 if peak > limit => "nothing could be managed".into(),
        0 => "memory was never short, nothing was managed".into(),
        _ => traffic(shared),
    };
    format!("{begin}; {middle}{unmanaged}")
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
