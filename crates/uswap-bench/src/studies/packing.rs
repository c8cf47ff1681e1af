//! Measures the benefit of packing: the same runs with a writeback that packs compressed pages
//! together, and with one that gives each page its own slot; on the device as it is and on one that
//! reads only whole pages, the latter also with packed objects that may span two slots.
//!
//! All systems run with a pool so small that the devices are used, one after the other in each
//! repetition, beginning with another one each time. Bytes are those that the engine asked its
//! devices for; a run that did not end in time has none.

use std::fmt::Write;

use crate::measure::statistics::Summary;
use crate::report::results::{CellOutcome, CellSample, Results};

/// The fault points that make the systems, the names of the systems, and how the device reads.
const SYSTEMS: [(&str, &str, &str); 5] = [
    ("", "across slots", "sectors"),
    ("no-packing", "no", "sectors"),
    ("whole-pages", "within slots", "pages"),
    ("whole-pages,crossing", "across slots", "pages"),
    ("whole-pages,no-packing", "no", "pages"),
];

/// The systems: with packing, and with each object in its own slot.
pub fn systems(pool_percent: u32) -> [String; 5] {
    SYSTEMS.map(|(points, ..)| match points {
        "" => format!("uswap:--pool {pool_percent}"),
        points => format!("uswap:faults={points} --pool {pool_percent}"),
    })
}

/// The workloads that run when the user names none.
pub const WORKLOADS: [&str; 7] = ["random", "seq", "zipf-1.2", "cbuild-j16", "python-dict", "sqlite", "python-numpy"];

/// The table.
pub fn table(results: &Results, systems: &[String]) -> String {
    let mut text = String::from(
        "| workload | memory | reads | packed | s | pages out | bytes out a page | pages in | bytes in a page | most on device, MiB |\n\
         |---|--:|---|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for workload in &results.workloads {
        for &fraction in &results.fractions {
            for (system, (_, packed, reads)) in systems.iter().zip(SYSTEMS) {
                text.push_str(&row(results, &workload.name, fraction, system, &format!("{reads} | {packed}")));
            }
        }
    }
    text
}

fn row(results: &Results, workload: &str, fraction: u32, system: &str, label: &str) -> String {
    let begin = format!("| {workload} | {fraction} % | {label} |");
    let good: Vec<&CellSample> = results.good(workload, system, fraction).collect();
    let figure = |of: &dyn Fn(&CellSample) -> f64, digits: usize| {
        let values: Vec<f64> = good.iter().map(|sample| of(sample)).collect();
        let Summary { median, least, most, count } = Summary::of(&values)?;
        let spread = if count > 1 { format!(" ({least:.digits$}-{most:.digits$})") } else { String::new() };
        Some(format!("{median:.digits$}{spread}"))
    };
    let each = |bytes: u64, pages: u64| if pages == 0 { 0.0 } else { bytes as f64 / pages as f64 };
    let figures = [
        figure(&|sample| sample.seconds, 2),
        figure(&|sample| sample.pswpout as f64, 0),
        figure(&|sample| each(sample.written_bytes, sample.pswpout), 0),
        figure(&|sample| sample.pswpin as f64, 0),
        figure(&|sample| each(sample.read_bytes, sample.pswpin), 0),
        figure(&|sample| sample.swap_used_bytes as f64 / f64::from(1 << 20), 0),
    ];
    let cells: Option<Vec<String>> = figures.into_iter().collect();
    match (cells, results.bad(workload, system, fraction)) {
        (Some(cells), _) => format!("{begin} {} |\n", cells.join(" | ")),
        (None, Some(bad)) if matches!(bad.outcome, CellOutcome::Cut(_)) => String::new(),
        (None, Some(bad)) => format!("{begin} {} | | | | | |\n", bad.outcome.in_words()),
        (None, None) => String::new(),
    }
}

/// The introduction of the document.
pub fn head(results: &Results) -> String {
    let mut text = String::from("# Packed writeback\n");
    let _ = writeln!(
        text,
        "{}; `{}`. Medians of {} alternating runs, least and most in brackets.\n",
        results.machine.heading(),
        results.command.join(" "),
        results.repetitions,
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::results::WorkloadInfo;

    #[test]
    fn bytes_are_told_for_each_page_and_what_did_not_end_is_named() {
        let systems = systems(10);
        let sample = |system: &str, fraction, written, outcome| CellSample {
            seconds: 2.0,
            pswpout: 100,
            written_bytes: written,
            pswpin: 10,
            read_bytes: 20480,
            swap_used_bytes: 3 << 20,
            ..CellSample::of("seq", system, fraction, 1, outcome)
        };
        let info = WorkloadInfo { name: "seq".into(), about: String::new(), peak_bytes: 0 };
        let results = Results {
            workloads: vec![info],
            fractions: vec![50, 25],
            samples: vec![
                sample(&systems[0], 50, 128_000, CellOutcome::Ok),
                sample(&systems[1], 50, 409_600, CellOutcome::Ok),
                sample(&systems[0], 25, 0, CellOutcome::TimedOut("more than 40 s".into())),
            ],
            ..Results::default()
        };
        let text = table(&results, &systems);
        assert!(
            text.contains("| seq | 50 % | sectors | across slots | 2.00 | 100 | 1280 | 10 | 2048 | 3 |\n"),
            "{text}"
        );
        assert!(text.contains("| seq | 50 % | sectors | no | 2.00 | 100 | 4096 |"), "{text}");
        assert!(text.contains("| seq | 25 % | sectors | across slots | ") && text.contains("more than 40 s"), "{text}");
        assert_eq!(text.lines().count(), 5, "what was not run is no row: {text}");
    }
}
