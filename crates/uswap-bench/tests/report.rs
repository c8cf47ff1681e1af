//! The report from given results, compared word by word with the one that is kept beside this test.
//!
//! After a wanted change of shape:
//! `USWAP_BENCH_GOLDEN=write cargo test -p uswap-bench --test report`.

use serde_json::json;
use uswap_bench::measure::machine::MachineInfo;
use uswap_bench::report::results::{CellOutcome, CellSample, Figure, Results, WorkloadInfo};
use uswap_bench::report::{self, plots};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/report.md");

fn histogram(p50_us: u64) -> serde_json::Value {
    json!({ "count": 1000, "p50_ns": p50_us * 1000, "p99_ns": p50_us * 10_000, "p999_ns": p50_us * 100_000 })
}

/// A good sample: everything follows from the seconds.
fn good(workload: &str, system: &str, fraction: u32, repetition: u32, seconds: f64) -> CellSample {
    let limited = fraction > 0;
    let pages = if limited { (seconds * 1000.0) as u64 } else { 0 };
    let staged =
        json!({ "count": 10_000, "mean_ns": seconds * 1000.0, "p50_ns": 8000, "p99_ns": 90_000, "p999_ns": 900_000 });
    CellSample {
        seconds,
        wall_seconds: seconds * 2.0,
        user_seconds: seconds,
        system_seconds: seconds / 2.0,
        limit_bytes: if limited { u64::from(fraction) << 20 } else { 0 },
        peak_bytes: if limited { u64::from(fraction) << 20 } else { 100 << 20 },
        outside_bytes: if system.starts_with("kernel-zram") { u64::from(fraction) << 18 } else { 0 },
        pswpin: pages,
        pswpout: 2 * pages,
        major_faults: 3 * pages,
        compression_ratio: if limited { 2.5 } else { 0.0 },
        told: json!({
            "answer": "whole", "fill_seconds": seconds / 4.0, "visit_seconds": seconds / 2.0, "seconds": seconds,
            "read_mib_per_second": 100.0 / seconds, "write_mib_per_second": 50.0 / seconds,
            "latency": histogram(1), "slow": histogram(seconds as u64), "user_seconds": 0.5, "system_seconds": 1.5,
            "faults_per_second": 1e6 / seconds, "faults_per_processor_second": 2e6 / seconds,
        }),
        fault_latency: if system == "uswap" { json!({ "pool": histogram(9), "staged": staged }) } else { json!(null) },
        ..CellSample::of(workload, system, fraction, repetition, CellOutcome::Ok)
    }
}

fn samples() -> Vec<CellSample> {
    let mut samples = Vec::new();
    for repetition in 1..=3 {
        let shift = f64::from(repetition) / 10.0;
        for workload in ["zipf-1.2", "zero", "random-t8", "fill-p32", "cbuild-j8"] {
            samples.push(good(workload, "none", 0, repetition, 1.0 + shift));
            for (system, slow) in [("uswap", 8.0), ("kernel-swapfile", 16.0), ("kernel-zram:lz4", 4.0)] {
                samples.push(good(workload, system, 50, repetition, slow + shift));
            }
        }
    }
    samples.push(good("zipf-1.2", "uswap", 25, 1, 12.0));
    for (threads, name) in [(1, "pft-t1"), (2, "pft-t2")] {
        samples.push(good(name, "none", 0, 1, 4.0 / f64::from(threads)));
        samples.push(good(name, "uswap", 400, 1, 4.4 / f64::from(threads)));
    }
    for (system, outcome) in [
        ("uswap", CellOutcome::OomKilled("killed by signal 9".into())),
        ("kernel-swapfile", CellOutcome::TimedOut("more than 20 s".into())),
        ("kernel-zram:lz4", CellOutcome::Wrong("\"41\" instead of \"42\"".into())),
    ] {
        samples.push(CellSample::of("sort", system, 25, 1, outcome));
    }
    samples.push(CellSample::of("java", "none", 0, 1, CellOutcome::Skipped("not installed: java".into())));
    samples.push(CellSample::of("seq", "none", 0, 1, CellOutcome::Cut("the 25 minutes were over".into())));
    samples
}

fn results() -> Results {
    let names = ["zipf-1.2", "zero", "random-t8", "fill-p32", "cbuild-j8", "pft-t1", "pft-t2", "sort", "java", "seq"];
    let info =
        |name: &&str| WorkloadInfo { name: (*name).into(), about: format!("about {name}"), peak_bytes: 100 << 20 };
    let figure = |name: &str, value, unit: &str, at_most| Figure {
        name: name.into(),
        value,
        unit: unit.into(),
        at_most,
        detail: "detail".into(),
    };
    Results {
        machine: MachineInfo {
            processor: "Example CPU".into(),
            processors: 2,
            memory_bytes: 8 << 30,
            ..MachineInfo::default()
        },
        command: vec!["uswap-bench".into()],
        systems: ["none", "uswap", "kernel-swapfile", "kernel-zram:lz4"].map(String::from).to_vec(),
        workloads: names.iter().map(info).collect(),
        fractions: vec![50, 25],
        repetitions: 3,
        samples: samples(),
        notes: vec!["A note.".into()],
        figures: vec![
            figure("start", Some(7.0), "ms", 5.0),
            figure("peak", Some(1.0), "ratio", 1.02),
            figure("fill", None, "ratio", 1.0),
        ],
        elapsed_seconds: 90.0,
    }
}

#[test]
fn the_report_is_the_one_that_was_agreed_on() {
    let text = report::write(&results(), &["build.svg".into()]);
    if std::env::var_os("USWAP_BENCH_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &text).unwrap();
    }
    let golden = std::fs::read_to_string(GOLDEN).unwrap();
    for (number, (found, expected)) in text.lines().zip(golden.lines()).enumerate() {
        assert_eq!(found, expected, "line {}", number + 1);
    }
    assert_eq!(text.lines().count(), golden.lines().count());
}

#[test]
fn results_survive_being_written_and_read() {
    let results = results();
    let text = serde_json::to_string(&results).unwrap();
    let read: Results = serde_json::from_str(&text).unwrap();
    assert_eq!(report::write(&read, &[]), report::write(&results, &[]));
}

#[test]
fn plots_are_written_for_what_there_is() {
    let folder = std::env::temp_dir().join(format!("uswap-bench-plots-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let names = plots::write(&results(), &folder).unwrap();
    assert!(names.contains(&"slowdown-zipf-1.2.svg".to_string()), "{names:?}");
    assert!(
        names.contains(&"latency-random-t8.svg".to_string()) && names.contains(&"build.svg".to_string()),
        "{names:?}"
    );
    for name in names {
        let svg = std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("uswap") && svg.trim_end().ends_with("</svg>"));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn nothing_at_all_is_a_report_too() {
    let empty = Results { samples: Vec::new(), figures: Vec::new(), workloads: Vec::new(), ..results() };
    assert!(report::write(&empty, &[]).starts_with("# uswap beside the kernel"));
}
