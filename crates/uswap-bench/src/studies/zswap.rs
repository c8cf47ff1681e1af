//! The kernel build in the form of the zswap document (2013): N jobs on one budget; I/O in pages,
//! run time, processor use; each system beside uswap without its pool.
//!
//! The budget is the largest of several budgets at which the kernel with a plain swap file takes
//! more than three times as long as without a limit at N = 24, as in the document. The search for
//! it and all builds stay within the time limit: builds for which there is no time are left out and
//! listed.

use std::time::{Duration, Instant};

use crate::matrix::cell::Bench;
use crate::matrix::{self, Done, MatrixPlan};
use crate::report::results::{CellOutcome, CellSample, Results};
use crate::report::tables::build_table;
use crate::system::System;
use crate::workload::{WorkFolder, select};

/// uswap without a pool, with which the other systems are compared.
pub const BASE: &str = "uswap:--pool 0";
/// The other systems. One has neither a pool nor load control, since the document compares with a
/// swap device and nothing else.
pub const OTHERS: [&str; 4] = ["uswap", "uswap:--pool 0 --load-control off", "kernel-swapfile", "kernel-zswap"];
/// Budgets that the search tries, in percent of what N = 24 needs.
const TRIED: [u32; 6] = [50, 40, 32, 26, 21, 17];
/// Minimum slowdown of the kernel with a swap file at the budget.
const SLOWDOWN: f64 = 3.0;

/// The parameters of the study.
#[derive(Clone, Debug)]
pub struct BuildRequest {
    /// The numbers of jobs.
    pub jobs: Vec<usize>,
    /// The budget in percent, if the user gave one.
    pub fraction: Option<u32>,
    /// Number of repetitions.
    pub repetitions: u32,
    /// Time limit of the whole study.
    pub budget: Duration,
    /// Time after which one build is killed.
    pub timeout: Option<Duration>,
}

fn plan(
    request: &BuildRequest,
    systems: &[&str],
    jobs: &[usize],
    fraction: u32,
    place: &WorkFolder,
    left: Duration,
) -> MatrixPlan {
    let names: Vec<String> = jobs.iter().map(|jobs| format!("cbuild-j{jobs}")).collect();
    let parse = |name: &&str| System::parse(name).expect("a name of a system").remove(0);
    let mut workloads = select(&names).expect("names of builds");
    // The largest build comes first: its working set is the scale of all builds.
    workloads.sort_by_key(|workload| std::cmp::Reverse(jobs_of(&workload.name)));
    MatrixPlan {
        systems: std::iter::once(System::none()).chain(systems.iter().map(parse)).collect(),
        workloads,
        fractions: vec![fraction],
        repetitions: request.repetitions,
        budget: Some(left),
        timeout: request.timeout,
        place: place.clone(),
    }
}

fn jobs_of(name: &str) -> usize {
    name.rsplit('j').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn seconds(samples: &[CellSample], system: &str) -> Option<f64> {
    let fine = |sample: &&CellSample| sample.system == system && sample.outcome == CellOutcome::Ok;
    samples.iter().find(fine).map(|sample| sample.seconds)
}

/// Whether a budget is small enough: the kernel is three times slower, or did not end in time.
fn is_small_enough(samples: &[CellSample]) -> bool {
    let slow = samples.iter().find(|sample| sample.system == "kernel-swapfile");
    match (slow.map(|sample| &sample.outcome), seconds(samples, "none")) {
        (Some(CellOutcome::Ok), Some(free)) => seconds(samples, "kernel-swapfile").is_some_and(|s| s > SLOWDOWN * free),
        (Some(CellOutcome::TimedOut(_)), _) => true,
        _ => false,
    }
}

/// Runs the study. Returns the samples, and the budget in percent.
pub fn run(bench: &Bench, place: &WorkFolder, request: &BuildRequest) -> (Done, u32) {
    let start = Instant::now();
    let left = || request.budget.saturating_sub(start.elapsed());
    let most = request.jobs.iter().copied().max().unwrap_or(24);
    let mut notes = Vec::new();
    let mut fraction = request.fraction;
    for tried in TRIED.into_iter().take_while(|_| request.fraction.is_none()) {
        // A third of the time limit is for the search.
        if start.elapsed() > request.budget / 3 {
            notes.push(format!("The time for finding a budget was over at {} %.", fraction.unwrap_or(tried)));
            break;
        }
        let once = BuildRequest { repetitions: 1, ..request.clone() };
        let done = matrix::run(bench, &plan(&once, &["kernel-swapfile"], &[most], tried, place, left()));
        if done.interrupted.is_some() {
            return (done, tried);
        }
        fraction = Some(tried);
        if is_small_enough(&done.samples) {
            break;
        }
    }
    let fraction = fraction.unwrap_or(TRIED[0]);
    let systems: Vec<&str> = [BASE].into_iter().chain(OTHERS).collect();
    let mut done = matrix::run(bench, &plan(request, &systems, &request.jobs, fraction, place, left()));
    done.notes.extend(notes);
    (done, fraction)
}

/// The tables, and the outcome of each build without a time.
pub fn tables(results: &Results, fraction: u32) -> String {
    let mut text = String::new();
    for system in OTHERS.into_iter().map(|name| full_name(results, name)) {
        build_table(&mut text, results, BASE, &system, fraction);
    }
    let untimed = results.samples.iter().filter(|sample| sample.outcome != CellOutcome::Ok);
    for sample in untimed {
        text.push_str(&format!("- {}, {}: {}\n", sample.workload, sample.system, sample.outcome.in_words()));
    }
    results.notes.iter().for_each(|note| text.push_str(&format!("- {note}\n")));
    text
}

/// The full name of a system: `kernel-zswap` runs as `kernel-zswap:COMPRESSOR`.
fn full_name(results: &Results, name: &str) -> String {
    let is_it = |system: &&String| *system == name || name == "kernel-zswap" && system.starts_with(name);
    results.systems.iter().find(is_it).cloned().unwrap_or_else(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_small_enough_when_the_kernel_is_three_times_slower_or_never_ends() {
        let sample = |system: &str, seconds, outcome| CellSample {
            seconds,
            ..CellSample::of("cbuild-j24", system, 50, 1, outcome)
        };
        let free = sample("none", 2.0, CellOutcome::Ok);
        let with = |seconds, outcome| is_small_enough(&[free.clone(), sample("kernel-swapfile", seconds, outcome)]);
        assert!(with(6.1, CellOutcome::Ok) && !with(5.9, CellOutcome::Ok));
        assert!(with(0.0, CellOutcome::TimedOut("x".into())) && !with(0.0, CellOutcome::Skipped("x".into())));
    }

    #[test]
    fn the_largest_build_comes_first() {
        let request =
            BuildRequest { jobs: vec![8, 24], fraction: None, repetitions: 1, budget: Duration::ZERO, timeout: None };
        let place = WorkFolder { folder: "/".into(), workloads: "/".into(), mib: 64, seconds: 1.0 };
        let plan = plan(&request, &["uswap"], &[8, 24], 40, &place, Duration::ZERO);
        let names: Vec<&str> = plan.workloads.iter().map(|workload| workload.name.as_str()).collect();
        assert_eq!(names, ["cbuild-j24", "cbuild-j8"]);
        assert_eq!(plan.systems.len(), 2);
    }
}
