//! The tool as users run it: rows that say what went wrong, and nothing left behind by any end.
//!
//! What runs is `sh`, and in place of uswap a script that runs the command as it is, so only this
//! tool is tested here. Needs root and a memory cgroup.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

const TOOL: &str = env!("CARGO_BIN_EXE_uswap-bench");
/// Runs the command without doing anything about memory.
const PRETENDER: &str = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n";

/// Swap and zswap are the machine's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Says why a test cannot be done here, past the harness, which keeps what passing tests print.
fn not_here(why: &str) {
    let _ = writeln!(std::io::stderr(), "NOT TESTED: {why}");
}

struct Place {
    folder: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Place {
    /// `None`, with the reason printed, where groups or swap cannot be set up.
    fn new(name: &str) -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let probe = Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
            || fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").is_ok_and(|text| text.contains("memory"));
        if uswap_sys::process::user() != 0 || !probe {
            not_here("needs root and a memory cgroup");
            return None;
        }
        let folder = PathBuf::from(format!("/var/tmp/uswap-bench-test-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("pretender"), PRETENDER).unwrap();
        let status = Command::new("chmod").arg("+x").arg(folder.join("pretender")).status().unwrap();
        assert!(status.success());
        Some(Self { folder, _alone: alone })
    }

    fn tool(&self, words: &[&str]) -> Command {
        // It is interrupted also where the tests ignore interrupts, as in the background of a
        // shell.
        uswap_sys::process::interrupt::heed_in_children().unwrap();
        let mut command = Command::new(TOOL);
        command.args(words).arg("--work").arg(&self.folder).stdin(Stdio::null());
        // The lock lies in the temporary folder: a real run elsewhere shall not make a test fail.
        command.env("TMPDIR", &self.folder).current_dir(&self.folder);
        command
    }

    fn pretender(&self) -> String {
        format!("uswap@{}", self.folder.join("pretender").display())
    }

    fn results(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.folder.join("bench-results/results.json")).unwrap()).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Names of groups of a run of the tool.
fn groups(pid: u32) -> Vec<String> {
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpuacct"];
    let names = roots.iter().flat_map(|root| fs::read_dir(root).into_iter().flatten().flatten());
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("uswap-bench-{pid}-"))).collect()
}

fn wait(mut child: Child, patience: Duration) -> Option<i32> {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

#[test]
fn what_goes_wrong_is_a_row_that_says_so() {
    let Some(place) = Place::new("rows") else { return };
    let pretender = place.pretender();
    let mut words = vec!["--no-figures", "--repetitions", "1", "--fraction", "50", "--timeout", "2"];
    words.extend(["--workload", "test-fine,test-wrong,test-silent,test-dies,test-hangs,test-hungry"]);
    words.extend(["--system", &pretender]);
    let output = place.tool(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let results = place.results();
    let row = |workload: &str, system: &str| {
        let all = results["samples"].as_array().unwrap();
        let found = all
            .iter()
            .find(|sample| sample["workload"] == workload && (sample["system"] == "none") == (system == "none"));
        found.unwrap_or_else(|| panic!("no row of {workload}")).clone()
    };
    for (workload, outcome, words) in [
        ("test-fine", "ok", ""),
        ("test-wrong", "wrong", "41"),
        ("test-silent", "wrong", "no answer"),
        ("test-dies", "failed", "too bad"),
        ("test-hangs", "timed_out", "2 s"),
        ("test-hungry", "oom_killed", ""),
    ] {
        assert_eq!(row(workload, "none")["outcome"], "ok", "{workload}");
        let limited = row(workload, "other");
        assert_eq!(limited["outcome"], outcome, "{workload}: {limited}");
        assert!(words.is_empty() || limited["reason"].as_str().unwrap().contains(words), "{limited}");
        assert_eq!(limited["seconds"].as_f64().unwrap() > 0.0, outcome == "ok", "{limited}");
    }
    let report = fs::read_to_string(place.folder.join("bench-results/report.md")).unwrap();
    for words in ["OOM-killed", "timed out: more than 2 s", "WRONG", "failed: killed by signal 11: too bad"] {
        assert!(report.contains(words), "{words} is missing in\n{report}");
    }
}

/// Sends the signal while a workload sleeps under the system, with swap on; nothing may be left.
fn interrupted(system: &str, signal: i32) {
    let Some(place) = Place::new(system) else { return };
    let zswap = || fs::read_to_string("/sys/module/zswap/parameters/enabled").unwrap_or_default();
    let areas =
        || -> Vec<String> { uswap_bench::measure::proc_text::swaps().into_iter().map(|(name, _)| name).collect() };
    let (zswap_before, areas_before) = (zswap(), areas());
    let log = fs::File::create(place.folder.join("log")).unwrap();
    let mut words = vec!["--no-figures", "--repetitions", "1", "--fraction", "50"];
    words.extend(["--workload", "test-hangs", "--system", system]);
    let tool = place.tool(&words).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let pid = tool.id();
    let deadline = Instant::now() + Duration::from_secs(10);
    let sleeps = || {
        groups(pid).iter().any(|name| {
            let limited = |root: &str| {
                let folder = Path::new(root).join(name);
                let read = |file| fs::read_to_string(folder.join(file)).unwrap_or_default();
                let limit = read("memory.limit_in_bytes") + &read("memory.max");
                limit.trim().parse::<u64>().is_ok_and(|limit| limit < 1 << 40) && !read("cgroup.procs").is_empty()
            };
            limited("/sys/fs/cgroup/memory") || limited("/sys/fs/cgroup")
        })
    };
    while !sleeps() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = || fs::read_to_string(place.folder.join("log")).unwrap_or_default();
    if !sleeps() {
        let _ = wait(tool, Duration::ZERO);
        not_here(&format!("{system} cannot be set up: {}", log()));
        return;
    }
    let is_ours = |name: &String| {
        name.starts_with(place.folder.to_str().unwrap())
            || name.starts_with("/dev/zram") && !areas_before.contains(name)
    };
    let ours: Vec<String> = areas().into_iter().filter(is_ours).collect();
    assert!(!ours.is_empty(), "no swap is on");
    uswap_sys::process::kill(pid, signal).unwrap();
    assert_eq!(wait(tool, Duration::from_secs(15)), Some(128 + signal), "{}", log());
    assert!(groups(pid).is_empty(), "{:?} are left", groups(pid));
    assert!(areas().iter().all(|name| !ours.contains(name)), "{:?} are left", areas());
    for zram in ours.iter().filter_map(|name| name.strip_prefix("/dev/")) {
        assert!(!Path::new("/sys/block").join(zram).exists(), "{zram} is left");
    }
    assert_eq!(zswap(), zswap_before);
    let left: Vec<_> = fs::read_dir(&place.folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("uswap-bench-")), "{left:?}");
    assert!(place.results()["notes"][0].as_str().unwrap().contains("Interrupted"));
}

#[test]
fn an_interrupted_swap_file_leaves_nothing() {
    interrupted("kernel-swapfile", 2);
}

#[test]
fn a_terminated_zswap_leaves_nothing() {
    interrupted("kernel-zswap", 15);
}

#[test]
fn an_interrupted_zram_leaves_nothing() {
    interrupted("kernel-zram:lzo", 2);
}

#[test]
fn builds_are_compared_in_pairs() {
    let Some(place) = Place::new("compare") else { return };
    let pretender = place.folder.join("pretender").display().to_string();
    let words = ["compare", "--base", &pretender, "--new", &pretender, "--workload", "test-fine", "--pairs", "4"];
    let output = place.tool(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("| test-fine |"), "{}", text(&output));
    let words = ["compare", "--base", &pretender, "--new", &pretender, "--workload", "test-wrong"];
    let output = place.tool(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("wrong answer"), "{}", text(&output));
}

#[test]
fn wrong_usage_is_2_and_help_and_lists_are_0() {
    let status = |words: &[&str]| {
        let output = Command::new(TOOL).args(words).output().unwrap();
        (output.status.code(), text(&output))
    };
    for words in [
        ["--workload", "nothing"],
        ["--system", "nobody"],
        ["--fraction", "0"],
        ["--uswap", "/nonexistent"],
        ["report", "/nonexistent"],
    ] {
        let (code, told) = status(&words);
        assert_eq!(code, Some(2), "{words:?}: {told}");
        assert!(!told.is_empty());
    }
    for words in [&["--help"][..], &["--list"], &["list"], &["compare", "--help"]] {
        assert_eq!(status(words).0, Some(0), "{words:?}");
    }
    assert!(status(&["list"]).1.contains("zipf-1.2"));
}

/// Guards, not the way out: a panic puts back too.
#[test]
fn a_panic_puts_back() {
    use uswap_bench::system::kernel::{KernelSwap, SwapPlan};
    let Some(place) = Place::new("panic") else { return };
    let areas =
        || -> Vec<String> { uswap_bench::measure::proc_text::swaps().into_iter().map(|(name, _)| name).collect() };
    let mut during: Vec<String> = Vec::new();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        match KernelSwap::new(&SwapPlan::SwapFile, &place.folder, 16 << 20) {
            Ok(_swap) => {
                during = areas().into_iter().filter(|name| name.starts_with(place.folder.to_str().unwrap())).collect();
                panic!("as intended");
            }
            Err(why) => not_here(&why),
        }
    }));
    assert!(outcome.is_ok() || !during.is_empty(), "the swap file was not on");
    assert!(areas().iter().all(|name| !during.contains(name)), "{during:?} is left");
}
