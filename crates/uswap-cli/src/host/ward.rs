//! A command that runs beside this process without a run (under valgrind): signals to this process
//! are passed on to it, and when this process is asked to end, or gives up, the command and all its
//! children are ended.
//!
//! Orphans of the command become children of this process, so that they are found wherever they
//! went.

use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};

use uswap_run::process_tree::Tree;
use uswap_sys::process::signal::{self, Taken};
use uswap_sys::process::{self, ChildChange};

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCHLD: i32 = 17;
const SIGTSTP: i32 = 20;
const SIGTTIN: i32 = 21;
const SIGTTOU: i32 = 22;
/// Interval between two checks of the command, when no signal reports a change.
const TICK: Duration = Duration::from_millis(50);
/// Time in which the command must end after a signal has asked it to.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// State of the thread that reads the output about the command.
#[derive(Default)]
pub struct Reading(AtomicU8);

const READ: u8 = 1;
const FAILED: u8 = 2;

impl Reading {
    /// Reports that the output was read to its end, or that it can no longer be stored (`well` is
    /// `false`): then there is no reason to let the command run on.
    pub fn ends(&self, well: bool) {
        self.0.store(if well { READ } else { FAILED }, SeqCst);
    }
}

/// The command and its process tree.
pub struct Ward {
    child: u32,
    tree: Tree,
    asked: Option<Instant>,
}

impl Ward {
    /// Starts the command. From then on signals are blocked in this thread and in those that it
    /// starts; the command itself starts with the previous mask.
    ///
    /// # Errors
    /// The error of the system.
    pub fn start(command: &mut Command) -> std::io::Result<Self> {
        process::become_subreaper()?;
        signal::begins_with(command, signal::block_all());
        let child = command.spawn()?.id();
        Ok(Self { child, tree: Tree::of(None, std::process::id()), asked: None })
    }

    /// Waits until the command has ended and the output about it was read to its end (children may
    /// still add to it), or ends all processes. `line` is dropped when the command has ended.
    /// Returns the command's status as a shell shows it.
    pub fn attend<T>(mut self, line: T, reading: &Reading) -> i32 {
        let (mut line, mut ended) = (Some(line), None);
        loop {
            if let Ok(taken) = signal::take(TICK) {
                self.pass_on(taken);
            }
            if let Some(status) = self.news() {
                (line, ended) = (None, Some(status));
            }
            let too_long = self.asked.is_some_and(|asked| asked.elapsed() > END_TIMEOUT);
            let is_over = too_long || ended.is_some() && self.asked.is_some();
            if is_over || reading.0.load(SeqCst) == FAILED {
                self.kill();
                drop(line);
                return ended.unwrap_or(128 + SIGKILL);
            }
            if let (Some(status), READ) = (ended, reading.0.load(SeqCst)) {
                return status;
            }
        }
    }

    /// Passes a signal on, except one from the terminal: the terminal sends it to the command too,
    /// which is in the same process group.
    fn pass_on(&mut self, taken: Taken) {
        match taken.signal {
            SIGCHLD => return,
            SIGINT | SIGQUIT | SIGTSTP | SIGTTIN | SIGTTOU if taken.from_kernel => return,
            SIGHUP | SIGINT | SIGQUIT | SIGTERM => self.asked = self.asked.or(Some(Instant::now())),
            _ => {}
        }
        // The command may have ended.
        let _ = process::kill(self.child, taken.signal);
    }

    /// Reaps the processes that have ended; returns the command's status if it is among them. If
    /// the command is stopped, this process stops too.
    fn news(&self) -> Option<i32> {
        let mut ended = None;
        while let Ok(Some((pid, change))) = process::wait_news(None) {
            match change {
                ChildChange::Exited(status) if pid == self.child => ended = Some(status),
                ChildChange::Killed(signal) if pid == self.child => ended = Some(128 + signal),
                ChildChange::Stopped(_) if pid == self.child => signal::stop_self(),
                _ => {}
            }
        }
        ended
    }

    fn kill(&self) {
        if let Some(left) = self.tree.kill() {
            eprintln!("uswap: {left}");
        }
    }
}
