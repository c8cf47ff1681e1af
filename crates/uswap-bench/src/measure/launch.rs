//! Runs one command, in a group or not, with a time limit: starts it, watches it, ends it, and ends
//! every process that it left behind.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::measure::cgroup::BenchCgroup;

/// Interval between two observations of a running command.
const TICK: Duration = Duration::from_millis(15);

/// The command to run, and how.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The command and its arguments, without the words that put it into the group.
    pub words: Vec<OsString>,
    /// Additional environment variables.
    pub environment: Vec<(String, OsString)>,
    /// The working directory, which also keeps the output.
    pub folder: &'a Path,
    /// The group in which the command runs.
    pub group: Option<&'a BenchCgroup>,
    /// Time after which the command is killed.
    pub timeout: Duration,
}

/// How the command ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status of the command.
    pub status: ExitStatus,
    /// Time from start to end.
    pub elapsed: Duration,
    /// The standard output of the command.
    pub stdout: String,
    /// The last line that it printed to standard error.
    pub complaint: String,
    /// Whether the command was killed because its time limit had passed.
    pub timed_out: bool,
}

impl Ended {
    /// The exit status as a shell shows it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// How the command ended, in words.
    pub fn in_words(&self) -> String {
        let end = match self.status.signal() {
            Some(signal) => format!("killed by signal {signal}"),
            None => format!("exit status {}", self.code()),
        };
        if self.complaint.is_empty() { end } else { format!("{end}: {}", self.complaint) }
    }
}

/// Why there is no result.
#[derive(Debug, PartialEq, Eq)]
pub enum StoppedGroup {
    /// A signal asked this tool to end.
    Interrupted(i32),
    /// The command could not be started.
    Unstartable(String),
}

/// Runs the command; `look` is called every few milliseconds meanwhile.
///
/// # Errors
/// See [`StoppedGroup`]. No process of the command is left then either.
pub fn run(launch: &Launch<'_>, mut look: impl FnMut() + Send) -> Result<Ended, StoppedGroup> {
    if let Some(signal) = uswap_sys::process::interrupt::arrived() {
        return Err(StoppedGroup::Interrupted(signal));
    }
    let (out, err) = (launch.folder.join("stdout"), launch.folder.join("stderr"));
    let mut command = command(launch, &out, &err).map_err(StoppedGroup::Unstartable)?;
    let start = Instant::now();
    let mut child =
        command.spawn().map_err(|error| StoppedGroup::Unstartable(format!("{:?}: {error}", launch.words[0])))?;
    let pid = child.id();
    let (told, ended) = channel();
    let deadline = start + launch.timeout;
    let (status, elapsed, end) = std::thread::scope(|scope| {
        let watcher = scope.spawn(move || watch(&ended, deadline, &mut look, || kill(pid, launch.group)));
        let status = child.wait();
        let elapsed = start.elapsed();
        // The watcher is gone if it panicked, which the join reports.
        let _ = told.send(());
        (status, elapsed, watcher.join().expect("the watcher panicked"))
    });
    match launch.group {
        Some(group) => group.kill_all(),
        None => kill(pid, None),
    }
    let status = status.map_err(|error| StoppedGroup::Unstartable(error.to_string()))?;
    if let Some(signal) = uswap_sys::process::interrupt::arrived() {
        return Err(StoppedGroup::Interrupted(signal));
    }
    let complaint = last_line(&read_end(&err));
    Ok(Ended { status, elapsed, stdout: read_end(&out), complaint, timed_out: end == End::TimedOut })
}

fn command(launch: &Launch<'_>, out: &Path, err: &Path) -> Result<Command, String> {
    let file = |path: &Path| File::create(path).map_err(|error| format!("{}: {error}", path.display()));
    let mut words = launch.group.map(BenchCgroup::wrapper).unwrap_or_default();
    words.extend(launch.words.iter().cloned());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(launch.folder).envs(launch.environment.iter().map(|(k, v)| (k, v)));
    // The command gets its own process group: Ctrl-C then reaches only this tool, which ends the
    // command and restores the machine.
    command.stdin(Stdio::null()).stdout(file(out)?).stderr(file(err)?).process_group(0);
    Ok(command)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    ByItself,
    TimedOut,
    Interrupted,
}

fn watch(ended: &Receiver<()>, deadline: Instant, look: &mut impl FnMut(), kill: impl Fn()) -> End {
    let mut end = End::ByItself;
    loop {
        match ended.recv_timeout(TICK) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return end,
        }
        look();
        if end == End::ByItself && Instant::now() > deadline {
            end = End::TimedOut;
        }
        if end == End::ByItself && uswap_sys::process::interrupt::arrived().is_some() {
            end = End::Interrupted;
        }
        if end != End::ByItself {
            kill();
        }
    }
}

/// Ends the command and its descendants: all processes in the group, or, without a group, in its
/// process group.
fn kill(pid: u32, group: Option<&BenchCgroup>) {
    for pid in group.map_or_else(|| process_group(pid), BenchCgroup::processes) {
        // An error means that the process has ended already.
        let _ = uswap_sys::process::kill(pid, 9);
    }
}

/// The ids of the processes in a process group.
fn process_group(leader: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let is_member = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // After the name, which may contain any character: state, parent, process group.
        let group = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(2)?.parse::<u32>().ok());
        group == Some(leader)
    };
    numbers.filter(is_member).collect()
}

/// The last 64 KiB of a file as text.
fn read_end(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(64 << 10)..]).into_owned()
}

/// The last line that is not empty, at most 200 characters of it.
pub fn last_line(text: &str) -> String {
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().take(200).collect()
}

/// A folder that is removed on drop, with everything in it.
#[derive(Debug)]
pub struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// A new folder in `parent`.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn new(parent: &Path) -> Result<Self, String> {
        let folder = parent.join(format!("{}{}", crate::measure::cgroup::PREFIX, std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self(folder))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("uswap-bench: {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_group_the_children_are_ended_too() {
        let folder = ScratchFolder::new(&std::env::temp_dir()).unwrap();
        let words = ["sh", "-c", "sleep 1234.5 & echo $!; sleep 1234.5"].map(OsString::from).to_vec();
        let timeout = Duration::from_millis(200);
        let launch = Launch { words, environment: Vec::new(), folder: folder.path(), group: None, timeout };
        let mut looks = 0;
        let ended = run(&launch, || looks += 1).unwrap();
        assert!(ended.timed_out && looks > 0 && ended.elapsed < Duration::from_secs(20), "{ended:?}");
        let child = format!("/proc/{}/cmdline", ended.stdout.trim());
        let gone = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !fs::read(&child).is_ok_and(|line| line.starts_with(b"sleep"))
        });
        assert!(gone, "{child} goes on");
    }

    #[test]
    fn ends_are_told_in_words() {
        let folder = ScratchFolder::new(&std::env::temp_dir().join("uswap-bench-ends")).unwrap();
        let outcome = |script: &str| {
            let words = ["sh", "-c", script].map(OsString::from).to_vec();
            let timeout = Duration::from_secs(20);
            let launch = Launch { words, environment: Vec::new(), folder: folder.path(), group: None, timeout };
            run(&launch, || ()).unwrap()
        };
        assert_eq!(outcome("echo a; echo b >&2; exit 3").in_words(), "exit status 3: b");
        assert_eq!(outcome("kill -9 $$").in_words(), "killed by signal 9");
        assert_eq!(outcome("kill -9 $$").code(), 137);
        assert_eq!(last_line("x\n  \n y \n\n"), "y");
    }
}
