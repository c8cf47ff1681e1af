//! The report in Markdown. It needs only [`Results`], so a report can be written again from
//! `results.json`.

pub mod plots;
pub mod results;
pub mod tables;

use crate::measure::statistics::Summary;
use crate::report::results::{CellOutcome, CellSample, Results};

/// Writing to a String cannot fail.
macro_rules! put {
    ($text:expr, $($arguments:tt)*) => {{
        use std::fmt::Write as _;
        let _ = writeln!($text, $($arguments)*);
    }};
}
pub(crate) use put;

/// Appends a table with this header and these rows.
pub fn table(text: &mut String, head: &[String], rows: &[Vec<String>]) {
    put!(text, "| {} |", head.join(" | "));
    put!(text, "|{}|", vec!["---"; head.len()].join("|"));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "/")).collect();
        put!(text, "| {} |", cells.join(" | "));
    }
    put!(text, "");
}

/// A table header from words.
pub fn head(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// The whole report; `plots` are the names of the plot files beside it.
pub fn write(results: &Results, plots: &[String]) -> String {
    let mut text = String::from("# uswap beside the kernel\n\n");
    introduction(&mut text, results);
    if !results.figures.is_empty() {
        figures(&mut text, results);
    }
    if !results.samples.is_empty() {
        comparison(&mut text, results);
        slowdowns(&mut text, results);
        failures(&mut text, results);
        tables::references(&mut text, results);
        memory(&mut text, results);
        details(&mut text, results);
    }
    if !plots.is_empty() {
        put!(text, "## Plots\n");
        plots.iter().for_each(|plot| put!(text, "![{plot}]({plot})\n"));
    }
    text
}

fn introduction(text: &mut String, results: &Results) {
    put!(text, "{}.\n", results.machine.in_words());
    put!(text, "Written by `{}` in {:.1} minutes.\n", results.command.join(" "), results.elapsed_seconds / 60.0);
    put!(
        text,
        "A *fraction* is the hard limit of the memory cgroup as a part of the workload's own working set without a \
         limit. uswap runs inside a cgroup of exactly that limit without kernel swap, so the engine and its pool are \
         within it. **zram's store lies outside of the cgroup and zswap's pool inside**: *sum* counts what each system \
         really used. Times are medians, with the least and the most in brackets where there are several. Visits of a micro \
         workload end by time where they are slow; its seconds are those that all its planned visits would take.\n"
    );
    for note in &results.notes {
        put!(text, "- {note}");
    }
    if !results.notes.is_empty() {
        put!(text, "");
    }
}

fn figures(text: &mut String, results: &Results) {
    put!(text, "## Figures with a requirement\n");
    let row = |figure: &crate::report::results::Figure| {
        let (value, verdict) = match figure.value {
            Some(value) if value <= figure.at_most => (format!("{value:.2} {}", figure.unit), "yes"),
            Some(value) => (format!("{value:.2} {}", figure.unit), "**no**"),
            None => ("-".into(), "not measured"),
        };
        let required = format!("{:.2} {}", figure.at_most, figure.unit);
        vec![figure.name.clone(), value, required, verdict.into(), figure.detail.clone()]
    };
    let rows: Vec<Vec<String>> = results.figures.iter().map(row).collect();
    table(text, &head(&["figure", "measured", "at most", "reached", "measurements"]), &rows);
}

/// The fractions for which a workload has samples, largest first; empty when it has none.
pub fn fractions_of(results: &Results, workload: &str) -> Vec<u32> {
    let of = |sample: &&CellSample| sample.workload == workload && sample.fraction > 0;
    let mut list: Vec<u32> = results.samples.iter().filter(of).map(|sample| sample.fraction).collect();
    list.sort_unstable_by_key(|fraction| std::cmp::Reverse(*fraction));
    list.dedup();
    list
}

/// One workload under one uswap and one kind of kernel swap, by fraction.
struct Comparison {
    names: [String; 3],
    /// Time of uswap divided by the kernel's, and the text for it; `None` where one of them was not
    /// run.
    ratios: Vec<Option<(f64, String)>>,
}

impl Comparison {
    fn worst(&self) -> f64 {
        self.ratios.iter().flatten().map(|(ratio, _)| *ratio).fold(0.0, f64::max)
    }
}

/// The ratio of a cell. If one of the two failed and the other did not, the ratio is the worst or
/// the best possible one.
fn ratio(results: &Results, workload: &str, ours: &str, theirs: &str, fraction: u32) -> Option<(f64, String)> {
    let median = |system: &str| results.median(workload, system, fraction, |sample| sample.seconds);
    let failed = |system: &str| {
        let bad = results.bad(workload, system, fraction).filter(|sample| sample.outcome.is_failure());
        bad.map(|sample| sample.outcome.short())
    };
    match (median(ours), median(theirs)) {
        (Some(ours), Some(theirs)) => {
            let ratio = ours / theirs;
            let shown = if ratio > 1.05 { format!("**{ratio:.2}**") } else { format!("{ratio:.2}") };
            Some((ratio, shown))
        }
        (None, Some(_)) => failed(ours).map(|how| (f64::INFINITY, format!("**uswap {how}**"))),
        (Some(_), None) => failed(theirs).map(|how| (0.0, format!("kernel {how}"))),
        (None, None) => None,
    }
}

/// All fractions that have samples, largest first.
fn all_fractions(results: &Results) -> Vec<u32> {
    let mut all: Vec<u32> = results.workloads.iter().flat_map(|w| fractions_of(results, &w.name)).collect();
    all.sort_unstable_by_key(|fraction| std::cmp::Reverse(*fraction));
    all.dedup();
    all
}

fn compare(results: &Results, fractions: &[u32]) -> Vec<Comparison> {
    let (ours, theirs): (Vec<_>, Vec<_>) =
        results.systems.iter().filter(|name| *name != "none").partition(|name| name.starts_with("uswap"));
    let mut list = Vec::new();
    for workload in results.workloads.iter().map(|workload| &workload.name) {
        for (our, their) in ours.iter().flat_map(|our| theirs.iter().map(move |their| (*our, *their))) {
            let ratios: Vec<_> = fractions.iter().map(|f| ratio(results, workload, our, their, *f)).collect();
            if ratios.iter().any(Option::is_some) {
                list.push(Comparison { names: [workload.clone(), our.clone(), their.clone()], ratios });
            }
        }
    }
    list.sort_by(|a, b| b.worst().total_cmp(&a.worst()));
    list
}

fn comparison(text: &mut String, results: &Results) {
    let fractions = all_fractions(results);
    let list = compare(results, &fractions);
    if list.is_empty() {
        return;
    }
    let ratios: Vec<f64> = list.iter().flat_map(|c| c.ratios.iter().flatten()).map(|(ratio, _)| *ratio).collect();
    let count = |within: &dyn Fn(f64) -> bool| ratios.iter().filter(|ratio| within(**ratio)).count();
    put!(text, "## uswap beside the kernel: where it is slower, where faster\n");
    put!(
        text,
        "Time of uswap divided by the kernel's, by fraction; above 1 uswap is slower. Of {} comparisons uswap is slower in \
         **{}**, equal within 5 % in {}, faster in {}. Worst first.\n",
        ratios.len(),
        count(&|ratio| ratio > 1.05),
        count(&|ratio| (0.95..=1.05).contains(&ratio)),
        count(&|ratio| ratio < 0.95),
    );
    let row = |comparison: &Comparison| {
        let shown = comparison.ratios.iter().map(|cell| cell.as_ref().map_or("-".into(), |(_, shown)| shown.clone()));
        comparison.names.iter().cloned().chain(shown).collect::<Vec<String>>()
    };
    let mut columns = head(&["workload", "uswap", "kernel"]);
    columns.extend(fractions.iter().map(|fraction| format!("{fraction} %")));
    table(text, &columns, &list.iter().map(row).collect::<Vec<_>>());
}

/// A cell of the slowdown table.
fn slowdown(results: &Results, workload: &str, system: &str, fraction: u32) -> String {
    let values: Vec<f64> = results.good(workload, system, fraction).map(|sample| sample.seconds).collect();
    let bad = results.bad(workload, system, fraction);
    let Some(summary) = Summary::of(&values) else {
        return bad.map_or("-".into(), |sample| sample.outcome.short().into());
    };
    let spread = match summary.count {
        1 => format!("{:.2} s", summary.median),
        _ => format!("{:.2} s [{:.2}..{:.2}]", summary.median, summary.least, summary.most),
    };
    let also = bad.map_or(String::new(), |sample| format!(", once {}", sample.outcome.short()));
    match results.median(workload, "none", 0, |sample| sample.seconds) {
        Some(none) if system != "none" => format!("**{:.2}** {spread}{also}", summary.median / none),
        _ => format!("{spread}{also}"),
    }
}

fn slowdowns(text: &mut String, results: &Results) {
    put!(text, "## Slowdown against having the memory\n");
    for fraction in all_fractions(results) {
        let mut rows = Vec::new();
        for workload in &results.workloads {
            let of_it = |sample: &CellSample| sample.workload == workload.name && sample.fraction == fraction;
            if !results.samples.iter().any(|sample| of_it(sample) && !matches!(sample.outcome, CellOutcome::Cut(_))) {
                continue;
            }
            let peak = format!("{} MiB", workload.peak_bytes >> 20);
            let mut row = vec![workload.name.clone(), peak];
            row.extend(results.systems.iter().map(|system| slowdown(results, &workload.name, system, fraction)));
            rows.push(row);
        }
        if rows.is_empty() {
            continue;
        }
        put!(text, "### {fraction} % of the memory\n");
        let mut columns = head(&["workload", "needs"]);
        columns.extend(results.systems.iter().cloned());
        table(text, &columns, &rows);
    }
}

/// Lists every sample without a time, in full.
fn failures(text: &mut String, results: &Results) {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for sample in results.samples.iter().filter(|sample| sample.outcome != CellOutcome::Ok) {
        let fraction = if sample.fraction == 0 { "-".into() } else { format!("{} %", sample.fraction) };
        // A cell that was left out was left out for all systems.
        let cut = matches!(sample.outcome, CellOutcome::Cut(_));
        let system = if cut { "all".into() } else { sample.system.clone() };
        rows.push(vec![sample.workload.clone(), fraction, system, sample.outcome.in_words()]);
    }
    rows.dedup();
    if !rows.is_empty() {
        put!(text, "## Rows without a time\n");
        table(text, &head(&["workload", "fraction", "system", "why"]), &rows);
    }
}

/// Memory that each system used in reality, over all cells.
fn memory(text: &mut String, results: &Results) {
    put!(text, "## Memory really used\n");
    put!(
        text,
        "Medians over all cells with a time, as parts of the limit. *Group*: the most the cgroup was charged, file pages \
         and kernel memory included. *Outside*: RAM that held its pages and was not charged to it.\n"
    );
    let mut rows = Vec::new();
    for system in results.systems.iter().filter(|name| *name != "none") {
        let good = |sample: &&CellSample| {
            sample.system == *system && sample.outcome == CellOutcome::Ok && sample.limit_bytes > 0
        };
        let median = |what: fn(&CellSample) -> u64| {
            let values: Vec<f64> =
                results.samples.iter().filter(good).map(|s| what(s) as f64 / s.limit_bytes as f64).collect();
            Summary::of(&values).map_or("-".into(), |summary| format!("{:.2}", summary.median))
        };
        let kills: u64 = results.samples.iter().filter(|s| s.system == *system).map(|s| s.oom_kills).sum();
        let sum = median(|s| s.peak_bytes + s.outside_bytes);
        let (group, outside) = (median(|s| s.peak_bytes), median(|s| s.outside_bytes));
        let swap = median(|s| s.swap_used_bytes);
        rows.push(vec![system.clone(), group, outside, sum, swap, kills.to_string()]);
    }
    table(text, &head(&["system", "group", "outside", "sum", "swap in use", "OOM kills"]), &rows);
}

const DETAILS: [&str; 19] = [
    "fraction",
    "system",
    "runs",
    "seconds",
    "user s",
    "system s",
    "pswpin",
    "pswpout",
    "zswpin",
    "zswpout",
    "read MiB",
    "written MiB",
    "major faults",
    "ratio",
    "peak MiB",
    "sum MiB",
    "OOM",
    "visits p50/p99/p999 us",
    "faults p50/p99/p999 us",
];

fn details(text: &mut String, results: &Results) {
    put!(text, "## All cells\n");
    put!(
        text,
        "Medians. Processor time is of everything that ran in the group, the engine included. Traffic of disks is of the \
         machine. *Visits*: all timed accesses of the workload. *Faults*: accesses over 2 us, as the program sees them, \
         or what uswap says of pool and devices.\n"
    );
    let ran = |name: &str| results.samples.iter().any(|sample| sample.workload == name && sample.wall_seconds > 0.0);
    for workload in results.workloads.iter().filter(|workload| ran(&workload.name)) {
        let mut rows = vec![detail(results, &workload.name, "none", 0)];
        for fraction in fractions_of(results, &workload.name) {
            let others = results.systems.iter().filter(|name| *name != "none");
            let others =
                others.filter(|system| results.cell(&workload.name, system, fraction).any(|s| s.wall_seconds > 0.0));
            rows.extend(others.map(|system| detail(results, &workload.name, system, fraction)));
        }
        put!(text, "### {}\n\n{}. Working set {} MiB.\n", workload.name, workload.about, workload.peak_bytes >> 20);
        table(text, &head(&DETAILS), &rows);
    }
}

/// p50, p99 and p999 of a histogram, in microseconds.
pub fn percentiles(told: &serde_json::Value) -> Option<[f64; 3]> {
    let us = |name: &str| told.get(name)?.as_u64().map(|ns| ns as f64 / 1000.0);
    (told.get("count")?.as_u64()? > 0).then_some([us("p50_ns")?, us("p99_ns")?, us("p999_ns")?])
}

fn shown(percentiles: Option<[f64; 3]>) -> String {
    percentiles.map_or("-".into(), |[a, b, c]| format!("{a:.1}/{b:.0}/{c:.0}"))
}

/// Percentiles of the visits and of the faults, from the told figures of a sample.
fn latencies(sample: &CellSample) -> (String, String) {
    let visits = shown(percentiles(&sample.told["latency"]));
    let mut faults = Vec::new();
    if let Some(seen) = percentiles(&sample.told["slow"]) {
        faults.push(shown(Some(seen)));
    }
    for (tier, told) in sample.fault_latency.as_object().into_iter().flatten() {
        if let Some(seen) = percentiles(told) {
            faults.push(format!("{tier} {}", shown(Some(seen))));
        }
    }
    (visits, if faults.is_empty() { "-".into() } else { faults.join(", ") })
}

fn detail(results: &Results, workload: &str, system: &str, fraction: u32) -> Vec<String> {
    let shown_fraction = if fraction == 0 { "-".into() } else { format!("{fraction} %") };
    let samples: Vec<&CellSample> = results.good(workload, system, fraction).collect();
    let Some(first) = samples.first() else {
        let why = results.bad(workload, system, fraction).map_or("-", |sample| sample.outcome.short());
        let mut row = vec![shown_fraction, system.into(), "0".into(), why.into()];
        row.resize(DETAILS.len(), String::new());
        return row;
    };
    let median = |what: fn(&CellSample) -> f64| results.median(workload, system, fraction, what).unwrap_or(0.0);
    let mib = |bytes: f64| format!("{:.0}", bytes / f64::from(1 << 20));
    let whole = |number: f64| format!("{number:.0}");
    let (visits, faults) = latencies(first);
    let ratio = median(|s| s.compression_ratio);
    vec![
        shown_fraction,
        system.into(),
        samples.len().to_string(),
        format!("{:.2}", median(|s| s.seconds)),
        format!("{:.2}", median(|s| s.user_seconds)),
        format!("{:.2}", median(|s| s.system_seconds)),
        whole(median(|s| s.pswpin as f64)),
        whole(median(|s| s.pswpout as f64)),
        whole(median(|s| s.zswpin as f64)),
        whole(median(|s| s.zswpout as f64)),
        mib(median(|s| s.read_bytes as f64)),
        mib(median(|s| s.written_bytes as f64)),
        whole(median(|s| s.major_faults as f64)),
        if ratio > 0.0 { format!("{ratio:.2}") } else { "-".into() },
        mib(median(|s| s.peak_bytes as f64)),
        mib(median(|s| (s.peak_bytes + s.outside_bytes) as f64)),
        whole(median(|s| s.oom_kills as f64)),
        visits,
        faults,
    ]
}
