//! The command line: its grammar, and how each command is executed.

pub mod page_commands;

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};

use crate::matrix::cell::Bench;
use crate::matrix::{self, figures};
use crate::measure::cgroup::{Hierarchy, Version};
use crate::measure::launch::ScratchFolder;
use crate::measure::machine::MachineInfo;
use crate::report::results::{CellOutcome, Results};
use crate::report::{self, plots};
use crate::studies::{compare, fault_latency, locks, packing, zswap};
use crate::system::System;
use crate::workload::real;
use crate::workload::{WorkFolder, Workload, WorkloadFamily, all, select};
use page_commands::{CodecsArguments, OwnMemoryArguments, SampleArguments, UnitsArguments};

/// Exit statuses.
pub mod exit {
    /// A row failed, or a report could not be written.
    pub const FAILED: i32 = 1;
    /// Wrong usage.
    pub const USAGE: i32 = 2;
    /// Refused: another run of this tool is active, or something that is needed is missing.
    pub const REFUSED: i32 = 125;
}

const AFTER: &str = "\
Systems: none, uswap, uswap-fixed, uswap:OPTIONS, uswap@PATH[:OPTIONS], kernel-swapfile,
kernel-zswap[:COMPRESSOR|:each], kernel-zram[:ALGORITHM|:each].
Without root only `none` runs; the other rows say why.

Exit status: 0 every row that was run is fine; 1 a row failed; 2 wrong usage; 125 refused; 128+N ended by signal N
(swap, zram, zswap and cgroups are put back first).";

/// The command line.
#[derive(Parser, Debug)]
#[command(
    name = "uswap-bench",
    version,
    about = "Runs programs in less memory than they need, by uswap and by the kernel, and writes a report",
    after_help = AFTER,
    args_conflicts_with_subcommands = true
)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    matrix: MatrixArguments,
}

#[derive(Subcommand, Debug)]
enum BenchCommand {
    /// Name all workloads
    List,
    /// Measure the figures that have a requirement (about two minutes)
    Figures {
        #[command(flatten)]
        common: Common,
    },
    /// Compare two builds of uswap in pairs, with a confidence interval (under a minute as it is)
    Compare(CompareArguments),
    /// Measure what the locks of the swap core cost, with one change after the other (about two
    /// minutes)
    Locks(LocksArguments),
    /// Measure what faults of several threads at random take, beside zram (about two minutes)
    Faults(FaultsArguments),
    /// Measure what packed writeback saves, beside a slot for each page (minutes; see --budget)
    Packing(PackingArguments),
    /// Build part of a kernel with 8 to 24 jobs on one budget, as in the zswap document (minutes;
    /// see --budget)
    Zswap(ZswapArguments),
    /// Take pages of a command's memory while it runs, to measure compressors on
    Sample(SampleArguments),
    /// Measure compressors and allocators of the pool on pages that `sample` took
    Codecs(CodecsArguments),
    /// Compare units of 16 KiB with single pages, on pages that `sample --neighbours 4` took
    Units(UnitsArguments),
    /// Count the bytes that uswap's own tables take for a resident and for a stored page (seconds)
    OwnMemory(OwnMemoryArguments),
    /// Write report and plots again from the results.json in a folder
    Report {
        /// The folder
        folder: PathBuf,
    },
}

#[derive(Args, Debug, Clone)]
struct Common {
    /// The uswap to measure (default: beside this program, then in PATH)
    #[arg(long, value_name = "PATH")]
    uswap: Option<PathBuf>,
    /// Folder for inputs, swap files and output of the workloads, on a disk; cleared at the end
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    work: PathBuf,
}

#[derive(Args, Debug)]
struct MatrixArguments {
    #[command(flatten)]
    common: Common,
    /// Name all workloads and end
    #[arg(long)]
    list: bool,
    /// Workloads: a name, START*, micro, real or all. May be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    workload: Vec<String>,
    /// Systems, see below. May be repeated
    #[arg(long, value_name = "NAME")]
    system: Vec<String>,
    /// Memory in percent of what a workload needs. May be repeated
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1000))]
    fraction: Vec<u32>,
    /// How often everything is run [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Begin nothing that would end after so many minutes; 0 is no end [default: 25]
    #[arg(long, value_name = "MINUTES")]
    budget: Option<u64>,
    /// Kill a run after so many seconds [default: 12 times as long as without a limit, between 20
    /// and 90]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// About how much memory a workload takes [default: 384]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(32..=1_048_576))]
    mib: Option<u32>,
    /// Visits of a micro workload end after so many seconds [default: 1.5]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// A look in under a minute: four patterns, half of the memory, uswap and zram
    #[arg(long)]
    quick: bool,
    /// Leave out the figures that have a requirement
    #[arg(long)]
    no_figures: bool,
    /// Install what the real workloads use first (apt, pip; as root)
    #[arg(long)]
    install: bool,
    /// Folder for results.json, report.md and plots
    #[arg(long, value_name = "DIR", default_value = "bench-results")]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct CompareArguments {
    /// The build to compare with
    #[arg(long, value_name = "PATH")]
    base: PathBuf,
    /// The build that is judged
    #[arg(long, value_name = "PATH")]
    new: PathBuf,
    /// Workloads, as in a run of the matrix
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    workload: Vec<String>,
    /// Memory in percent of what a workload needs
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    fraction: u32,
    /// Pairs of runs
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pairs: u32,
    /// About how much memory a workload takes
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u32).range(32..=1_048_576))]
    mib: u32,
    /// Visits of a micro workload end after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct LocksArguments {
    /// Numbers of threads
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 8, 32])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Vec<u32>,
    /// How often everything is run
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long each run is
    #[arg(long, value_name = "SECONDS", default_value_t = 0.4)]
    seconds: f64,
    /// File for the tables, as Markdown; they are printed in any case
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct FaultsArguments {
    #[command(flatten)]
    common: Common,
    /// Threads that fault
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// What pages hold, as in `uswap-workload memory --content`
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = ["text", "incompressible"])]
    content: Vec<String>,
    /// The limit; the program takes twice as much
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(32..=1_048_576))]
    mib: u32,
    /// How often everything is run
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long each run visits pages
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Also write the table to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// What questions of their own share.
#[derive(Args, Debug)]
struct BenchQuestion {
    #[command(flatten)]
    common: Common,
    /// How often everything is run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Begin nothing that would end after so many minutes
    #[arg(long, value_name = "MINUTES", default_value_t = 20.0)]
    budget: f64,
    /// Kill a run after so many seconds [default: 12 times as long as without a limit, between 20
    /// and 90]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// About how much memory a workload takes
    #[arg(long, value_name = "MIB", default_value_t = 192, value_parser = clap::value_parser!(u32).range(32..=1_048_576))]
    mib: u32,
    /// Also write the tables to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct PackingArguments {
    #[command(flatten)]
    question: BenchQuestion,
    /// Workloads, as in a run of the matrix
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    workload: Vec<String>,
    /// Memory in percent of what a workload needs
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [50, 25])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    fraction: Vec<u32>,
    /// The pool, in percent of the budget: small, so that devices are used
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=90))]
    pool: u32,
    /// Visits of a micro workload end after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
}

#[derive(Args, Debug)]
struct ZswapArguments {
    #[command(flatten)]
    question: BenchQuestion,
    /// Numbers of jobs
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [8, 12, 16, 20, 24])]
    jobs: Vec<usize>,
    /// The budget in percent of what the largest build needs [default: the one at which a swap file
    /// makes it three times slower]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    fraction: Option<u32>,
}

/// The patterns of `--quick`.
const QUICK: [&str; 4] = ["seq", "cyclic", "zipf-1.2", "random"];
/// The systems that are compared when the user names none.
const SYSTEMS: [&str; 5] = ["none", "uswap", "kernel-swapfile", "kernel-zswap", "kernel-zram"];

/// A refusal: the message, and the exit status.
pub(crate) type BenchRefusal = (String, i32);

fn usage(text: String) -> BenchRefusal {
    (text, exit::USAGE)
}

pub(crate) fn refused(text: String) -> BenchRefusal {
    (text, exit::REFUSED)
}

/// Executes the command line; returns the exit status.
pub fn run(line: &CommandLine) -> i32 {
    let outcome = match &line.command {
        _ if line.matrix.list => list(),
        Some(BenchCommand::List) => list(),
        Some(BenchCommand::Figures { common }) => only_figures(common),
        Some(BenchCommand::Compare(arguments)) => comparison(arguments),
        Some(BenchCommand::Locks(arguments)) => only_locks(arguments),
        Some(BenchCommand::Faults(arguments)) => only_faults(arguments),
        Some(BenchCommand::Packing(arguments)) => only_packing(arguments),
        Some(BenchCommand::Zswap(arguments)) => only_zswap(arguments),
        Some(BenchCommand::Sample(arguments)) => page_commands::sample_pages(arguments),
        Some(BenchCommand::Codecs(arguments)) => page_commands::only_codecs(arguments),
        Some(BenchCommand::Units(arguments)) => page_commands::only_units(arguments),
        Some(BenchCommand::OwnMemory(arguments)) => page_commands::own_memory(arguments),
        Some(BenchCommand::Report { folder }) => again(folder),
        None => whole(&line.matrix),
    };
    outcome.unwrap_or_else(|(text, status)| {
        eprintln!("uswap-bench: {text}");
        status
    })
}

fn list() -> Result<i32, BenchRefusal> {
    for workload in all().iter().filter(|workload| workload.family != WorkloadFamily::Test) {
        println!("{:16} {}", workload.name, workload.about);
    }
    Ok(0)
}

/// The lock, the scratch folder and the programs, which every measurement needs.
struct Setting {
    bench: Bench,
    place: WorkFolder,
    _scratch: ScratchFolder,
    _lock: File,
}

impl Setting {
    fn new(common: &Common, mib: u32, seconds: f64) -> Result<Self, BenchRefusal> {
        check_seconds(seconds)?;
        let lock = lock()?;
        uswap_sys::process::interrupt::remember_requests_to_end().map_err(|error| refused(error.to_string()))?;
        let scratch = ScratchFolder::new(&common.work).map_err(refused)?;
        let beside = std::env::current_exe().map_err(|error| refused(error.to_string()))?;
        let beside = beside.parent().unwrap_or(Path::new("/")).to_path_buf();
        let workloads = beside.join("uswap-workload");
        if !workloads.exists() {
            return Err(refused(format!("{} is not there: build the whole workspace", workloads.display())));
        }
        let folder = scratch.path().to_path_buf();
        let bench = Bench { hierarchy: hierarchy(), uswap: find_uswap(common, &beside)?, folder: folder.clone() };
        let place = WorkFolder { folder, workloads, mib: mib as usize, seconds };
        Ok(Self { bench, place, _scratch: scratch, _lock: lock })
    }

    fn machine(&self) -> MachineInfo {
        let version = match &self.bench.hierarchy {
            Ok(hierarchy) if hierarchy.version() == Version::V1 => "version 1".into(),
            Ok(_) => "version 2".into(),
            Err(why) => format!("not at all ({why})"),
        };
        MachineInfo::here(&self.place.folder, &version)
    }
}

fn check_seconds(seconds: f64) -> Result<(), BenchRefusal> {
    match seconds > 0.0 && seconds < 3600.0 {
        true => Ok(()),
        false => Err(usage(format!("--seconds {seconds}: more than 0 and less than an hour"))),
    }
}

fn hierarchy() -> Result<Hierarchy, String> {
    if uswap_sys::process::user() != 0 {
        return Err("not root: no cgroup and no swap can be set up".into());
    }
    Hierarchy::find()
}

fn find_uswap(common: &Common, beside: &Path) -> Result<Result<PathBuf, String>, BenchRefusal> {
    match &common.uswap {
        Some(given) => Ok(Ok(executable(given)?)),
        None => {
            let built = beside.join("uswap");
            let found = if built.is_file() { Some(built) } else { real::installed("uswap") };
            Ok(found.ok_or_else(|| "no uswap beside this program nor in PATH; name one by --uswap".into()))
        }
    }
}

/// The absolute path of a program that exists.
fn executable(path: &Path) -> Result<PathBuf, BenchRefusal> {
    let found = fs::canonicalize(path).map_err(|error| usage(format!("{}: {error}", path.display())))?;
    if found.is_file() { Ok(found) } else { Err(usage(format!("{}: not a program", path.display()))) }
}

/// Takes the lock of this tool: two runs at a time would disturb each other's measurements, and
/// zswap.
fn lock() -> Result<File, BenchRefusal> {
    let path = std::env::temp_dir().join("uswap-bench.lock");
    let failed = |error: std::io::Error| refused(format!("{}: {error}", path.display()));
    let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(refused("another uswap-bench is running".into())),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

impl MatrixArguments {
    fn workloads(&self) -> Result<Vec<Workload>, BenchRefusal> {
        let names = match (self.workload.is_empty(), self.quick) {
            (false, _) => self.workload.clone(),
            (true, true) => QUICK.map(String::from).to_vec(),
            (true, false) => vec!["all".into()],
        };
        select(&names).map_err(usage)
    }

    /// The systems, each once, `none` first.
    fn systems(&self) -> Result<Vec<System>, BenchRefusal> {
        let default: Vec<String> = match self.quick {
            true => vec!["uswap".into(), "kernel-zram".into()],
            false => SYSTEMS.map(String::from).to_vec(),
        };
        let names = if self.system.is_empty() { &default } else { &self.system };
        let mut systems = vec![System::none()];
        for name in names {
            for system in System::parse(name).map_err(usage)? {
                if !systems.contains(&system) {
                    systems.push(system);
                }
            }
        }
        Ok(systems)
    }

    fn fractions(&self) -> Vec<u32> {
        match (self.fraction.is_empty(), self.quick) {
            (false, _) => self.fraction.clone(),
            (true, true) => vec![50],
            (true, false) => vec![100, 75, 50, 25],
        }
    }

    /// Whether figures are to be measured after the matrix.
    fn wants_figures(&self) -> bool {
        !(self.quick || self.no_figures)
    }

    fn plan(&self, place: &WorkFolder) -> Result<matrix::MatrixPlan, BenchRefusal> {
        let minutes = self.budget.unwrap_or(if self.quick { 1 } else { 25 });
        let figures = if self.wants_figures() { figures::TAKES } else { Duration::ZERO };
        Ok(matrix::MatrixPlan {
            systems: self.systems()?,
            workloads: self.workloads()?,
            fractions: self.fractions(),
            repetitions: self.repetitions.unwrap_or(if self.quick { 2 } else { 3 }),
            budget: (minutes > 0).then(|| Duration::from_secs(minutes * 60).saturating_sub(figures)),
            timeout: self.timeout.map(Duration::from_secs),
            place: place.clone(),
        })
    }
}

fn whole(arguments: &MatrixArguments) -> Result<i32, BenchRefusal> {
    if arguments.install
        && let Err(why) = real::install()
    {
        eprintln!("uswap-bench: --install: {why}");
    }
    // Wrong names are reported before the machine is changed.
    arguments.workloads()?;
    let (mib, seconds) = if arguments.quick { (192, 1.0) } else { (384, 1.5) };
    let (mib, seconds) = (arguments.mib.unwrap_or(mib), arguments.seconds.unwrap_or(seconds));
    let start = Instant::now();
    let setting = Setting::new(&arguments.common, mib, seconds)?;
    let plan = arguments.plan(&setting.place)?;
    let machine = setting.machine();
    let mut done = matrix::run(&setting.bench, &plan);
    let mut figures = Vec::new();
    if arguments.wants_figures() && done.interrupted.is_none() {
        match figures::measure(&setting.bench, &setting.place) {
            Ok(measured) => figures = measured,
            Err(signal) => done.interrupted = Some(signal),
        }
    }
    let results = Results {
        machine,
        command: command_words(),
        systems: plan.systems.iter().map(|system| system.name.clone()).collect(),
        workloads: done.workloads,
        fractions: plan.fractions,
        repetitions: plan.repetitions,
        samples: done.samples,
        notes: done.notes,
        figures,
        elapsed_seconds: start.elapsed().as_secs_f64(),
    };
    drop(setting);
    write_results(&arguments.out, &results)?;
    Ok(done.interrupted.map_or_else(|| status_of(&results), |signal| 128 + signal))
}

/// The command line without the folders of this machine, since a report is read elsewhere.
fn command_words() -> Vec<String> {
    std::iter::once("uswap-bench".into()).chain(std::env::args().skip(1).map(|word| without_folders(&word))).collect()
}

/// `uswap@/build/uswap:--pool 30` becomes `uswap@uswap:--pool 30`.
fn without_folders(word: &str) -> String {
    let begin = word.find('@').map_or(0, |at| at + 1);
    let end = word[begin..].find(':').map_or(word.len(), |at| begin + at);
    let name = word[begin..end].rsplit('/').next().unwrap_or_default();
    format!("{}{name}{}", &word[..begin], &word[end..])
}

fn status_of(results: &Results) -> i32 {
    let failed = results.samples.iter().any(|sample| sample.outcome.is_failure());
    if failed { exit::FAILED } else { 0 }
}

fn write_results(folder: &Path, results: &Results) -> Result<(), BenchRefusal> {
    let failed = |path: &Path, error: std::io::Error| (format!("{}: {error}", path.display()), exit::FAILED);
    fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| failed(&path, error))
    };
    let json = serde_json::to_string_pretty(results).map_err(|error| (error.to_string(), exit::FAILED))?;
    write("results.json", &(json + "\n"))?;
    let plots = plots::write(results, folder).map_err(|why| (why, exit::FAILED))?;
    write("report.md", &report::write(results, &plots))?;
    let not_ok = results.samples.iter().filter(|sample| sample.outcome != CellOutcome::Ok).count();
    println!("{}: {} samples, {not_ok} without a time", folder.join("report.md").display(), results.samples.len());
    Ok(())
}

fn only_figures(common: &Common) -> Result<i32, BenchRefusal> {
    let setting = Setting::new(common, 384, 1.5)?;
    match figures::measure(&setting.bench, &setting.place) {
        Ok(_) => Ok(0),
        Err(signal) => Ok(128 + signal),
    }
}

fn only_locks(arguments: &LocksArguments) -> Result<i32, BenchRefusal> {
    check_seconds(arguments.seconds)?;
    let _lock = lock()?;
    // A file that cannot be written is reported before minutes of measuring.
    let file = create(arguments.out.as_deref())?;
    let machine = MachineInfo::here(Path::new("/"), "");
    let plan =
        locks::LocksPlan { threads: arguments.threads.clone(), rounds: arguments.rounds, seconds: arguments.seconds };
    let text = format!(
        "# Locks of the swap core\n{}; `{}`: medians of {} alternating rounds of {} s.\n\n{}",
        machine.heading(),
        command_words().join(" "),
        plan.rounds,
        plan.seconds,
        locks::measure(&plan),
    );
    tell(&text, file)?;
    Ok(0)
}

fn only_faults(arguments: &FaultsArguments) -> Result<i32, BenchRefusal> {
    let file = create(arguments.out.as_deref())?;
    let setting = Setting::new(&arguments.common, 2 * arguments.mib, arguments.seconds)?;
    setting.bench.hierarchy.as_ref().map_err(|why| refused(why.clone()))?;
    let plan = fault_latency::LatencyPlan {
        threads: arguments.threads,
        contents: arguments.content.clone(),
        limit: u64::from(arguments.mib) << 20,
        rounds: arguments.rounds,
        seconds: arguments.seconds,
    };
    let rows = match fault_latency::measure(&setting.bench, &setting.place, &plan) {
        Ok(rows) => rows,
        Err(Ok(signal)) => return Ok(128 + signal),
        Err(Err(why)) => return Err(usage(why)),
    };
    let text = format!(
        "# Faults of {} threads at random\n{}; `{}`: twice {} MiB, medians of {} alternating rounds of {} s, least and most in \
         brackets.\n\n{}",
        plan.threads,
        setting.machine().heading(),
        command_words().join(" "),
        arguments.mib,
        plan.rounds,
        plan.seconds,
        fault_latency::table(&rows),
    );
    tell(&text, file)?;
    Ok(if fault_latency::any_failure(&rows) { exit::FAILED } else { 0 })
}

impl BenchQuestion {
    fn budget(&self) -> Result<Duration, BenchRefusal> {
        match self.budget > 0.0 && self.budget < 10_000.0 {
            true => Ok(Duration::from_secs_f64(self.budget * 60.0)),
            false => Err(usage(format!("--budget {}: more than 0 minutes", self.budget))),
        }
    }

    /// The file for the tables, opened before minutes of measuring.
    fn file(&self) -> Result<Option<File>, BenchRefusal> {
        create(self.out.as_deref())
    }
}

fn create(path: Option<&Path>) -> Result<Option<File>, BenchRefusal> {
    path.map(|path| File::create(path).map_err(|error| failed(path, &error))).transpose()
}

/// Prints the document, and writes it to the file if there is one. To be called before the scratch
/// folder is removed, which takes seconds when it contains a kernel tree.
fn tell(text: &str, file: Option<File>) -> Result<(), BenchRefusal> {
    print!("{text}");
    file.map_or(Ok(()), |mut file| file.write_all(text.as_bytes())).map_err(|error| (error.to_string(), exit::FAILED))
}

/// The results of a run, with the machine and the command line.
fn results_of(
    machine: MachineInfo,
    done: matrix::Done,
    systems: Vec<String>,
    fractions: Vec<u32>,
    repetitions: u32,
) -> Results {
    Results {
        machine,
        command: command_words(),
        systems,
        workloads: done.workloads,
        fractions,
        repetitions,
        samples: done.samples,
        notes: done.notes,
        ..Results::default()
    }
}

fn only_packing(arguments: &PackingArguments) -> Result<i32, BenchRefusal> {
    let question = &arguments.question;
    let names = if arguments.workload.is_empty() {
        packing::WORKLOADS.map(String::from).to_vec()
    } else {
        arguments.workload.clone()
    };
    let (workloads, budget, file) = (select(&names).map_err(usage)?, question.budget()?, question.file()?);
    let setting = Setting::new(&question.common, question.mib, arguments.seconds)?;
    setting.bench.hierarchy.as_ref().map_err(|why| refused(why.clone()))?;
    let machine = setting.machine();
    let names = packing::systems(arguments.pool);
    let parse = |name: &String| System::parse(name).map_err(usage).map(|mut systems| systems.remove(0));
    let systems: Vec<System> = names.iter().map(parse).collect::<Result<_, _>>()?;
    let plan = matrix::MatrixPlan {
        systems: std::iter::once(System::none()).chain(systems).collect(),
        workloads,
        fractions: arguments.fraction.clone(),
        repetitions: question.repetitions,
        budget: Some(budget),
        timeout: question.timeout.map(Duration::from_secs),
        place: setting.place.clone(),
    };
    let done = matrix::run(&setting.bench, &plan);
    let interrupted = done.interrupted;
    let results = results_of(machine, done, names.to_vec(), plan.fractions, plan.repetitions);
    tell(&(packing::head(&results) + &packing::table(&results, &names)), file)?;
    Ok(interrupted.map_or_else(|| status_of(&results), |signal| 128 + signal))
}

fn only_zswap(arguments: &ZswapArguments) -> Result<i32, BenchRefusal> {
    let question = &arguments.question;
    if let Some(odd) = arguments.jobs.iter().find(|jobs| !crate::workload::JOBS.contains(jobs)) {
        return Err(usage(format!("--jobs {odd}: there are 8, 12, 16, 20 and 24")));
    }
    let request = zswap::BuildRequest {
        jobs: arguments.jobs.clone(),
        fraction: arguments.fraction,
        repetitions: question.repetitions,
        budget: question.budget()?,
        timeout: question.timeout.map(Duration::from_secs),
    };
    let file = question.file()?;
    let setting = Setting::new(&question.common, question.mib, 1.0)?;
    setting.bench.hierarchy.as_ref().map_err(|why| refused(why.clone()))?;
    let machine = setting.machine();
    let (done, fraction) = zswap::run(&setting.bench, &setting.place, &request);
    let interrupted = done.interrupted;
    let mut systems: Vec<String> = done.samples.iter().map(|sample| sample.system.clone()).collect();
    systems.sort();
    systems.dedup();
    let results = results_of(machine, done, systems, vec![fraction], question.repetitions);
    let head = packing::head(&results).replacen("Packed writeback", "The kernel build, as in the zswap document", 1);
    tell(&(head + &zswap::tables(&results, fraction)), file)?;
    Ok(interrupted.map_or_else(|| status_of(&results), |signal| 128 + signal))
}

pub(crate) fn failed(path: &Path, error: &std::io::Error) -> BenchRefusal {
    (format!("{}: {error}", path.display()), exit::FAILED)
}

fn comparison(arguments: &CompareArguments) -> Result<i32, BenchRefusal> {
    let names =
        if arguments.workload.is_empty() { QUICK.map(String::from).to_vec() } else { arguments.workload.clone() };
    let workloads = select(&names).map_err(usage)?;
    let (base, new) = (executable(&arguments.base)?, executable(&arguments.new)?);
    let setting = Setting::new(&arguments.common, arguments.mib, arguments.seconds)?;
    setting.bench.hierarchy.as_ref().map_err(|why| refused(why.clone()))?;
    let plan = compare::ComparePlan {
        base: &base,
        new: &new,
        workloads: &workloads,
        fraction: arguments.fraction,
        pairs: arguments.pairs,
        place: &setting.place,
    };
    match compare::run(&setting.bench, &plan) {
        Ok(verdicts) => {
            print!("{}", compare::in_words(&verdicts));
            let failed = verdicts.iter().any(|(_, verdict)| matches!(verdict, compare::ComparedVerdict::None(_)));
            Ok(if failed { exit::FAILED } else { 0 })
        }
        Err(signal) => Ok(128 + signal),
    }
}

fn again(folder: &Path) -> Result<i32, BenchRefusal> {
    let path = folder.join("results.json");
    let text = fs::read_to_string(&path).map_err(|error| usage(format!("{}: {error}", path.display())))?;
    let results: Results =
        serde_json::from_str(&text).map_err(|error| usage(format!("{}: {error}", path.display())))?;
    write_results(folder, &results)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
    }

    #[test]
    fn none_is_always_first_and_nothing_comes_twice() {
        let line =
            CommandLine::parse_from(["uswap-bench", "--system", "uswap", "--system", "none", "--system", "uswap"]);
        let names: Vec<String> = line.matrix.systems().unwrap().into_iter().map(|system| system.name).collect();
        assert_eq!(names, ["none", "uswap"]);
        assert_eq!(line.matrix.fractions(), [100, 75, 50, 25]);
    }

    #[test]
    fn a_report_names_no_folders() {
        let shown =
            ["/a/b/out", "uswap@/x/uswap:--pool 30", "--budget", "kernel-zswap:lzo", "out"].map(without_folders);
        assert_eq!(shown, ["out", "uswap@uswap:--pool 30", "--budget", "kernel-zswap:lzo", "out"]);
    }

    #[test]
    fn wrong_usage_is_told() {
        for words in [["--fraction", "0"], ["--repetitions", "0"], ["--mib", "1"], ["--budget", "soon"]] {
            let all = ["uswap-bench"].into_iter().chain(words);
            assert!(CommandLine::try_parse_from(all).is_err(), "{words:?}");
        }
        assert!(CommandLine::try_parse_from(["uswap-bench", "locks", "--threads", "2,0"]).is_err());
        for words in [["--seconds", "0"], ["--out", "/nowhere/at/all"]] {
            let line = CommandLine::parse_from(["uswap-bench", "locks"].into_iter().chain(words));
            assert_ne!(run(&line), 0, "{words:?}");
        }
        let line = CommandLine::parse_from(["uswap-bench", "--workload", "nothing", "--system", "nobody"]);
        assert_eq!(line.matrix.workloads().unwrap_err().1, exit::USAGE);
        assert_eq!(line.matrix.systems().unwrap_err().1, exit::USAGE);
    }
}
