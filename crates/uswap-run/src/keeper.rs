//! The keeper: the process that the user started. It shares its table of descriptors with the
//! engine, so that no userfaultfd is closed when the engine dies: programs that fault then wait,
//! instead of reading zeros, until the keeper has killed them.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use uswap_sys::alloc::shared::{ControlPage, SharedValue};
use uswap_sys::io::spares::Spares;
use uswap_sys::process::signal::{self, Taken};
use uswap_sys::process::{self, ChildChange, Fork};

use crate::config::{RunConfig, exit};
use crate::control::verbose::say;
use crate::supervisor;
use uswap_pager::fault_points::FaultPoints;
use uswap_remote::agent::image_file::ImageFile;
use uswap_remote::fd_budget;
use uswap_remote::process_tree::Tree;

/// The value for keeper and engine; the programs keep their own.
const OOM_SCORE_ADJ: i32 = -900;

/// Initial size of the table of descriptors (8 bytes each), enough for a thousand processes. Beyond
/// that the engine stops for a moment when the table grows.
const DESCRIPTORS: u64 = 8192;

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGTERM: i32 = 15;
const SIGCHLD: i32 = 17;
const SIGCONT: i32 = 18;
const SIGTSTP: i32 = 20;
const SIGTTIN: i32 = 21;
const SIGTTOU: i32 = 22;

/// Runs the command. Returns the exit status for the user.
pub fn run(config: &RunConfig) -> i32 {
    let mask = signal::block_all();
    let control: SharedValue<ControlPage> = match SharedValue::new(c"uswap-control") {
        Ok(control) => control,
        Err(error) => return refuse(&format!("no memory for the control page: {error}")),
    };
    if let Err(error) = process::become_subreaper() {
        return refuse(&format!("cannot become a subreaper: {error}"));
    }
    let keeper = std::process::id();
    let tree = Tree::of(config.target, keeper);
    let files_before = process::raise_open_files();
    let spares = match fd_budget::of_keeper() {
        Ok(spares) => spares,
        Err(error) => return refuse(&format!("no descriptors: {error}")),
    };
    process::reserve_descriptors(DESCRIPTORS);
    let image = image_file(config).map(Arc::new);
    let remove_image = || image.iter().for_each(|image| image.remove());
    match process::fork_sharing_fds() {
        Err(error) => {
            remove_image();
            refuse(&format!("cannot start the engine: {error}"))
        }
        Ok(Fork::Child) => {
            let status = supervisor::run(config, &control, keeper, &mask, image.clone(), files_before);
            remove_image();
            process::exit_now(status)
        }
        Ok(Fork::Parent(engine)) => {
            protect();
            let status = Keeper { engine, control: &control, tree, spares }.watch();
            remove_image();
            status
        }
    }
}

/// Creates the file of the agent's image for a run with a command. (A program that was attached to
/// loads nothing.)
fn image_file(config: &RunConfig) -> Option<ImageFile> {
    let is_refused = FaultPoints::parse(&config.fault_points).is_ok_and(|points| points.no_image_file);
    if config.target.is_some() || is_refused { None } else { ImageFile::create() }
}

/// Makes this process one of the last that the kernel's OOM killer would choose, where that is
/// permitted: without keeper or engine the whole tree is lost. Called after the fork of processes
/// that must not inherit the setting.
pub fn protect() {
    // Without the permission the OOM killer chooses it as readily as the programs.
    let _ = process::lower_oom_score_adj(OOM_SCORE_ADJ);
}

fn refuse(why: &str) -> i32 {
    say!("uswap: {why}");
    exit::REFUSED
}

struct Keeper<'a> {
    engine: u32,
    control: &'a ControlPage,
    tree: Tree,
    /// Spare descriptors. The engine has them in its table too, and does not use them.
    spares: Spares,
}

impl Keeper<'_> {
    fn watch(&self) -> i32 {
        let (mut was_stopped, mut told) = (false, false);
        loop {
            if let Ok(taken) = signal::take(Duration::from_millis(100)) {
                self.pass_on(taken);
            }
            if let Some(status) = self.look_after_engine() {
                return status;
            }
            let stopped = self.control.stopped.load(SeqCst) == 1;
            if stopped && was_stopped && !told {
                // The shell sees its job stop; SIGCONT wakes the keeper again.
                signal::stop_self();
                self.to_command(SIGCONT);
                told = true;
            }
            told &= stopped;
            was_stopped = stopped;
        }
    }

    /// Handles the engine's end, if it has ended: in good order with the status that it left, or by
    /// death. Returns the user's exit status then.
    fn look_after_engine(&self) -> Option<i32> {
        loop {
            match process::wait_news(None) {
                Ok(Some((pid, change @ (ChildChange::Exited(_) | ChildChange::Killed(_))))) if pid == self.engine => {
                    return Some(self.engine_ended(change));
                }
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(_) => return Some(self.engine_ended(ChildChange::Exited(exit::ENGINE_DIED))),
            }
        }
    }

    fn engine_ended(&self, change: ChildChange) -> i32 {
        if self.control.finished.load(SeqCst) == 1 {
            return self.control.status.load(SeqCst) as i32;
        }
        let harmless = self.tree.is_attached() && self.control.holds.load(SeqCst) == 0;
        let left = if harmless { None } else { self.kill_tree() };
        let how = match change {
            ChildChange::Killed(signal) => format!("was killed by signal {signal}"),
            ChildChange::Exited(status) => format!("ended with status {status}"),
            ChildChange::Stopped(_) | ChildChange::Continued => "stopped".into(),
        };
        if harmless {
            say!("uswap: the engine {how}; nothing of the program's memory was with it");
            return exit::ENGINE_DIED;
        }
        say!("uswap: the engine {how}; all programs of this run were killed, because their memory was with it");
        left.iter().for_each(|left| say!("uswap: {left}"));
        exit::ENGINE_DIED
    }

    /// Kills the tree. Returns the processes that are left of it, in words. The spares are given up
    /// first, since the engine may have left no free descriptor for the look-up.
    fn kill_tree(&self) -> Option<String> {
        self.spares.give_up_all();
        self.tree.kill()
    }

    /// Passes a signal that was sent to the keeper on to the command. Signals of the terminal reach
    /// the command directly, since it is in the keeper's process group.
    fn pass_on(&self, taken: Taken) {
        match taken.signal {
            SIGCHLD => {}
            // A program that was attached to is neither ended nor stopped by signals to the keeper:
            // uswap detaches from it.
            signal @ (SIGHUP | SIGINT | SIGQUIT | SIGTERM) if self.tree.is_attached() => {
                self.control.end_requested.store(signal as u32, SeqCst);
            }
            _ if self.tree.is_attached() => {}
            SIGINT | SIGQUIT | SIGTSTP | SIGTTIN | SIGTTOU if taken.from_kernel => {}
            signal if self.control.stopped.load(SeqCst) == 2 => self.control.end_requested.store(signal as u32, SeqCst),
            signal => self.to_command(signal),
        }
    }

    /// Sends a signal to the command. If there is no command yet the keeper waits for it, for a
    /// second at most.
    fn to_command(&self, signal: i32) {
        for _ in 0..1000 {
            let command = self.control.command.load(SeqCst);
            if command != 0 {
                // An error means that the command has ended.
                let _ = process::kill(command, signal);
                return;
            }
            if self.control.finished.load(SeqCst) != 0 {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
