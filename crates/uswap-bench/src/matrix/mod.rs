//! The matrix: workload x fraction x system, with interleaved runs.
//!
//! A *unit* is one workload at one fraction in one repetition: all systems run it one after the
//! other, beginning with another one each time, so that a temporary disturbance of the machine
//! affects all systems alike. The most informative units come first: half of the memory, then
//! curves over the other fractions, then variants, then the next repetition. So when the time is
//! over, repetitions are missing first, then variants, then fractions; the report names what is
//! missing.

pub mod cell;
pub mod figures;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::matrix::cell::{Bench, MatrixCell};
use crate::report::results::{CellOutcome, CellSample, WorkloadInfo};
use crate::system::System;
use crate::workload::{Prepared, Rank, WorkFolder, Workload, WorkloadFamily};

/// The runs to make.
#[derive(Debug)]
pub struct MatrixPlan {
    /// The systems; the first is `none`.
    pub systems: Vec<System>,
    /// The workloads to run.
    pub workloads: Vec<Workload>,
    /// Fractions in percent.
    pub fractions: Vec<u32>,
    /// Number of repetitions.
    pub repetitions: u32,
    /// Time limit: no unit is begun that would probably end after it.
    pub budget: Option<Duration>,
    /// Time after which one run is killed, if the user gave one.
    pub timeout: Option<Duration>,
    /// Folders and sizes of the workloads.
    pub place: WorkFolder,
}

/// The results of the matrix.
#[derive(Debug, Default)]
pub struct Done {
    /// All samples, in order.
    pub samples: Vec<CellSample>,
    /// The workloads with their peaks.
    pub workloads: Vec<WorkloadInfo>,
    /// Remarks for the report.
    pub notes: Vec<String>,
    /// The signal that ended the matrix early.
    pub interrupted: Option<i32>,
}

/// A workload that was prepared and run once without a limit.
#[derive(Debug)]
struct KnownAnswers {
    prepared: Prepared,
    answer: Option<String>,
    peak: u64,
    timeout: Duration,
}

/// One workload at one fraction in one repetition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unit {
    repetition: u32,
    fraction: u32,
    workload: usize,
}

struct Matrix<'a> {
    bench: &'a Bench,
    plan: &'a MatrixPlan,
    start: Instant,
    known: BTreeMap<usize, Result<KnownAnswers, CellOutcome>>,
    /// Peaks of workloads that share a limit.
    scales: BTreeMap<&'static str, u64>,
    /// Duration of the last unit of each workload.
    costs: BTreeMap<usize, Duration>,
    cut: Vec<Unit>,
    done: Done,
}

/// Runs the plan. An interruption is not an error: the results so far are returned.
pub fn run(bench: &Bench, plan: &MatrixPlan) -> Done {
    let mut matrix = Matrix {
        bench,
        plan,
        start: Instant::now(),
        known: BTreeMap::new(),
        scales: BTreeMap::new(),
        costs: BTreeMap::new(),
        cut: Vec::new(),
        done: Done::default(),
    };
    for (index, unit) in units(plan).iter().enumerate() {
        if let Err(signal) = matrix.unit(index, unit) {
            matrix.done.interrupted = Some(signal);
            break;
        }
    }
    matrix.finish()
}

/// All units in the order in which they run.
fn units(plan: &MatrixPlan) -> Vec<Unit> {
    let mut order = plan.fractions.clone();
    order.sort_unstable_by_key(|fraction| (fraction.abs_diff(50), *fraction));
    order.dedup();
    let mut list = Vec::new();
    for repetition in 1..=plan.repetitions {
        for (workload, described) in plan.workloads.iter().enumerate() {
            let fractions = described.fractions.unwrap_or(&order);
            for (place, &fraction) in fractions.iter().enumerate() {
                let unit = Unit { repetition, fraction, workload };
                list.push(((repetition, turn(described.rank, place), place, workload), unit));
            }
        }
    }
    list.sort_by_key(|(key, _)| *key);
    list.into_iter().map(|(_, unit)| unit).collect()
}

/// Estimated duration of a workload's first unit, preparation included: measured on two processors
/// with five systems.
fn first_guess(workload: &Workload) -> Duration {
    Duration::from_secs(match (workload.family, workload.scale) {
        (_, Some(_)) => 120,
        (WorkloadFamily::Real, None) => 45,
        _ => 20,
    })
}

/// The order of a workload of this rank at the fraction with this index.
fn turn(rank: Rank, place: usize) -> u32 {
    match (rank, place) {
        (Rank::Curve | Rank::Point, 0) => 0,
        (Rank::Curve, _) => 1,
        (Rank::Later, 0) => 2,
        (Rank::Point | Rank::Later, _) => 3,
    }
}

impl Matrix<'_> {
    /// Runs a unit, or notes that there is no time for it.
    fn unit(&mut self, index: usize, unit: &Unit) -> Result<(), i32> {
        let guess = || first_guess(&self.plan.workloads[unit.workload]);
        let estimate = self.costs.get(&unit.workload).copied().unwrap_or_else(guess);
        if self.plan.budget.is_some_and(|budget| self.start.elapsed() + estimate > budget) {
            self.cut.push(unit.clone());
            return Ok(());
        }
        let start = Instant::now();
        if !self.known.contains_key(&unit.workload) {
            let known = self.first_look(unit)?;
            self.known.insert(unit.workload, known);
        }
        // The first run without a limit does not count as a cost of the next unit.
        let start = if self.costs.contains_key(&unit.workload) { start } else { Instant::now() };
        let systems = &self.plan.systems;
        for turn in 0..systems.len() {
            let system = &systems[(index + unit.repetition as usize + turn) % systems.len()];
            let sample = self.cell(unit, system)?;
            self.tell(&sample);
            self.done.samples.push(sample);
        }
        self.costs.insert(unit.workload, start.elapsed());
        Ok(())
    }

    /// Prepares a workload and runs it once without a limit, to find its peak, its answer and its
    /// duration.
    fn first_look(&mut self, unit: &Unit) -> Result<Result<KnownAnswers, CellOutcome>, i32> {
        let workload = &self.plan.workloads[unit.workload];
        let prepared = match workload.prepare(&self.plan.place) {
            Ok(prepared) => prepared,
            Err(_) if uswap_sys::process::interrupt::arrived().is_some() => {
                return Err(uswap_sys::process::interrupt::arrived().unwrap_or(2));
            }
            Err(why) => return Ok(Err(CellOutcome::Skipped(why))),
        };
        let timeout = self.plan.timeout.unwrap_or(Duration::from_secs(180));
        let look = self.bench.run(&MatrixCell {
            workload: &workload.name,
            prepared: &prepared,
            answer: prepared.answer.as_deref(),
            system: &System::none(),
            fraction: 0,
            peak: 0,
            repetition: 0,
            timeout,
        })?;
        let peak = look.working_set_bytes >> 20;
        eprintln!("{}: without a limit {}, working set {peak} MiB", workload.name, look.outcome.short());
        if look.outcome != CellOutcome::Ok {
            return Ok(Err(look.outcome));
        }
        let answer = look.told["answer"].as_str().map(String::from);
        let patience = Duration::from_secs_f64((look.wall_seconds * 12.0).clamp(20.0, 90.0));
        let own = look.working_set_bytes;
        let peak = workload.scale.map_or(own, |scale| *self.scales.entry(scale).or_insert(own));
        Ok(Ok(KnownAnswers { prepared, answer, peak, timeout: self.plan.timeout.unwrap_or(patience) }))
    }

    fn cell(&self, unit: &Unit, system: &System) -> Result<CellSample, i32> {
        let workload = &self.plan.workloads[unit.workload];
        let none = system.name == "none";
        let fraction = if none { 0 } else { unit.fraction };
        let without = |outcome| CellSample::of(&workload.name, &system.name, fraction, unit.repetition, outcome);
        let known = match &self.known[&unit.workload] {
            Ok(known) => known,
            Err(CellOutcome::Skipped(why)) => return Ok(without(CellOutcome::Skipped(why.clone()))),
            Err(outcome) if none => return Ok(without(outcome.clone())),
            Err(outcome) => {
                return Ok(without(CellOutcome::Skipped(format!("without a limit: {}", outcome.in_words()))));
            }
        };
        let hung = |sample: &CellSample| {
            matches!(sample.outcome, CellOutcome::TimedOut(_))
                && (&sample.workload, &sample.system) == (&workload.name, &system.name)
                && sample.fraction == fraction
        };
        if self.done.samples.iter().any(hung) {
            return Ok(without(CellOutcome::Skipped("it timed out before".into())));
        }
        self.bench.run(&MatrixCell {
            workload: &workload.name,
            prepared: &known.prepared,
            answer: known.answer.as_deref(),
            system,
            fraction,
            peak: known.peak,
            repetition: unit.repetition,
            timeout: known.timeout,
        })
    }

    fn tell(&self, sample: &CellSample) {
        let limit = if sample.fraction == 0 { String::new() } else { format!(" at {} %", sample.fraction) };
        let how = match &sample.outcome {
            CellOutcome::Ok => format!("{:.2} s", sample.seconds),
            outcome => outcome.in_words(),
        };
        let at = self.start.elapsed().as_secs();
        eprintln!("{:3}:{:02}  {}{limit}, {}: {how}", at / 60, at % 60, sample.workload, sample.system);
    }

    fn finish(mut self) -> Done {
        for (index, workload) in self.plan.workloads.iter().enumerate() {
            let peak = match self.known.get(&index) {
                Some(Ok(known)) => known.peak,
                _ => 0,
            };
            let (name, about) = (workload.name.clone(), workload.about.clone());
            self.done.workloads.push(WorkloadInfo { name, about, peak_bytes: peak });
        }
        self.tell_what_was_cut();
        if let Some(signal) = self.done.interrupted {
            self.done.notes.push(format!("Interrupted by signal {signal}: what had not run yet is missing."));
        }
        self.done
    }

    /// Adds a row for each cell that was never run, and a note on those that were run less often.
    fn tell_what_was_cut(&mut self) {
        let (never, less): (Vec<Unit>, Vec<Unit>) =
            std::mem::take(&mut self.cut).into_iter().partition(|unit| unit.repetition == 1);
        for unit in never {
            let name = &self.plan.workloads[unit.workload].name;
            for system in &self.plan.systems {
                let none = system.name == "none";
                if none && self.done.samples.iter().any(|sample| sample.workload == *name && sample.system == "none") {
                    continue;
                }
                let fraction = if none { 0 } else { unit.fraction };
                let why = CellOutcome::Cut("the time given was over".into());
                self.done.samples.push(CellSample::of(name, &system.name, fraction, 1, why));
            }
        }
        let cells: BTreeSet<(usize, u32)> = less.iter().map(|unit| (unit.workload, unit.fraction)).collect();
        if !cells.is_empty() {
            let (all, n) = (self.plan.repetitions, cells.len());
            let text =
                format!("{n} pairs of workload and fraction ran fewer than {all} times: the time given was over.");
            self.done.notes.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(names: &[&str], fractions: &[u32], repetitions: u32) -> MatrixPlan {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        MatrixPlan {
            systems: vec![System::none()],
            workloads: crate::workload::select(&names).unwrap(),
            fractions: fractions.to_vec(),
            repetitions,
            budget: Some(Duration::ZERO),
            timeout: None,
            place: WorkFolder { folder: "/".into(), workloads: "/".into(), mib: 64, seconds: 1.0 },
        }
    }

    #[test]
    fn half_of_the_memory_comes_first_then_curves_then_variants_then_repetitions() {
        let list: Vec<_> = units(&plan(&["seq", "pft-t1", "chase"], &[100, 75, 50, 25], 2))
            .iter()
            .map(|unit| (unit.repetition, unit.fraction, unit.workload))
            .collect();
        assert_eq!(list[..5], [(1, 50, 0), (1, 400, 1), (1, 25, 0), (1, 75, 0), (1, 100, 0)]);
        assert_eq!(list[5..9], [(1, 50, 2), (1, 25, 2), (1, 75, 2), (1, 100, 2)]);
        assert_eq!(list[9..11], [(2, 50, 0), (2, 400, 1)]);
        assert_eq!(list.len(), 18);
    }

    #[test]
    fn what_is_cut_is_a_row_or_a_note() {
        let bench = Bench { hierarchy: Err("none".into()), uswap: Err("none".into()), folder: "/".into() };
        let done = run(&bench, &plan(&["seq"], &[50], 3));
        assert_eq!(done.samples.len(), 1);
        assert!(matches!(done.samples[0].outcome, CellOutcome::Cut(_)));
        assert!(done.notes[0].starts_with("1 pairs"), "{}", done.notes[0]);
    }
}
