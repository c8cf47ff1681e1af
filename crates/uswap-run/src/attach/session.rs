//! The main thread's part of `uswap attach`: whether the program could be attached to, and when it
//! is to be let go.

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

/// How long a thread is looked for that can be stopped without the program being told, and the
/// agent's hello is waited for.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(15);

/// How it stands with the program.
#[derive(Debug)]
pub struct AttachSession {
    pid: u32,
    name: String,
    since: Instant,
    is_there: bool,
    progress: LeaveProgress,
}

impl AttachSession {
    /// Nothing has been done to the program yet.
    pub fn new(pid: u32) -> Self {
        let name = procfs::name(pid).unwrap_or_default();
        Self { pid, name, since: Instant::now(), is_there: false, progress: LeaveProgress::default() }
    }

    /// Whether something is under way that should not wait for the next look.
    pub fn is_busy(&self, shared: &EngineContext) -> bool {
        !self.is_there || shared.of_memory.leaving.is_under_way()
    }

    /// Whether the program may go on when the engine dies: all its memory is its own again. (Until
    /// its first agent says hello nobody has said otherwise.)
    pub fn tell_keeper(&self, shared: &EngineContext, control: &ControlPage) {
        if shared.of_memory.leaving.is_last_phase() {
            control.holds.store(0, SeqCst);
        }
    }

    /// Looks how it stands. When it is over: the user's exit status.
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

    /// The user, or the keeper's end, wants it.
    pub fn detach(&self, shared: &EngineContext) {
        if let Err(error) = leave::begin(shared) {
            say!("uswap: not detached: {error}");
        }
    }

    fn look_for_agent(&mut self, shared: &EngineContext, config: &RunConfig) -> Result<(), String> {
        // Of a tree those who are worth it get agents, now and later; the first is often but a
        // shell that waits.
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
