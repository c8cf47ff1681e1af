//! The results of a run of the tool: one [`CellSample`] for each run of a cell, and the machine.
//! `results.json` is their serialised form.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::measure::machine::MachineInfo;

/// How a run of a cell ended. Only [`CellOutcome::Ok`] has a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "reason")]
pub enum CellOutcome {
    /// The workload ended with the right answer.
    Ok,
    /// The workload ended with a wrong answer, or found its own memory wrong.
    Wrong(String),
    /// The workload ended with an error.
    Failed(String),
    /// The kernel killed a process of the workload because memory was short.
    OomKilled(String),
    /// The workload did not end in time.
    TimedOut(String),
    /// The cell was not run: something is missing on this machine.
    Skipped(String),
    /// The cell was not run: the time limit of the whole matrix had passed.
    Cut(String),
}

impl CellOutcome {
    /// The outcome in words, for a table.
    pub fn in_words(&self) -> String {
        match self {
            Self::Ok => "ok".into(),
            Self::Wrong(why) => format!("wrong answer: {why}"),
            Self::Failed(why) => format!("failed: {why}"),
            Self::OomKilled(why) => format!("OOM-killed: {why}"),
            Self::TimedOut(why) => format!("timed out: {why}"),
            Self::Skipped(why) => format!("skipped: {why}"),
            Self::Cut(why) => format!("cut: {why}"),
        }
    }

    /// The outcome in one or two words.
    pub fn short(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Wrong(_) => "WRONG",
            Self::Failed(_) => "failed",
            Self::OomKilled(_) => "OOM-killed",
            Self::TimedOut(_) => "timed out",
            Self::Skipped(_) => "skipped",
            Self::Cut(_) => "cut",
        }
    }

    /// Whether the cell was run and did not end well.
    pub fn is_failure(&self) -> bool {
        !matches!(self, Self::Ok | Self::Skipped(_) | Self::Cut(_))
    }
}

/// One run of one cell. Sizes in bytes, times in seconds, traffic in pages of 4 KiB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellSample {
    /// The name of the workload.
    pub workload: String,
    /// The name of the system.
    pub system: String,
    /// The limit as a percentage of the workload's peak; 0 is no limit.
    pub fraction: u32,
    /// The number of the repetition, from 1.
    pub repetition: u32,
    /// How the run ended.
    #[serde(flatten)]
    pub outcome: CellOutcome,
    /// The time of the planned work, which is compared. 0 unless the outcome is ok.
    pub seconds: f64,
    /// Time from start to end, preparation and checks included.
    pub wall_seconds: f64,
    /// User time of all processes, including the engine.
    pub user_seconds: f64,
    /// System time of all processes, including the engine.
    pub system_seconds: f64,
    /// The hard limit.
    pub limit_bytes: u64,
    /// Maximum number of bytes that were charged to the group.
    pub peak_bytes: u64,
    /// Maximum of anonymous memory, mapped file pages and kernel memory at one time.
    pub working_set_bytes: u64,
    /// Memory outside of the group that held its pages (the memory of zram).
    pub outside_bytes: u64,
    /// Maximum swap space in use.
    pub swap_used_bytes: u64,
    /// Pages read from swap devices.
    pub pswpin: u64,
    /// Pages written to swap devices.
    pub pswpout: u64,
    /// Pages loaded from a compressed pool.
    pub zswpin: u64,
    /// Pages stored into a compressed pool.
    pub zswpout: u64,
    /// Number of faults that waited until a page was loaded.
    pub major_faults: u64,
    /// Bytes read from the devices of a run of uswap; for other systems, the reads of all disks of
    /// the machine meanwhile.
    pub read_bytes: u64,
    /// Bytes written to the same devices.
    pub written_bytes: u64,
    /// Bytes before compression per byte after it, at the time of the largest use; 0: not known.
    pub compression_ratio: f64,
    /// Number of processes that the kernel killed because memory was short.
    pub oom_kills: u64,
    /// The last line of the workload's output.
    pub told: Value,
    /// Fault latencies by tier, as the engine reported them.
    pub fault_latency: Value,
}

impl CellSample {
    /// A sample of a cell that was not run, or for which only the outcome is known so far.
    pub fn of(workload: &str, system: &str, fraction: u32, repetition: u32, outcome: CellOutcome) -> Self {
        Self {
            workload: workload.into(),
            system: system.into(),
            fraction,
            repetition,
            outcome,
            seconds: 0.0,
            wall_seconds: 0.0,
            user_seconds: 0.0,
            system_seconds: 0.0,
            limit_bytes: 0,
            peak_bytes: 0,
            working_set_bytes: 0,
            outside_bytes: 0,
            swap_used_bytes: 0,
            pswpin: 0,
            pswpout: 0,
            zswpin: 0,
            zswpout: 0,
            major_faults: 0,
            read_bytes: 0,
            written_bytes: 0,
            compression_ratio: 0.0,
            oom_kills: 0,
            told: Value::Null,
            fault_latency: Value::Null,
        }
    }
}

/// A workload as the report names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadInfo {
    /// The name of the workload.
    pub name: String,
    /// A description of the workload.
    pub about: String,
    /// The working set without a limit, to which fractions refer; 0 when the workload was not run.
    pub peak_bytes: u64,
}

/// A ratio for which a requirement states a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// A description of the comparison.
    pub name: String,
    /// The value in `unit`; `None` if it could not be measured.
    pub value: Option<f64>,
    /// `ratio`, `ms` or `%`.
    pub unit: String,
    /// Largest value that meets the requirement.
    pub at_most: f64,
    /// The measurements behind the value, or why there is none.
    pub detail: String,
}

/// All results of one run of the tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The machine on which the tool ran.
    pub machine: MachineInfo,
    /// The words of the command line.
    pub command: Vec<String>,
    /// The systems, in the order of the command line; the first is the baseline.
    pub systems: Vec<String>,
    /// The workloads that the user asked for.
    pub workloads: Vec<WorkloadInfo>,
    /// Fractions in percent.
    pub fractions: Vec<u32>,
    /// Number of repetitions that the user asked for.
    pub repetitions: u32,
    /// All samples, in the order in which they were taken.
    pub samples: Vec<CellSample>,
    /// Remarks, such as cells that were left out because time was short.
    pub notes: Vec<String>,
    /// The figures with requirements, where they were measured.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// Duration of the whole run.
    pub elapsed_seconds: f64,
}

impl Results {
    /// The samples of a cell. The system `none` has no limit and serves all fractions.
    pub fn cell<'a>(
        &'a self,
        workload: &'a str,
        system: &'a str,
        fraction: u32,
    ) -> impl Iterator<Item = &'a CellSample> {
        let of_all = system == "none";
        self.samples.iter().filter(move |sample| {
            sample.workload == workload && sample.system == system && (of_all || sample.fraction == fraction)
        })
    }

    /// The samples of a cell that have a time.
    pub fn good<'a>(
        &'a self,
        workload: &'a str,
        system: &'a str,
        fraction: u32,
    ) -> impl Iterator<Item = &'a CellSample> {
        self.cell(workload, system, fraction).filter(|sample| sample.outcome == CellOutcome::Ok)
    }

    /// The median of a figure over the good samples of a cell.
    pub fn median(
        &self,
        workload: &str,
        system: &str,
        fraction: u32,
        what: impl Fn(&CellSample) -> f64,
    ) -> Option<f64> {
        let values: Vec<f64> = self.good(workload, system, fraction).map(what).collect();
        crate::measure::statistics::Summary::of(&values).map(|summary| summary.median)
    }

    /// The first sample of a cell that has no time, if there is one.
    pub fn bad<'a>(&'a self, workload: &'a str, system: &'a str, fraction: u32) -> Option<&'a CellSample> {
        self.cell(workload, system, fraction).find(|sample| sample.outcome != CellOutcome::Ok)
    }
}
