//! Measures the time of a fault when several threads fault at the same time: each thread visits
//! pages at random over twice the available memory, under uswap with a device in memory, and under
//! the kernel with zram at the same limit. Neither store counts in the limit.
//!
//! A *slow* visit is one that took more than 2 us, as the program itself measured it: the time of a
//! fault with all its waiting. In each round the systems take turns, beginning with another one
//! each time. Fast visits are not reported: a thread whose pages are all in memory makes as many of
//! them as it can.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

use crate::matrix::cell::{Bench, MatrixCell};
use crate::measure::statistics::Summary;
use crate::report::results::{CellOutcome, CellSample};
use crate::system::System;
use crate::workload::{Prepared, WorkFolder};

const RUN_TIMEOUT: Duration = Duration::from_secs(120);
/// More visits than any system can make in the time of a run.
const VISITS: &str = "2000000000";
/// The kernel's system, with the same compressor as uswap.
const ZRAM: &str = "kernel-zram:lz4";

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct LatencyPlan {
    /// Number of threads that fault.
    pub threads: u32,
    /// Contents of the pages, by the names of `uswap-workload`.
    pub contents: Vec<String>,
    /// The limit in bytes; the program takes twice as much.
    pub limit: u64,
    /// Number of rounds, each with all systems.
    pub rounds: u32,
    /// Duration of the visits in each run.
    pub seconds: f64,
}

/// The runs of one system with one content.
#[derive(Debug)]
pub struct LatencyRow {
    content: String,
    system: &'static str,
    samples: Vec<CellSample>,
}

/// Runs all systems in all rounds.
///
/// # Errors
/// The signal that asked this tool to end, or the error of a system.
pub fn measure(bench: &Bench, place: &WorkFolder, plan: &LatencyPlan) -> Result<Vec<LatencyRow>, Result<i32, String>> {
    let ours = System::parse(&format!("uswap:--ram {} --swap ram", plan.limit)).map_err(Err)?.remove(0);
    let systems = [("uswap, device in memory", ours), (ZRAM, System::parse(ZRAM).map_err(Err)?.remove(0))];
    let row = |content: &String, system| LatencyRow { content: content.clone(), system, samples: Vec::new() };
    let mut rows: Vec<LatencyRow> =
        plan.contents.iter().flat_map(|content| systems.each_ref().map(|(name, _)| row(content, name))).collect();
    for round in 0..plan.rounds as usize {
        for (index, content) in plan.contents.iter().enumerate() {
            for turn in 0..systems.len() {
                let number = (turn + round) % systems.len();
                let sample = run(bench, place, plan, content, &systems[number].1, round).map_err(Ok)?;
                rows[index * systems.len() + number].samples.push(sample);
            }
        }
    }
    Ok(rows)
}

fn run(
    bench: &Bench,
    place: &WorkFolder,
    plan: &LatencyPlan,
    content: &str,
    system: &System,
    round: usize,
) -> Result<CellSample, i32> {
    let own = place.workloads.display().to_string();
    let (mib, threads) = ((2 * plan.limit) >> 20, plan.threads);
    let words =
        format!("memory --mib {mib} --pattern random --content {content} --threads {threads} --operations {VISITS}");
    let times = format!("--seconds {} --check-seconds 2", plan.seconds);
    let words = [words, times].join(" ");
    let prepared = Prepared::command(std::iter::once(own.as_str()).chain(words.split(' ')));
    bench.run(&MatrixCell {
        workload: "faults",
        prepared: &prepared,
        answer: None,
        system,
        fraction: 50,
        peak: 2 * plan.limit,
        repetition: round as u32 + 1,
        timeout: RUN_TIMEOUT,
    })
}

/// The table; latencies in microseconds, as medians of the rounds with minimum and maximum.
pub fn table(rows: &[LatencyRow]) -> String {
    let mut text = String::from(
        "| contents | system | slow visits, p50 us | p99 us | mean us | thousand of them a second |\n\
         |---|---|--:|--:|--:|--:|\n",
    );
    for row in rows {
        let begin = format!("| {} | {} |", row.content, row.system);
        let good: Vec<&CellSample> = row.samples.iter().filter(|sample| sample.outcome == CellOutcome::Ok).collect();
        let figure = |digits: usize, of: &dyn Fn(&Value) -> f64| {
            let values: Vec<f64> = good.iter().map(|sample| of(&sample.told)).collect();
            Summary::of(&values).map_or_else(String::new, |Summary { median, least, most, .. }| {
                format!("{median:.digits$} ({least:.digits$}-{most:.digits$})")
            })
        };
        let slow = |name: &'static str| move |told: &Value| number(&told["slow"][name]) / 1e3;
        let _ = match row.samples.iter().find(|sample| sample.outcome != CellOutcome::Ok) {
            Some(bad) => writeln!(text, "{begin} {} | | | |", bad.outcome.in_words()),
            None => writeln!(
                text,
                "{begin} {} | {} | {} | {} |",
                figure(1, &slow("p50_ns")),
                figure(0, &slow("p99_ns")),
                figure(1, &slow("mean_ns")),
                figure(1, &|told| number(&told["slow"]["count"]) / number(&told["visit_seconds"]).max(1e-9) / 1e3),
            ),
        };
    }
    text
}

/// Whether a run gave a wrong answer or no answer.
pub fn any_failure(rows: &[LatencyRow]) -> bool {
    rows.iter().flat_map(|row| &row.samples).any(|sample| sample.outcome.is_failure())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(p50: u64, outcome: CellOutcome) -> CellSample {
        let slow = serde_json::json!({ "count": 50, "p50_ns": p50, "p99_ns": 90_000, "mean_ns": 12_340 });
        let told = serde_json::json!({ "slow": slow, "operations": 100, "visit_seconds": 0.5 });
        CellSample { told, ..CellSample::of("faults", "uswap", 50, 1, outcome) }
    }

    #[test]
    fn the_table_has_medians_with_their_spread_and_names_what_failed() {
        let row = |samples| LatencyRow { content: "text".into(), system: "uswap", samples };
        let good = row([7_000, 9_000, 8_000].map(|p50| sample(p50, CellOutcome::Ok)).to_vec());
        let bad = row(vec![sample(1, CellOutcome::Ok), sample(1, CellOutcome::TimedOut("more than 1 s".into()))]);
        let text = table(&[good, bad]);
        let wanted = "| text | uswap | 8.0 (7.0-9.0) | 90 (90-90) | 12.3 (12.3-12.3) | 0.1 (0.1-0.1) |\n";
        assert!(text.contains(wanted) && text.contains("more than 1 s | | | |\n"), "{text}");
    }
}
