//! Tables in the form of the five documents that describe the benefit of uswap for user space, with
//! uswap's figures beside the kernel's. Only tables with samples appear.

use crate::report::results::{CellSample, Results};
use crate::report::{fractions_of, head, percentiles, put, table};

/// All tables for which there are samples.
pub fn references(text: &mut String, results: &Results) {
    let parts: [fn(&Results) -> String; 7] =
        [throughput, fault_latency, build_by_jobs, zipf_bandwidth, zero_filled, page_fault_test, soft_faults];
    let written: Vec<String> = parts.iter().map(|part| part(results)).filter(|part| !part.is_empty()).collect();
    if !written.is_empty() {
        put!(text, "## In the shape of the reference documents\n");
        written.iter().for_each(|part| text.push_str(part));
    }
}

fn limited(results: &Results) -> impl Iterator<Item = &String> {
    results.systems.iter().filter(|name| *name != "none")
}

/// Pages of 4 KiB that were swapped out: into a pool, or to a device if those are more. A page that
/// a pool writes back to a device counts once.
fn out(sample: &CellSample) -> u64 {
    sample.pswpout.max(sample.zswpout)
}

/// 2017: throughput of swap-out, 32 processes that write memory in order.
fn throughput(results: &Results) -> String {
    let mut rows = Vec::new();
    for fraction in fractions_of(results, "fill-p32") {
        for system in limited(results) {
            let rate = |sample: &CellSample| out(sample) as f64 * 4.0 / sample.wall_seconds.max(1e-9);
            if let Some(rate) = results.median("fill-p32", system, fraction, rate) {
                rows.push(vec![format!("{fraction} %"), system.clone(), format!("{rate:.0} kB/sec")]);
            }
        }
    }
    let mut text = String::new();
    if !rows.is_empty() {
        put!(text, "### Swap-out throughput, 32 processes writing in order (2017)\n");
        table(&mut text, &head(&["fraction", "system", "swapped out"]), &rows);
    }
    text
}

/// 2017: latency of a page fault, eight threads that access twice the RAM at random.
fn fault_latency(results: &Results) -> String {
    let mut rows = Vec::new();
    for system in limited(results) {
        let mut values = Vec::new();
        for at in 0..3 {
            let value = |sample: &CellSample| percentiles(&sample.told["slow"]).map_or(f64::NAN, |three| three[at]);
            values.push(results.median("random-t8", system, 50, value).filter(|value| value.is_finite()));
        }
        if values.iter().any(Option::is_some) {
            let shown = values.iter().map(|value| value.map_or("-".into(), |us| format!("{us:.0} usec")));
            rows.push(std::iter::once(system.clone()).chain(shown).collect());
        }
    }
    let mut text = String::new();
    if !rows.is_empty() {
        put!(text, "### Page-fault latency, 8 threads at random over twice the limit (2017)\n");
        put!(text, "As the threads see it: accesses that took more than 2 us.\n");
        table(&mut text, &head(&["system", "median", "p99", "p999"]), &rows);
    }
    text
}

/// The figures of the build for one system and number of jobs.
struct Build {
    jobs: usize,
    pages: [u64; 3],
    seconds: f64,
    processor: f64,
}

fn build(results: &Results, system: &str, jobs: usize, fraction: u32) -> Option<Build> {
    let name = format!("cbuild-j{jobs}");
    let median = |what: fn(&CellSample) -> f64| results.median(&name, system, fraction, what);
    let pages = [median(|s| s.pswpin as f64)?, median(|s| s.pswpout as f64)?, median(|s| s.major_faults as f64)?];
    let processor = median(|s| (s.user_seconds + s.system_seconds) / s.wall_seconds.max(1e-9) * 100.0)?;
    Some(Build { jobs, pages: pages.map(|n| n as u64), seconds: median(|s| s.seconds)?, processor })
}

/// 2013, zswap: the build by number of jobs: I/O, run time, CPU; each system beside the kernel with
/// a swap file.
fn build_by_jobs(results: &Results) -> String {
    let mut jobs = crate::workload::JOBS;
    jobs.sort_unstable();
    let mut fractions: Vec<u32> = jobs.iter().flat_map(|n| fractions_of(results, &format!("cbuild-j{n}"))).collect();
    fractions.sort_unstable();
    fractions.dedup();
    let mut text = String::new();
    for fraction in fractions {
        for system in limited(results).filter(|name| *name != "kernel-swapfile") {
            build_table(&mut text, results, "kernel-swapfile", system, fraction);
        }
    }
    text
}

/// The build's tables of one system beside another one, where both ran.
pub fn build_table(text: &mut String, results: &Results, base: &str, system: &str, fraction: u32) {
    let mut jobs = crate::workload::JOBS;
    jobs.sort_unstable();
    let builds = |system: &str| -> Vec<Build> {
        jobs.iter().filter_map(|&jobs| build(results, system, jobs, fraction)).collect()
    };
    let (base_builds, others) = (builds(base), builds(system));
    let pairs: Vec<(&Build, &Build)> =
        base_builds.iter().filter_map(|a| Some((a, others.iter().find(|b| b.jobs == a.jobs)?))).collect();
    if !pairs.is_empty() {
        put!(text, "### C build at {fraction} %: {base} (base) and {system} (zswap, 2013)\n");
        let about = results.workloads.iter().find(|workload| workload.name.starts_with("cbuild-j"));
        let about = about.map_or("", |workload| workload.about.as_str());
        put!(text, "{about} and so on; one limit for all N.\n");
        build_tables(text, system, &pairs, results.machine.processors);
    }
}

fn change(base: f64, new: f64) -> String {
    if base > 0.0 { format!("{:+.0}%", (new / base - 1.0) * 100.0) } else { "-".into() }
}

fn build_tables(text: &mut String, system: &str, pairs: &[(&Build, &Build)], processors: usize) {
    put!(text, "I/O (in pages)\n");
    let columns =
        ["N", "pswpin", "pswpout", "majflt", "I/O sum", "pswpin", "pswpout", "majflt", "I/O sum", "%I/O", "MB"];
    let mut columns = head(&columns);
    columns[5] = format!("{system}: pswpin");
    columns[1] = "base: pswpin".into();
    let io = |(a, b): &(&Build, &Build)| {
        let (old, new): (u64, u64) = (a.pages.iter().sum(), b.pages.iter().sum());
        let mut row = vec![a.jobs.to_string()];
        row.extend(a.pages.iter().chain([&old]).chain(&b.pages).chain([&new]).map(ToString::to_string));
        row.push(change(old as f64, new as f64));
        row.push(format!("{:.0}", (old as f64 - new as f64) * 4096.0 / 1e6));
        row
    };
    table(text, &columns, &pairs.iter().map(io).collect::<Vec<_>>());
    let two = |what: fn(&Build) -> f64| -> Vec<Vec<String>> {
        let row = |(a, b): &(&Build, &Build)| {
            let (old, new) = (what(a), what(b));
            vec![a.jobs.to_string(), format!("{old:.1}"), format!("{new:.1}"), change(old, new)]
        };
        pairs.iter().map(row).collect()
    };
    put!(text, "Runtime (in seconds)\n");
    table(text, &head(&["N", "base", system, "%change"]), &two(|build| build.seconds));
    put!(text, "%CPU utilization (out of {}% on {processors} cpus)\n", processors * 100);
    table(text, &head(&["N", "base", system, "%change"]), &two(|build| build.processor));
}

/// 2023: bandwidth of mixed reads and writes by distribution.
fn zipf_bandwidth(results: &Results) -> String {
    let mut rows = Vec::new();
    for (workload, name) in [("zipf-1.2", "zipf:1.2"), ("zipf-0.5", "zipf:0.5"), ("random", "random")] {
        for fraction in fractions_of(results, workload) {
            for system in limited(results) {
                let told = |name: &'static str| move |sample: &CellSample| sample.told[name].as_f64().unwrap_or(0.0);
                let read = results.median(workload, system, fraction, told("read_mib_per_second"));
                let write = results.median(workload, system, fraction, told("write_mib_per_second"));
                if let (Some(read), Some(write)) = (read, write) {
                    let both = format!("{read:.0}MiB/s / {write:.0}MiB/s");
                    rows.push(vec![name.into(), format!("{fraction} %"), system.clone(), both]);
                }
            }
        }
    }
    let mut text = String::new();
    if !rows.is_empty() {
        put!(text, "### Random reads and writes by distribution (2023)\n");
        table(&mut text, &head(&["RANDOM", "fraction", "system", "(R/W, bw)"]), &rows);
    }
    text
}

/// 2023: zero-filled memory swapped out and in again.
fn zero_filled(results: &Results) -> String {
    let mut rows = Vec::new();
    for fraction in fractions_of(results, "zero") {
        for system in limited(results) {
            let us = |name: &'static str| move |sample: &CellSample| sample.told[name].as_f64().unwrap_or(0.0) * 1e6;
            let fill = results.median("zero", system, fraction, us("fill_seconds"));
            let read = results.median("zero", system, fraction, us("visit_seconds"));
            if let (Some(fill), Some(read)) = (fill, read) {
                let row = [format!("{fraction} %"), system.clone(), format!("{fill:.0} us"), format!("{read:.0} us")];
                rows.push(row.to_vec());
            }
        }
    }
    let mut text = String::new();
    if !rows.is_empty() {
        put!(text, "### Zero-filled memory: filled, then read back in order (2023)\n");
        table(&mut text, &head(&["fraction", "system", "out", "in"]), &rows);
    }
    text
}

/// 2013, thrash detection: `pft`, with percentages against the base; positive is better.
fn page_fault_test(results: &Results) -> String {
    let systems: Vec<&String> =
        results.systems.iter().filter(|s| results.good("pft-t1", s, 400).next().is_some()).collect();
    let mut rows = Vec::new();
    let figures = [
        ("User", "user_seconds", false),
        ("System", "system_seconds", false),
        ("Elapsed", "seconds", false),
        ("Faults/cpu", "faults_per_processor_second", true),
        ("Faults/sec", "faults_per_second", true),
    ];
    for (label, name, more_is_better) in figures {
        for threads in [1, 2, 4] {
            let workload = format!("pft-t{threads}");
            let value = |system: &str| {
                results.median(&workload, system, 400, |sample| sample.told[name].as_f64().unwrap_or(0.0))
            };
            let Some(base) = value("none") else { continue };
            let shown = systems.iter().map(|system| match value(system) {
                Some(value) => {
                    let better = if more_is_better { value / base - 1.0 } else { 1.0 - value / base };
                    format!("{value:.4} ({:6.2}%)", if base > 0.0 { better * 100.0 } else { 0.0 })
                }
                None => "-".into(),
            });
            rows.push([format!("{label} {threads}")].into_iter().chain(shown).collect());
        }
    }
    let mut text = String::new();
    if !rows.is_empty() {
        put!(text, "### Page-fault test far below the limit (pft, 2013)\n");
        put!(text, "In brackets what is gained against `none`.\n");
        let mut columns = vec![String::from("threads")];
        columns.extend(systems.into_iter().cloned());
        table(&mut text, &columns, &rows);
    }
    text
}

/// 2013: the cost of the age test, as the time that all threads together waited for soft faults,
/// beside the time of the run.
fn soft_faults(results: &Results) -> String {
    let waits = |sample: &CellSample| {
        let told = |name: &str| sample.fault_latency["staged"][name].as_f64().unwrap_or(0.0);
        (told("count"), told("count") * told("mean_ns") / 1e9)
    };
    let share = |sample: &CellSample| waits(sample).1 * 100.0 / sample.wall_seconds.max(1e-9);
    let mut rows = Vec::new();
    for workload in &results.workloads {
        for fraction in fractions_of(results, &workload.name) {
            for system in limited(results).filter(|name| name.starts_with("uswap")) {
                let value = |what: &dyn Fn(&CellSample) -> f64| results.median(&workload.name, system, fraction, what);
                let (Some(number), Some(share)) = (value(&|sample| waits(sample).0), value(&share)) else { continue };
                let seconds = value(&|sample| sample.wall_seconds).unwrap_or_default();
                let [fraction, run] = [format!("{fraction} %"), format!("{seconds:.2} s")];
                let [number, share] = [format!("{number:.0}"), format!("{share:.2} %")];
                rows.push(vec![workload.name.clone(), fraction, system.clone(), run, number, share]);
            }
        }
    }
    let mut text = String::new();
    if rows.iter().any(|row| row[4] != "0") {
        put!(text, "### Soft faults: touches of pages under the test of age\n");
        put!(
            text,
            "Time that all threads together waited for them, beside that of the run. `faults=fifo`: no policy.\n"
        );
        table(&mut text, &head(&["workload", "fraction", "system", "run", "soft faults", "of the run"]), &rows);
    }
    text
}
