//! The workloads, by name: the command of each, its preparation, and its answer.
//!
//! The last line of a workload's output is either JSON with an `answer` and perhaps the `seconds`
//! of its planned work, or `answer ...`. The answer is compared with the answer of the run without
//! a limit, or with a known one.

pub mod ctree;
pub mod real;

use std::ffi::OsString;
use std::path::PathBuf;

/// The families of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadFamily {
    /// An access pattern of `uswap-workload`.
    Micro,
    /// A program in common use.
    Real,
    /// For tests of this tool: run only when the user names it.
    Test,
}

/// The order of workloads when time is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// First at half of its memory, then its curve over the other fractions.
    Curve,
    /// First at half of its memory; other fractions add little information.
    Point,
    /// After all workloads of the other ranks.
    Later,
}

/// A workload by its name.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The name of the workload.
    pub name: String,
    /// A description in one line.
    pub about: String,
    /// The family of the workload.
    pub family: WorkloadFamily,
    /// Workloads of one scale share a limit: fractions refer to the largest working set among them.
    pub scale: Option<&'static str>,
    /// The workload's own fractions, if the command line gives none.
    pub fractions: Option<&'static [u32]>,
    /// The order of the workload when time is short.
    pub rank: Rank,
    recipe: WorkloadRecipe,
}

#[derive(Clone, Debug)]
enum WorkloadRecipe {
    Memory(&'static [&'static str]),
    Fill,
    Turns,
    Pft(usize),
    Tree(usize),
    Real(real::RealProgram),
    Shell(&'static str, Option<&'static str>),
}

/// Folders and sizes of the workloads.
#[derive(Clone, Debug)]
pub struct WorkFolder {
    /// Folder for input files; it is removed at the end.
    pub folder: PathBuf,
    /// The binary `uswap-workload`.
    pub workloads: PathBuf,
    /// Approximate memory of a workload, in MiB.
    pub mib: usize,
    /// Duration in seconds after which the visits of a pattern end.
    pub seconds: f64,
}

/// A workload that is ready to run.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// The command.
    pub words: Vec<OsString>,
    /// The right answer, if it is known beforehand.
    pub answer: Option<String>,
}

impl Prepared {
    /// A command whose right answer is the one of the run without a limit.
    pub fn command<S: Into<OsString>>(words: impl IntoIterator<Item = S>) -> Self {
        Self { words: words.into_iter().map(Into::into).collect(), answer: None }
    }
}

const MICRO: [(&str, &str, &[&str]); 15] = [
    ("seq", "every page in order, once, after the fill", &["seq", "text", "0", "1"]),
    ("stride", "every 16th page, then the next ones", &["stride", "text", "0", "1"]),
    ("random", "uniform at random, half writes", &["random", "text", "50", "4"]),
    ("zipf-0.5", "zipf with exponent 0.5, half writes", &["zipf-0.5", "text", "50", "4"]),
    ("zipf-1.2", "zipf with exponent 1.2, half writes", &["zipf-1.2", "text", "50", "4"]),
    ("zero", "pages of zeros out and in, in order", &["seq", "zero", "0", "1"]),
    ("cyclic", "all pages in order, eight times round", &["seq", "text", "0", "8"]),
    ("random-t8", "as random, 8 threads", &["random", "text", "50", "4", "8"]),
    ("incompressible", "random bytes, at random, reads", &["random", "incompressible", "0", "4"]),
    ("half", "pages that compress to half, at random, reads", &["random", "half", "0", "4"]),
    ("chase", "each page names the next, in random order", &["chase", "text", "0", "4"]),
    ("read-mostly", "at random, 5 % writes", &["random", "text", "5", "4"]),
    ("write-heavy", "at random, 95 % writes", &["random", "text", "95", "4"]),
    ("random-t2", "as random, 2 threads", &["random", "text", "50", "4", "2"]),
    ("random-t32", "as random, 32 threads", &["random", "text", "50", "4", "32"]),
];

/// Numbers of jobs of the C build, the most informative first.
pub const JOBS: [usize; 5] = [24, 8, 16, 12, 20];

/// Workloads for tests of this tool: the name, the behaviour under a system other than `none`, and
/// the right answer.
const TESTS: [(&str, &str, Option<&str>); 6] = [
    ("test-fine", "echo answer 42", Some("42")),
    ("test-wrong", "echo answer 41", Some("42")),
    ("test-silent", "echo nothing", None),
    ("test-dies", "echo too bad >&2; kill -SEGV $$", None),
    ("test-hangs", "sleep 1000", None),
    ("test-hungry", "tail /dev/zero", None),
];

fn one(name: &str, about: &str, family: WorkloadFamily, rank: Rank, recipe: WorkloadRecipe) -> Workload {
    Workload { name: name.into(), about: about.into(), family, rank, scale: None, fractions: None, recipe }
}

fn build(jobs: usize) -> Workload {
    let rank = if JOBS[..3].contains(&jobs) { Rank::Point } else { Rank::Later };
    let about = format!("make -j{jobs} of {}", ctree::what());
    Workload {
        scale: Some("cbuild"),
        ..one(&format!("cbuild-j{jobs}"), &about, WorkloadFamily::Real, rank, WorkloadRecipe::Tree(jobs))
    }
}

fn page_fault_test(threads: usize) -> Workload {
    let about = format!("{threads} threads touch fresh memory, far below the limit");
    let workload =
        one(&format!("pft-t{threads}"), &about, WorkloadFamily::Micro, Rank::Point, WorkloadRecipe::Pft(threads));
    Workload { fractions: Some(&[400]), ..workload }
}

/// All workloads, including those for tests, the most informative first.
pub fn all() -> Vec<Workload> {
    let micro = |rank| {
        move |(name, about, words): &(&str, &str, &'static [&'static str])| {
            one(name, about, WorkloadFamily::Micro, rank, WorkloadRecipe::Memory(words))
        }
    };
    let real = |program: real::RealProgram| {
        one(program.name(), program.about(), WorkloadFamily::Real, Rank::Curve, WorkloadRecipe::Real(program))
    };
    let test = |(name, script, answer)| {
        one(name, script, WorkloadFamily::Test, Rank::Curve, WorkloadRecipe::Shell(script, answer))
    };
    let (first, rest) = MICRO.split_at(8);
    let mut list: Vec<Workload> = first.iter().map(micro(Rank::Curve)).collect();
    list.extend(real::PROGRAMS.map(real));
    list.push(one(
        "fill-p32",
        "32 processes fill memory, then check it",
        WorkloadFamily::Micro,
        Rank::Point,
        WorkloadRecipe::Fill,
    ));
    let about = "8 processes sweep over their memory, 20 rounds each";
    list.push(one("turns-p8", about, WorkloadFamily::Micro, Rank::Point, WorkloadRecipe::Turns));
    list.extend([1, 2, 4].map(page_fault_test));
    list.extend(JOBS.map(build));
    list.extend(rest.iter().map(micro(Rank::Later)));
    list.extend(TESTS.map(test));
    list
}

/// The workloads with these names: `all`, `micro`, `real`, a name, or the beginning of names
/// followed by a star.
///
/// # Errors
/// A sentence with the word that matches no workload.
pub fn select(names: &[String]) -> Result<Vec<Workload>, String> {
    let fits = |workload: &Workload, name: &String| match name.as_str() {
        "all" => workload.family != WorkloadFamily::Test,
        "micro" => workload.family == WorkloadFamily::Micro,
        "real" => workload.family == WorkloadFamily::Real,
        name => name.strip_suffix('*').map_or(workload.name == name, |start| workload.name.starts_with(start)),
    };
    let all = all();
    if let Some(name) = names.iter().find(|name| !all.iter().any(|workload| fits(workload, name))) {
        return Err(format!(
            "{name:?} is not a workload: `uswap-bench list` names them; also all, micro, real, START*"
        ));
    }
    Ok(all.into_iter().filter(|workload| names.iter().any(|name| fits(workload, name))).collect())
}

impl Workload {
    /// Prepares the workload.
    ///
    /// # Errors
    /// A sentence that says what is missing on this machine.
    pub fn prepare(&self, place: &WorkFolder) -> Result<Prepared, String> {
        match &self.recipe {
            WorkloadRecipe::Memory(words) => Ok(memory(words, place)),
            WorkloadRecipe::Fill => Ok(own(place, &["fill", "--mib", &place.mib.to_string()])),
            WorkloadRecipe::Turns => Ok(own(place, &["turns", "--mib", &place.mib.to_string()])),
            WorkloadRecipe::Pft(threads) => {
                let mib = (place.mib / 2).to_string();
                Ok(own(place, &["pft", "--threads", &threads.to_string(), "--mib", &mib]))
            }
            WorkloadRecipe::Tree(jobs) => ctree::prepare(*jobs, place),
            WorkloadRecipe::Real(program) => program.prepare(place),
            WorkloadRecipe::Shell(script, answer) => {
                let script = format!("if [ $USWAP_BENCH_SYSTEM = none ]; then echo answer 42; else {script}; fi");
                let command = Prepared::command(["sh", "-c", &script]);
                Ok(Prepared { answer: answer.map(String::from), ..command })
            }
        }
    }
}

fn own(place: &WorkFolder, arguments: &[&str]) -> Prepared {
    let mut prepared = Prepared::command([place.workloads.as_os_str()]);
    prepared.words.extend(arguments.iter().map(OsString::from));
    prepared
}

/// Makes a `memory` workload of these words: pattern, content, percentage of writes, visits per
/// page, threads.
fn memory(words: &[&str], place: &WorkFolder) -> Prepared {
    let visits: usize = words[3].parse().expect("a number");
    let operations = (visits * place.mib * 256).to_string();
    let (mib, seconds) = (place.mib.to_string(), place.seconds.to_string());
    let check = place.seconds.min(1.0).to_string();
    let threads = words.get(4).copied().unwrap_or("1");
    let what = ["memory", "--mib", &mib, "--pattern", words[0], "--content", words[1], "--writes", words[2]];
    let how = ["--operations", &operations, "--threads", threads, "--seconds", &seconds, "--check-seconds", &check];
    own(place, &[what.as_slice(), &how].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_and_tests_are_left_out_unless_named() {
        let names = |words: &[&str]| -> Result<Vec<String>, String> {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            Ok(select(&words)?.into_iter().map(|workload| workload.name).collect())
        };
        let everything = names(&["all"]).unwrap();
        assert!(everything.iter().all(|name| !name.starts_with("test-")));
        for name in ["seq", "zipf-1.2", "chase", "random-t32", "cbuild-j24", "redis", "pft-t4", "fill-p32", "java"] {
            assert!(everything.iter().any(|other| other == name), "{name}");
        }
        assert_eq!(names(&["zipf*"]).unwrap(), ["zipf-0.5", "zipf-1.2"]);
        assert_eq!(names(&["test-dies"]).unwrap(), ["test-dies"]);
        assert!(names(&["nothing"]).unwrap_err().contains("nothing"));
        let mut unique = everything.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), everything.len());
    }
}
