//! A command that runs beside us without a run of its own (under valgrind): what we are sent is
//! passed on to it, and once we are asked to end, or give up, nothing of it and its children is
//! left.
//!
//! Orphans of the command become our children, so that they are found wherever they went.

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
/// How often it is looked at, when no signal says that something has happened.
const TICK: Duration = Duration::from_millis(50);
/// How long the command may take to end once it was asked to.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// How far the reading is of what is told of the command.
#[derive(Default)]
pub struct Reading(AtomicU8);

const READ: u8 = 1;
const FAILED: u8 = 2;

impl Reading {
    /// It has come to its end, or nothing more can be kept of it: then there is no reason to leave
    /// the command running.
    pub fn ends(&self, well: bool) {
        self.0.store(if well { READ } else { FAILED }, SeqCst);
    }
}

/// The command.
pub struct Ward {
    child: u32,
    tree: Tree,
    asked: Option<Instant>,
}

impl Ward {
    /// Starts the command. Signals are blocked from now on in this thread and those that it starts;
    /// the command gets none of that.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(command: &mut Command) -> std::io::Result<Self> {
        process::become_subreaper()?;
        signal::begins_with(command, signal::block_all());
        let child = command.spawn()?.id();
        Ok(Self { child, tree: Tree::of(None, std::process::id()), asked: None })
    }

    /// Waits for the command's end and for what is told of it to be read (children may tell more),
    /// or ends all. `line` is let go of when the command has ended. Returns its status as a shell
    /// tells it.
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

    /// What the terminal sends the command gets itself, being in our process group.
    fn pass_on(&mut self, taken: Taken) {
        match taken.signal {
            SIGCHLD => return,
            SIGINT | SIGQUIT | SIGTSTP | SIGTTIN | SIGTTOU if taken.from_kernel => return,
            SIGHUP | SIGINT | SIGQUIT | SIGTERM => self.asked = self.asked.or(Some(Instant::now())),
            _ => {}
        }
        // It may have ended.
        let _ = process::kill(self.child, taken.signal);
    }

    /// Reaps who has ended: the command's status, if it is among them. If it is stopped so are we.
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
