//! Shared code of the command's tests: it starts a program plain or under `uswap run`, with a time
//! limit, and keeps what is needed to understand a failure.
//!
//! Every test runs the real binary in processes of its own. Output goes to files in a scratch
//! folder, so a process that is left behind cannot block the test. Every process of a run carries a
//! tag in its environment, by which leftover processes of a run are found and ended; no process is
//! ever ended by its name.

// Each test binary uses only a part of this module.
#![allow(dead_code)]

pub mod cgroup;
pub mod disk;
pub mod elf;
pub mod mounted;
#[macro_use]
pub mod nbd;
pub mod places;
pub mod procs;
pub mod terminal;
pub mod told;
pub mod torture_cases;
pub mod victims;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The binary under test.
pub const USWAP: &str = env!("CARGO_BIN_EXE_uswap");

/// The figures of a run, as in `status --json`; null while no run of that name answers.
pub fn figures(name: &str) -> Value {
    let output = Command::new(USWAP).args(["status", name, "--json"]).output().expect("uswap runs");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    told["figures"].clone()
}
/// The variable that marks all processes of one run.
const TAG: &str = "USWAP_TEST_TAG";

/// A program that is about to be started.
pub struct Launch {
    verb: &'static str,
    under: Option<Vec<OsString>>,
    wrapper: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    deadline: Duration,
    stdin: Option<Vec<u8>>,
    folder: Option<PathBuf>,
    swap_size: Option<String>,
    waits: bool,
    busy: Option<Duration>,
}

/// A program to be run without uswap.
pub fn plain() -> Launch {
    Launch {
        verb: "run",
        under: None,
        wrapper: Vec::new(),
        env: Vec::new(),
        deadline: Duration::from_secs(60),
        stdin: None,
        folder: None,
        swap_size: None,
        waits: false,
        busy: None,
    }
}

/// `uswap attach --ram RAM PID`.
pub fn attach(ram: &str) -> Launch {
    Launch { verb: "attach", ..under(ram) }
}

/// A program to be run under `uswap run --ram RAM`.
pub fn under(ram: &str) -> Launch {
    Launch { under: Some(vec!["--ram".into(), ram.into()]), ..plain() }
}

impl Launch {
    /// Adds an option of `uswap run`, with its value.
    pub fn option(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        let options = self.under.get_or_insert_default();
        options.extend([OsString::from(name), value.as_ref().to_os_string()]);
        self
    }

    /// Adds an option without a value.
    pub fn flag(mut self, name: &str) -> Self {
        self.under.get_or_insert_default().push(name.into());
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().to_os_string()));
        self
    }

    /// Adds a swap file with a name in the run's scratch folder, of at most this size.
    pub fn swap_file(mut self, size: &str) -> Self {
        self.swap_size = Some(size.into());
        self
    }

    /// Sets fault points of the engine.
    pub fn faults(self, list: &str) -> Self {
        self.env("USWAP_FAULT_POINTS", list)
    }

    /// Sets the time limit in seconds.
    pub fn deadline(mut self, seconds: u64) -> Self {
        self.deadline = Duration::from_secs(seconds);
        self
    }

    /// The program mostly waits, for time to pass or for a slow server, and needs no place.
    pub fn waits(mut self) -> Self {
        self.waits = true;
        self
    }

    /// After this time the program hangs and no longer needs its place.
    pub fn busy_for(mut self, time: Duration) -> Self {
        self.busy = Some(time);
        self
    }

    /// Sets the standard input.
    pub fn stdin(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(text.into());
        self
    }

    /// Sets the working directory.
    pub fn folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Puts a command before `uswap` (or before a plain program) that ends by executing its
    /// arguments.
    pub fn wrapper<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, words: I) -> Self {
        self.wrapper.extend(words.into_iter().map(|word| word.as_ref().to_os_string()));
        self
    }

    /// Starts the program and waits for its end.
    pub fn run<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(self, words: I) -> Outcome {
        self.start(words).wait()
    }

    /// Starts the program.
    pub fn start<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(self, words: I) -> Running {
        let scratch = Scratch::new();
        let stats = scratch.path("stats.json");
        let mut line = self.wrapper;
        if let Some(options) = self.under {
            line.extend([USWAP.into(), self.verb.into(), "--stats".into(), stats.into_os_string()]);
            line.extend(options);
            if let Some(size) = self.swap_size {
                let mut spec = scratch.path("swap").into_os_string();
                spec.push(format!(",size={size}"));
                line.extend(["--swap".into(), spec]);
            }
            line.push("--".into());
        }
        line.extend(words.into_iter().map(|word| word.as_ref().to_os_string()));
        let tag = format!("{}.{}", std::process::id(), scratch.number);
        let mut command = command(&line[0]);
        command.args(&line[1..]).envs(self.env).env(TAG, &tag).stdin(input(&scratch, self.stdin));
        command.stdout(scratch.file("stdout")).stderr(scratch.file("stderr"));
        // The default is not the test's own folder: a program may leave a core file there.
        command.current_dir(self.folder.as_deref().unwrap_or(&scratch.folder));
        let place = (!self.waits).then(places::Place::take);
        let child = command.spawn().unwrap_or_else(|error| panic!("{line:?}: {error}"));
        let (begun, deadline, busy) = (Instant::now(), self.deadline, self.busy);
        Running { child, line, scratch, tag, begun, deadline, busy, ended: None, place }
    }
}

fn input(scratch: &Scratch, text: Option<Vec<u8>>) -> Stdio {
    let Some(text) = text else { return Stdio::null() };
    let path = scratch.path("stdin");
    fs::write(&path, text).expect("stdin");
    File::open(path).expect("stdin").into()
}

/// A program that was started.
pub struct Running {
    child: Child,
    line: Vec<OsString>,
    scratch: Scratch,
    tag: String,
    begun: Instant,
    deadline: Duration,
    busy: Option<Duration>,
    ended: Option<ExitStatus>,
    /// Given up when all processes have ended, or earlier if they only wait from then on.
    place: Option<places::Place>,
}

impl Running {
    /// From now on the program waits, for time to pass or for a server that does not answer.
    pub fn waits(&mut self) -> &mut Self {
        self.place = None;
        self
    }

    /// The process id of the started program: the keeper's, if there is no wrapper that stays.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The engine's process id.
    pub fn engine(&self) -> u32 {
        let find = || {
            let tree = procs::descendants(self.pid());
            tree.into_iter().find(|pid| procs::name(*pid).as_deref() == Some("uswap-engine"))
        };
        self.until("an engine", find)
    }

    /// The command's process id: the engine's first child.
    pub fn command(&self) -> u32 {
        let engine = self.engine();
        self.until("a command", || procs::children(engine).into_iter().next())
    }

    /// The living processes of the run.
    pub fn alive(&self) -> Vec<u32> {
        procs::with_environment(&format!("{TAG}={}", self.tag))
    }

    /// The standard output so far.
    pub fn stdout(&self) -> String {
        self.scratch.text("stdout")
    }

    /// The standard error so far.
    pub fn stderr(&self) -> String {
        self.scratch.text("stderr")
    }

    /// Waits until the standard output contains this text.
    pub fn says(&self, text: &str) {
        self.until(text, || self.stdout().contains(text).then_some(()));
    }

    /// Waits for a result of `look`, which must come before the deadline, and two seconds after the
    /// run's end at the latest.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let mut over: Option<Instant> = None;
        loop {
            if let Some(found) = look() {
                return found;
            }
            if over.is_none() && !procs::is_alive(self.pid()) {
                over = Some(Instant::now());
            }
            let is_over = over.is_some_and(|since| since.elapsed() > Duration::from_secs(2));
            if is_over || self.begun.elapsed() > self.deadline {
                let why = if is_over { "before the end of the run" } else { "in time" };
                panic!("{what} did not come {why}: {:?}\n{}\n{}", self.line, self.evidence(), self.stderr());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the torture program's work (SIGUSR1), and waits until all is verified.
    pub fn enough(self) -> Outcome {
        procs::kill(self.command(), 10);
        self.wait()
    }

    /// Sends a signal to the process that was started.
    pub fn signal(&self, signal: i32) {
        procs::kill(self.pid(), signal);
    }

    /// Waits until the program has ended or its time limit has passed; then ends all of its
    /// processes that are left.
    pub fn wait(mut self) -> Outcome {
        let mut hung = None;
        while self.ended.is_none() {
            self.ended = self.child.try_wait().expect("wait");
            if self.ended.is_none() && self.begun.elapsed() > self.deadline {
                hung = Some(format!("{}\n{}", self.evidence(), self.told_of_a_hang()));
                self.end();
            }
            if self.busy.is_some_and(|time| self.begun.elapsed() > time) {
                self.waits();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let elapsed = self.begun.elapsed();
        let stats = serde_json::from_str(&self.scratch.text("stats.json")).ok();
        Outcome {
            line: format!("{:?}", self.line),
            status: self.ended.expect("ended"),
            stdout: self.scratch.text("stdout"),
            stderr: self.scratch.text("stderr"),
            left: self.settled(Duration::from_secs(5)),
            stats,
            elapsed,
            hung,
        }
    }

    /// The processes that are still alive after this time.
    pub fn settled(&self, patience: Duration) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let left = self.alive();
            if left.is_empty() || begun.elapsed() > patience {
                return left.into_iter().map(procs::describe).collect();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The state of every thread of the run.
    pub fn evidence(&self) -> String {
        self.alive().into_iter().map(procs::describe).collect::<Vec<_>>().join("\n")
    }

    /// What a run that hangs tells of itself, and what of that differs a second later.
    fn told_of_a_hang(&self) -> String {
        let name = self.pid().to_string();
        let told = || {
            let output = Command::new("timeout").args(["5", USWAP, "status", &name, "--json"]).output();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            text.lines().map(|line| line.trim().to_string()).collect::<Vec<_>>()
        };
        let before = told();
        std::thread::sleep(Duration::from_secs(1));
        let after = told();
        let differs: Vec<&String> = after.iter().filter(|line| !before.contains(line)).collect();
        format!("--- told: {}\n--- a second later: {differs:?}\n{}", before.join(" "), self.evidence())
    }

    fn end(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        for pid in self.alive() {
            procs::kill(pid, 9);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() || !self.alive().is_empty() {
            self.end();
            let _ = self.child.wait();
        }
    }
}

/// The outcome of a program.
pub struct Outcome {
    line: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// The content of the `--stats` file.
    pub stats: Option<Value>,
    pub elapsed: Duration,
    /// The state of every thread, if the program did not end in time.
    pub hung: Option<String>,
    /// Processes that were still alive five seconds after its end.
    pub left: Vec<String>,
}

impl Outcome {
    /// The status as a shell shows it: 128+n for a signal.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Asserts that the program has ended in time, with this status, and left no process behind.
    #[track_caller]
    pub fn expect(&self, code: i32) -> &Self {
        if self.hung.is_some() || self.code() != code || !self.left.is_empty() {
            panic!("expected status {code}, {}", self.account());
        }
        self
    }

    /// Asserts that the standard error contains this text.
    #[track_caller]
    pub fn complains(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "expected {text:?} on stderr, {}", self.account());
        self
    }

    /// A figure of `--stats`.
    #[track_caller]
    pub fn stat(&self, name: &str) -> u64 {
        let stats = self.stats.as_ref().unwrap_or_else(|| panic!("no stats, {}", self.account()));
        stats[name].as_u64().unwrap_or_else(|| panic!("no figure {name} in {stats:#}"))
    }

    /// Asserts that pages were evicted: otherwise a test of paging proves nothing.
    #[track_caller]
    pub fn paged(&self) -> &Self {
        assert!(self.stat("pgsteal") > 0, "nothing was evicted: {}", self.account());
        self
    }

    /// All information on the outcome.
    pub fn account(&self) -> String {
        let fate = if self.hung.is_some() { "HUNG" } else { "ended" };
        format!(
            "{}\n  {fate} with status {} after {:.1?}\n--- stdout\n{}\n--- stderr\n{}\n--- threads when its time was \
             over\n{}\n--- left behind\n{}\n--- figures\n{}",
            self.line,
            self.code(),
            self.elapsed,
            tail(&self.stdout),
            tail(&self.stderr),
            self.hung.as_deref().unwrap_or("-"),
            self.left.join("\n"),
            self.stats.as_ref().map_or("-".into(), short_figures),
        )
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// The counters that are not zero, on one line.
fn short_figures(stats: &Value) -> String {
    let Some(all) = stats.as_object() else { return stats.to_string() };
    let numbers =
        all.iter().filter_map(|(name, value)| value.as_u64().filter(|n| *n > 0).map(|n| format!("{name} {n}")));
    numbers.collect::<Vec<_>>().join(" · ")
}

/// The path of a test's own file or folder. The path contains a space and the word `uswap`, as the
/// path of a checkout may: so a test that splits a path at spaces, or that takes any place with
/// that word for uswap's own, fails on every machine.
pub fn place(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("of uswap");
    fs::create_dir_all(&folder).expect("a folder");
    folder.join(name)
}

/// A program to be started directly. It does not ignore the signals that end programs, even where
/// the tests ignore them because they run in the background of a shell, or under nohup.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    uswap_sys::process::interrupt::heed_in_children().expect("signals");
    Command::new(program)
}

/// A folder for one run, removed unless the test fails.
pub struct Scratch {
    folder: PathBuf,
    number: u32,
}

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let folder = place(&format!("run {}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("scratch folder");
        Self { folder, number }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn file(&self, name: &str) -> File {
        File::create(self.path(name)).expect("scratch file")
    }

    /// The content of a file; empty if there is none.
    pub fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(name)).unwrap_or_default()).into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A lock for tests whose measurements would disturb each other.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints a text even though test output is captured.
pub fn notice(text: &str) {
    let name = std::thread::current().name().unwrap_or("test").to_string();
    let _ = writeln!(io::stderr(), "note: {name}: {text}");
}

/// Runs a test that can fail by chance, and a second time if it fails; reports the second attempt.
pub fn once_in_two(run: impl Fn() -> Result<(), String>) {
    if let Err(first) = run() {
        notice(&format!("once more: {first}"));
        if let Err(second) = run() {
            panic!("twice in a row: {first}; {second}");
        }
    }
}

/// Reports a test that this machine does not allow (no mounts, no cgroups).
pub fn not_here(why: &str) {
    notice(&format!("NOT TESTED: {why}"));
}

/// Reports a test that lacks something that could be installed or granted. Where every test must
/// run (`USWAP_TEST_STRICT=1`, as in CI) it fails.
pub fn skip(why: &str) {
    assert!(std::env::var_os("USWAP_TEST_STRICT").is_none(), "must not be left out here: {why}");
    not_here(why);
}

/// Whether runs are possible on this machine: userfaultfd with fork events.
pub fn can_run() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let out = Command::new(USWAP).args(["run", "-q", "--ram", "64M", "--", "true"]).output().expect("uswap");
        let text = String::from_utf8_lossy(&out.stderr);
        out.status.code() != Some(125) || !text.contains("not permitted")
    })
}

/// Returns from the test, with a report, where userfaultfd is not permitted.
#[macro_export]
macro_rules! need_userfaultfd {
    () => {
        if !$crate::common::can_run() {
            return $crate::common::skip("userfaultfd is not permitted");
        }
    };
}

/// Whether a program is installed.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Whether the user is root.
pub fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|text| text.contains("\nUid:\t0\t0"))
}
