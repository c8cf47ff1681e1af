//! The main thread's part of `uswap attach`: it checks whether attaching succeeded, and begins the
//! detach.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use uswap_core::util::size::human;
use uswap_sys::alloc::shared::ControlPage;
use uswap_sys::process;

use crate::attach::leave::{self, LeaveProgress};
use crate::config::{RunConfig, exit};
use crate::control::verbose::say;
use uswap_remote::EngineContext;
use uswap_remote::inject::reason::UnmanagedReason;
use uswap_sys::procfs;

/// How long the run looks for a thread that can be stopped without an effect that the program sees,
/// and waits for the agent's greeting.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(15);

/// State of the program that is attached to.
#[derive(Debug)]
pub struct AttachSession {
    pid: u32,
    name: String,
    since: Instant,
    is_there: bool,
    progress: LeaveProgress,
}

impl AttachSession {
    /// The state before the program is changed in any way.
    pub fn new(pid: u32) -> Self {
        let name = procfs::name(pid).unwrap_or_default();
        Self { pid, name, since: Instant::now(), is_there: false, progress: LeaveProgress::default() }
    }

    /// Whether attaching or detaching is under way, so that the main thread should look again soon.
    pub fn is_busy(&self, shared: &EngineContext) -> bool {
        !self.is_there || shared.of_memory.leaving.is_under_way()
    }

    /// Tells the keeper when the program may go on although the engine dies: when no page of it is
    /// evicted any more. (Before the greeting of its first agent it may go on too.)
    pub fn tell_keeper(&self, shared: &EngineContext, control: &ControlPage) {
        if shared.of_memory.leaving.is_last_phase() {
            control.holds.store(0, SeqCst);
        }
    }

    /// Checks the progress. Returns the user's exit status when the session is over.
    pub fn look(&mut self, shared: &EngineContext, config: &RunConfig, control: &ControlPage) -> Option<i32> {
        if !self.is_there {
            if let Err(why) = self.look_for_agent(shared, config) {
                say!("uswap: cannot attach to {} (process {}): {why}", self.name, self.pid);
                return Some(exit::REFUSED);
            }
            if control.end_requested.load(SeqCst) != 0 {
                say!("uswap: {} (process {}) was not attached to", self.name, self.pid);
                return Some(exit::REFUSED);
            }
            return None;
        }
        if control.end_requested.swap(0, SeqCst) != 0 {
            self.detach(shared);
        }
        if self.progress.go_on(shared) {
            if config.verbosity > 0 {
                say!("uswap: {} (process {}) was let go", self.name, self.pid);
            }
            return Some(0);
        }
        let left = shared.of_memory.tree.look();
        (left.complete && left.pids.is_empty()).then_some(0)
    }

    /// Begins a detach, because the user asked for it or the keeper has ended.
    pub fn detach(&self, shared: &EngineContext) {
        if let Err(error) = leave::begin(shared) {
            say!("uswap: not detached: {error}");
        }
    }

    fn look_for_agent(&mut self, shared: &EngineContext, config: &RunConfig) -> Result<(), String> {
        // In a tree all processes of sufficient size get agents, now and later; the first process
        // is often only a shell that waits.
        let whole = !shared.of_memory.tree.is_root(self.pid);
        if whole || shared.managed.all().get(&self.pid).is_some_and(|process| process.agent) {
            self.is_there = true;
            if config.verbosity > 0 {
                let ram = human((shared.budget.limit() as u64) << 12);
                let tree = if whole { " with its tree" } else { "" };
                say!("uswap: attached to {} (process {}){tree}: {ram}", self.name, self.pid);
            }
            if let Some(ready) = &config.ready {
                process::report_and_fall_silent(ready);
            }
            return Ok(());
        }
        if procfs::born(self.pid).is_ok_and(|born| born.is_none()) {
            return Err("it has ended meanwhile".into());
        }
        let refused = shared.of_memory.refused.lock().expect("refused").get(&self.pid).copied();
        match refused {
            Some(why) if why != UnmanagedReason::Busy => Err(why.to_string()),
            why if self.since.elapsed() > ATTACH_TIMEOUT => {
                Err(why.map_or_else(|| "no agent came to life in it".to_string(), |why| why.to_string()))
            }
            _ => Ok(()),
        }
    }
}
