//! What is kept of a run: one [`CellSample`] for each time a cell was run, and the machine it ran
//! on. `results.json` is this, written out.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::measure::machine::MachineInfo;

/// How a run of a cell ended. Only [`CellOutcome::Ok`] has a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "reason")]
pub enum CellOutcome {
    /// It ended with the right answer.
    Ok,
    /// It ended with another answer, or found its own memory wrong.
    Wrong(String),
    /// It ended with an error.
    Failed(String),
    /// The kernel killed a process of it for want of memory.
    OomKilled(String),
    /// It did not end in time.
    TimedOut(String),
    /// It was not run: something is missing here.
    Skipped(String),
    /// It was not run: the time given to the whole was over.
    Cut(String),
}

impl CellOutcome {
    /// In the words of a table.
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

    /// In one or two words.
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

    /// It was run and did not end well.
    pub fn is_failure(&self) -> bool {
        !matches!(self, Self::Ok | Self::Skipped(_) | Self::Cut(_))
    }
}

/// One run of one cell. Sizes in bytes, times in seconds, traffic in pages of 4 KiB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellSample {
    /// The workload's name.
    pub workload: String,
    /// The system's name.
    pub system: String,
    /// The limit as a percentage of the workload's peak; 0 is no limit.
    pub fraction: u32,
    /// Which repetition, from 1.
    pub repetition: u32,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: CellOutcome,
    /// What is compared: the time of the planned work. 0 unless it is ok.
    pub seconds: f64,
    /// From start to end, setting up and checking included.
    pub wall_seconds: f64,
    /// User time of everything that ran, an engine included.
    pub user_seconds: f64,
    /// System time of the same.
    pub system_seconds: f64,
    /// The hard limit.
    pub limit_bytes: u64,
    /// The most the group was charged.
    pub peak_bytes: u64,
    /// The most anonymous memory, mapped file pages and kernel memory seen at a time.
    pub working_set_bytes: u64,
    /// Memory outside of the group that held its pages (zram's store).
    pub outside_bytes: u64,
    /// The most swap space in use.
    pub swap_used_bytes: u64,
    /// Pages read from swap devices.
    pub pswpin: u64,
    /// Pages written to swap devices.
    pub pswpout: u64,
    /// Pages loaded from a compressed pool.
    pub zswpin: u64,
    /// Pages stored into a compressed pool.
    pub zswpout: u64,
    /// Faults that waited for a page to be brought back.
    pub major_faults: u64,
    /// Bytes read from the devices of a run of uswap; of others, what all disks of the machine read
    /// meanwhile.
    pub read_bytes: u64,
    /// The same, written.
    pub written_bytes: u64,
    /// Bytes before compression for each byte after, at the largest use; 0 is not known.
    pub compression_ratio: f64,
    /// Processes that the kernel killed for want of memory.
    pub oom_kills: u64,
    /// What the workload told.
    pub told: Value,
    /// Fault latencies by tier, as the engine told them.
    pub fault_latency: Value,
}

impl CellSample {
    /// A sample of a cell that was not run, or of which only the outcome is known yet.
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
    /// Its name.
    pub name: String,
    /// What it does.
    pub about: String,
    /// The working set without a limit, of which fractions are taken; 0 when it was not run.
    pub peak_bytes: u64,
}

/// A ratio that a requirement states a limit for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What was compared.
    pub name: String,
    /// The value, in `unit`; `None` where it could not be measured.
    pub value: Option<f64>,
    /// `ratio`, `ms` or `%`.
    pub unit: String,
    /// At most this is required.
    pub at_most: f64,
    /// The measurements behind it, or why there is none.
    pub detail: String,
}

/// Everything of one run of the tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Where it ran.
    pub machine: MachineInfo,
    /// The words of the command line.
    pub command: Vec<String>,
    /// The systems, in the order of the command line; the first is the baseline.
    pub systems: Vec<String>,
    /// The workloads that were asked for.
    pub workloads: Vec<WorkloadInfo>,
    /// Fractions in percent.
    pub fractions: Vec<u32>,
    /// Repetitions that were asked for.
    pub repetitions: u32,
    /// All samples, in the order they were taken.
    pub samples: Vec<CellSample>,
    /// What was left out for lack of time, and other remarks.
    pub notes: Vec<String>,
    /// The figures with requirements, where they were measured.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// How long all took.
    pub elapsed_seconds: f64,
}

impl Results {
    /// The samples of a cell. `none` has no limit and serves all fractions.
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

    /// The median of something over the good samples of a cell.
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
