//! One cell of the matrix, run once: a workload under a system with a limit.
//!
//! Guards restore the machine in a fixed order: the group with all its processes is removed first,
//! then swap.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::measure::cgroup::{BenchCgroup, Hierarchy, Limits};
use crate::measure::launch::{Ended, Launch, StoppedGroup, last_line, run};
use crate::measure::proc_text::{Traffic, ZramUse, zswap_use};
use crate::report::results::{CellOutcome, CellSample};
use crate::system::kernel::KernelSwap;
use crate::system::{System, SystemKind, fault_points, uswap_words};
use crate::workload::Prepared;

/// The parameters that all cells share.
#[derive(Debug)]
pub struct Bench {
    /// The hierarchy for new groups, or why none can be made.
    pub hierarchy: Result<Hierarchy, String>,
    /// The uswap that is measured, or why there is none.
    pub uswap: Result<PathBuf, String>,
    /// Folder for the files of the cells.
    pub folder: PathBuf,
}

/// One run of a cell.
#[derive(Debug)]
pub struct MatrixCell<'a> {
    /// The name of the workload.
    pub workload: &'a str,
    /// The command of the workload.
    pub prepared: &'a Prepared,
    /// The right answer, if it is known already.
    pub answer: Option<&'a str>,
    /// The system that runs it.
    pub system: &'a System,
    /// The limit in percent of the workload's peak.
    pub fraction: u32,
    /// The peak in bytes; 0 while it is not known.
    pub peak: u64,
    /// The number of the repetition, from 1; 0 is the first run without a limit.
    pub repetition: u32,
    /// Time after which the run is killed.
    pub timeout: Duration,
}

/// Smallest limit in bytes, whatever the fraction: the engine's smallest budget and some room.
pub const MIN_LIMIT: u64 = 24 << 20;

/// Figures observed while a cell ran.
#[derive(Debug, Default)]
struct CellSeen {
    ticks: u32,
    working_set: u64,
    swap_used: u64,
    zram: ZramUse,
    before_compression: u64,
    after_compression: u64,
}

impl CellSeen {
    fn compressed(&mut self, before: u64, after: u64) {
        if before > self.before_compression {
            (self.before_compression, self.after_compression) = (before, after);
        }
    }

    fn look(&mut self, group: Option<&BenchCgroup>, swap: Option<&KernelSwap>, run: Option<(&Path, &str)>) {
        self.ticks += 1;
        if let Some(group) = group {
            self.working_set = self.working_set.max(group.working_set());
        }
        if let Some(swap) = swap.filter(|_| self.ticks.is_multiple_of(5)) {
            self.swap_used = self.swap_used.max(swap.used());
            let (before, after) = match swap.zram() {
                Some(zram) => {
                    self.zram.memory_peak = self.zram.memory_peak.max(zram.memory_peak);
                    (zram.original, zram.compressed)
                }
                None => zswap_use(),
            };
            self.compressed(before, after);
        }
        if let Some((binary, name)) = run.filter(|_| self.ticks.is_multiple_of(50)) {
            let (before, after, on_devices) = ask_run(binary, name).unwrap_or_default();
            self.compressed(before, after);
            self.swap_used = self.swap_used.max(on_devices);
        }
    }
}

/// Bytes in the pool of a run before and after compression, and bytes on its devices.
fn ask_run(binary: &Path, name: &str) -> Option<(u64, u64, u64)> {
    let output = Command::new(binary).args(["status", "--json", name]).stderr(Stdio::null()).output().ok()?;
    let told: Value = serde_json::from_slice(&output.stdout).ok()?;
    let get = |name: &str| told["figures"][name].as_u64();
    let stored = get("stored_pages")?.saturating_sub(get("same_filled_pages")?) << 12;
    Some((stored, get("pool_stored_bytes")?, of_devices(&told["figures"], "used_bytes").unwrap_or(0)))
}

/// The sum of a figure over all devices of a run.
fn of_devices(figures: &Value, name: &str) -> Option<u64> {
    figures["devices"].as_array()?.iter().map(|device| device[name].as_u64()).sum()
}

impl Bench {
    /// Runs a cell once.
    ///
    /// # Errors
    /// The signal that asked this tool to end.
    pub fn run(&self, cell: &MatrixCell<'_>) -> Result<CellSample, i32> {
        let sample =
            |outcome| CellSample::of(cell.workload, &cell.system.name, cell.fraction, cell.repetition, outcome);
        match self.try_run(cell) {
            Ok(sample) => Ok(sample),
            Err(Unrun::Skipped(why)) => Ok(sample(CellOutcome::Skipped(why))),
            Err(Unrun::Stopped(StoppedGroup::Unstartable(why))) => Ok(sample(CellOutcome::Failed(why))),
            Err(Unrun::Stopped(StoppedGroup::Interrupted(signal))) => Err(signal),
        }
    }

    fn try_run(&self, cell: &MatrixCell<'_>) -> Result<CellSample, Unrun> {
        let limit = self.limit(cell)?;
        let room = 2 * cell.peak + (256 << 20);
        let swap = match &cell.system.kind {
            SystemKind::Kernel(plan) => Some(KernelSwap::new(plan, &self.folder, room).map_err(Unrun::Skipped)?),
            _ => None,
        };
        let kernel_swap = swap.is_some();
        let ram = limit.filter(|_| !cell.system.swaps_in_memory());
        let group = match &self.hierarchy {
            Ok(hierarchy) => Some(BenchCgroup::new(hierarchy, Limits { ram, kernel_swap }).map_err(Unrun::Skipped)?),
            Err(_) => None,
        };
        let folder = self.fresh_folder()?;
        let name = format!("{}{}", crate::measure::cgroup::PREFIX, std::process::id());
        let (mut words, binary) = self.words(cell, limit, &folder, &name, room)?;
        words.extend(cell.prepared.words.iter().cloned());
        let mut environment = vec![
            ("TMPDIR".into(), folder.clone().into_os_string()),
            ("USWAP_BENCH_SYSTEM".into(), (&cell.system.name).into()),
        ];
        if let SystemKind::Uswap { options, .. } = &cell.system.kind {
            environment.push(("USWAP_FAULT_POINTS".into(), fault_points(options).0.into()));
        }
        let launch = Launch { words, environment, folder: &folder, group: group.as_ref(), timeout: cell.timeout };
        let mut seen = CellSeen::default();
        let before = Traffic::now();
        let run_to_ask = binary.as_deref().map(|binary| (binary, name.as_str()));
        let ended = run(&launch, || seen.look(group.as_ref(), swap.as_ref(), run_to_ask)).map_err(Unrun::Stopped)?;
        let traffic = Traffic::now().since(before);
        let stats = fs::read_to_string(folder.join("stats.json")).unwrap_or_default();
        let stats = serde_json::from_str(&stats).unwrap_or(Value::Null);
        Ok(cell.sample(&ended, limit, &seen, traffic, group.as_ref(), &stats))
    }

    fn limit(&self, cell: &MatrixCell<'_>) -> Result<Option<u64>, Unrun> {
        match (&cell.system.kind, &self.hierarchy) {
            (SystemKind::None, _) => Ok(None),
            (_, Ok(_)) if cell.peak == 0 => Err(Unrun::Skipped("its peak is not known".into())),
            (_, Ok(_)) => {
                let limit = cell.peak * u64::from(cell.fraction) / 100;
                // Whole pages: the kernel rounds down, and the budget is computed from the same
                // limit.
                Ok(Some((limit >> 12 << 12).max(MIN_LIMIT)))
            }
            (_, Err(why)) => Err(Unrun::Skipped(why.clone())),
        }
    }

    fn fresh_folder(&self) -> Result<PathBuf, Unrun> {
        let folder = self.folder.join("cell");
        let _ = fs::remove_dir_all(&folder);
        let failed = |error| Unrun::Stopped(StoppedGroup::Unstartable(format!("{}: {error}", folder.display())));
        fs::create_dir_all(&folder).map_err(failed)?;
        Ok(folder)
    }

    /// The words before the command, and the binary to ask about the run.
    fn words(
        &self,
        cell: &MatrixCell<'_>,
        limit: Option<u64>,
        folder: &Path,
        name: &str,
        room: u64,
    ) -> Result<(Vec<OsString>, Option<PathBuf>), Unrun> {
        let SystemKind::Uswap { binary, options, fixed } = &cell.system.kind else { return Ok((Vec::new(), None)) };
        let binary = match binary {
            Some(binary) => binary.clone(),
            None => self.uswap.clone().map_err(Unrun::Skipped)?,
        };
        let (_, mut options) = fault_points(options);
        options.extend(["--name".into(), name.into()]);
        let swap = format!("{},size={room}", folder.join("uswap.swap").display());
        let words = uswap_words(&binary, &options, *fixed, limit, &folder.join("stats.json"), Some(&swap));
        Ok((words.into_iter().map(Into::into).collect(), Some(binary)))
    }
}

/// Why a cell has no result.
#[derive(Debug)]
enum Unrun {
    Skipped(String),
    Stopped(StoppedGroup),
}

/// The last line of a workload's output: JSON, or text after `answer`.
fn told(stdout: &str) -> Value {
    let line = stdout.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match line.strip_prefix("answer ") {
        Some(answer) => serde_json::json!({ "answer": answer.trim() }),
        None => serde_json::from_str(line).ok().filter(Value::is_object).unwrap_or(Value::Null),
    }
}

impl MatrixCell<'_> {
    fn outcome(&self, ended: &Ended, told: &Value, oom_kills: u64) -> CellOutcome {
        if ended.timed_out {
            return CellOutcome::TimedOut(format!("more than {} s", self.timeout.as_secs()));
        }
        match ended.code() {
            0 => {}
            _ if oom_kills > 0 => return CellOutcome::OomKilled(ended.in_words()),
            1 if ended.complaint.starts_with("uswap-workload:") => return CellOutcome::Wrong(ended.complaint.clone()),
            _ => return CellOutcome::Failed(ended.in_words()),
        }
        match (told.get("answer").and_then(Value::as_str), self.answer) {
            (None, _) => CellOutcome::Wrong(format!("no answer, but {:?}", last_line(&ended.stdout))),
            (Some(found), Some(right)) if found != right => {
                CellOutcome::Wrong(format!("{found:?} instead of {right:?}"))
            }
            _ => CellOutcome::Ok,
        }
    }

    fn sample(
        &self,
        ended: &Ended,
        limit: Option<u64>,
        seen: &CellSeen,
        traffic: Traffic,
        group: Option<&BenchCgroup>,
        stats: &Value,
    ) -> CellSample {
        let told = told(&ended.stdout);
        let oom_kills = group.map_or(0, BenchCgroup::oom_kills);
        let outcome = self.outcome(ended, &told, oom_kills);
        let wall_seconds = ended.elapsed.as_secs_f64();
        let planned = told.get("seconds").and_then(Value::as_f64).unwrap_or(wall_seconds);
        let (user_seconds, system_seconds) = group.and_then(BenchCgroup::processor_seconds).unwrap_or_default();
        let stat = |name: &str, or: u64| stats.get(name).and_then(Value::as_u64).unwrap_or(or);
        let ratio = seen.before_compression as f64 / seen.after_compression.max(1) as f64;
        CellSample {
            seconds: if outcome == CellOutcome::Ok { planned } else { 0.0 },
            wall_seconds,
            user_seconds,
            system_seconds,
            limit_bytes: limit.unwrap_or(0),
            peak_bytes: group.map_or(0, BenchCgroup::peak),
            // A workload that ended before the first observation is small: then the peak of all
            // charged memory is good enough.
            working_set_bytes: if seen.working_set > 0 { seen.working_set } else { group.map_or(0, BenchCgroup::peak) },
            outside_bytes: seen.zram.memory_peak,
            swap_used_bytes: seen.swap_used,
            pswpin: stat("pswpin", traffic.pswpin),
            pswpout: stat("pswpout", traffic.pswpout),
            zswpin: stat("zswpin", traffic.zswpin),
            zswpout: stat("zswpout", traffic.zswpout),
            major_faults: stat("pgmajfault", 0) + group.map_or(0, BenchCgroup::major_faults),
            read_bytes: of_devices(stats, "read_bytes").unwrap_or(traffic.read_bytes),
            written_bytes: of_devices(stats, "written_bytes").unwrap_or(traffic.written_bytes),
            compression_ratio: if seen.after_compression > 0 { ratio } else { 0.0 },
            oom_kills,
            told,
            fault_latency: stats.get("fault_latency").cloned().unwrap_or(Value::Null),
            ..CellSample::of(self.workload, &self.system.name, self.fraction, self.repetition, outcome)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_answer() {
        assert_eq!(told("a\nanswer 42 7 \n\n")["answer"], "42 7");
        assert_eq!(told("x\n{\"answer\":\"whole\",\"seconds\":2.5}\n")["seconds"], 2.5);
        assert_eq!(told("answers 3"), Value::Null);
        assert_eq!(told("[1]"), Value::Null);
        assert_eq!(told(""), Value::Null);
    }

    #[test]
    fn the_compression_ratio_is_that_of_the_largest_use() {
        let mut seen = CellSeen::default();
        seen.compressed(100, 50);
        seen.compressed(400, 100);
        seen.compressed(10, 10);
        assert_eq!((seen.before_compression, seen.after_compression), (400, 100));
    }
}
