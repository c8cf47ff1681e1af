//! One command, in a group or not, in bounded time: started, watched, ended, and everything it left behind ended too.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::cgroup::Group;

/// How often a running command is looked at.
const TICK: Duration = Duration::from_millis(15);

/// What to run.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The command and its arguments, without the wrapper of the group.
    pub words: Vec<OsString>,
    /// Further variables of the environment.
    pub environment: Vec<(String, OsString)>,
    /// Its working directory, where its output is kept too.
    pub folder: &'a Path,
    /// The group it runs in.
    pub group: Option<&'a Group>,
    /// After this it is killed.
    pub timeout: Duration,
}

/// How it went.
#[derive(Debug)]
pub struct Ended {
    /// Of the command.
    pub status: ExitStatus,
    /// From start to end.
    pub elapsed: Duration,
    /// What it printed.
    pub stdout: String,
    /// The last line that it printed to standard error.
    pub complaint: String,
    /// It was killed because its time was over.
    pub timed_out: bool,
}

impl Ended {
    /// The exit status as a shell tells it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// The end in words.
    pub fn in_words(&self) -> String {
        let end = match self.status.signal() {
            Some(signal) => format!("killed by signal {signal}"),
            None => format!("exit status {}", self.code()),
        };
        if self.complaint.is_empty() { end } else { format!("{end}: {}", self.complaint) }
    }
}

/// Why no result came.
#[derive(Debug, PartialEq, Eq)]
pub enum Stopped {
    /// This tool was asked to end, by this signal.
    Interrupted(i32),
    /// The command could not be started.
    Unstartable(String),
}

/// Runs the command; `look` is called every few milliseconds meanwhile.
///
/// # Errors
/// See [`Stopped`]. Nothing of the command is left then either.
pub fn run(launch: &Launch<'_>, mut look: impl FnMut() + Send) -> Result<Ended, Stopped> {
    if let Some(signal) = uswap_sys::interrupt::arrived() {
        return Err(Stopped::Interrupted(signal));
    }
    let (out, err) = (launch.folder.join("stdout"), launch.folder.join("stderr"));
    let mut command = command(launch, &out, &err).map_err(Stopped::Unstartable)?;
    let start = Instant::now();
    let mut child = command.spawn().map_err(|error| Stopped::Unstartable(format!("{:?}: {error}", launch.words[0])))?;
    let pid = child.id();
    let (told, ended) = channel();
    let deadline = start + launch.timeout;
    let (status, elapsed, end) = std::thread::scope(|scope| {
        let watcher = scope.spawn(move || watch(&ended, deadline, &mut look, || kill(pid, launch.group)));
        let status = child.wait();
        let elapsed = start.elapsed();
        // The watcher is gone when it panicked; that is told by the join.
        let _ = told.send(());
        (status, elapsed, watcher.join().expect("the watcher panicked"))
    });
    if let Some(group) = launch.group {
        group.kill_all();
    }
    let status = status.map_err(|error| Stopped::Unstartable(error.to_string()))?;
    if let Some(signal) = uswap_sys::interrupt::arrived() {
        return Err(Stopped::Interrupted(signal));
    }
    let complaint = last_line(&read_end(&err));
    Ok(Ended { status, elapsed, stdout: read_end(&out), complaint, timed_out: end == End::TimedOut })
}

fn command(launch: &Launch<'_>, out: &Path, err: &Path) -> Result<Command, String> {
    let file = |path: &Path| File::create(path).map_err(|error| format!("{}: {error}", path.display()));
    let mut words = launch.group.map(Group::wrapper).unwrap_or_default();
    words.extend(launch.words.iter().cloned());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(launch.folder).envs(launch.environment.iter().map(|(k, v)| (k, v)));
    // A group of its own: Ctrl-C reaches this tool, which ends the command and then puts things back.
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
        if end == End::ByItself && uswap_sys::interrupt::arrived().is_some() {
            end = End::Interrupted;
        }
        if end != End::ByItself {
            kill();
        }
    }
}

/// Ends the command; what it started is in the group.
fn kill(pid: u32, group: Option<&Group>) {
    // It is not reaped before the watcher has ended, so the number is still its own.
    let _ = uswap_sys::process::kill(pid, 9);
    if let Some(group) = group {
        for pid in group.processes() {
            let _ = uswap_sys::process::kill(pid, 9);
        }
    }
}

/// The last 64 KiB of a file as text.
fn read_end(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(64 << 10)..]).into_owned()
}

/// The last line that says something, at most 200 characters of it.
pub fn last_line(text: &str) -> String {
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().take(200).collect()
}

/// A folder that is removed with everything in it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new folder in `parent`.
    ///
    /// # Errors
    /// What the file system said.
    pub fn new(parent: &Path) -> Result<Self, String> {
        let folder = parent.join(format!("{}{}", crate::cgroup::PREFIX, std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self(folder))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("uswap-bench: {}: {error}", self.0.display());
        }
    }
}
