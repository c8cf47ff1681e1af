//! Hurry: who makes room runs before those who need it, while memory grows unseen, and only then.
//!
//! Memory that is not registered yet is touched without asking. Until an agent has registered it
//! and owners have evicted as much, it runs into the limit, and the more programs grow at once, the
//! less of the processors is left for those that could stop it: each of 34 threads gets a
//! thirty-fourth. So all threads of the engine and the agents have a niceness of [`HURRIED`] while
//! the budget's *slack* says that memory grows unseen (see [`uswap_pager::accounting::budget`]).
//!
//! In the long run that would do harm. A paging program makes owners and agents sleep and wake
//! thousands of times a second, and threads of so much weight that do so make the kernel (seen with
//! 6.18) leave groups of other sessions without a processor for seconds, servers of our own swap
//! among them. Once memory is registered nothing grows unseen, faults wait for room by themselves,
//! and all are as nice as they were.
//!
//! If the guess is wrong: too calm, and fast growth is met late, as without the privilege
//! (CAP_SYS_NICE); too hurried, and other sessions wait longer. An agent begins in a hurry, since
//! its program does, and is calmed by the governor.

use std::collections::{BTreeMap, HashMap};

use uswap_sys::process;

use crate::EngineContext;
use uswap_pager::context::ManagedProcess;
pub use uswap_pager::idle_priority::HURRIED;
use uswap_sys::procfs;

/// Who was told what.
#[derive(Debug)]
pub struct PriorityBoost {
    permitted: bool,
    hurried: bool,
    /// What the engine's threads had before.
    niceness: i32,
    /// Processes whose agent has been calmed, and its thread.
    calm: HashMap<u32, u32>,
}

impl PriorityBoost {
    /// This thread and those that it starts from here on are hurried: whether memory grows nobody
    /// knows yet.
    pub fn begin() -> Self {
        let niceness = process::niceness_of(0).unwrap_or(0);
        let permitted = process::set_niceness_of(0, HURRIED);
        Self { permitted, hurried: permitted, niceness, calm: HashMap::new() }
    }

    /// Follows the budget.
    pub fn follow(&mut self, shared: &EngineContext, managed: &BTreeMap<u32, ManagedProcess>) {
        if !self.permitted {
            return;
        }
        let wanted = shared.budget.grows_unseen() || shared.groups.in_use() && shared.groups.grows_unseen();
        if wanted != self.hurried {
            self.hurried = wanted;
            shared.counters.hurries.add(u64::from(wanted));
            self.tell_engine(shared);
        }
        if wanted { self.hurry_agents() } else { self.calm_agents(managed) }
    }

    fn tell_engine(&self, shared: &EngineContext) {
        let niceness = if self.hurried { HURRIED } else { self.niceness };
        let owners: Vec<u32> =
            shared.mailboxes.iter().filter_map(|mailbox| mailbox.lowered.take_niceness(niceness)).collect();
        for thread in procfs::threads(std::process::id()) {
            if !owners.contains(&thread) {
                process::set_niceness_of(thread, niceness);
            }
        }
    }

    fn hurry_agents(&mut self) {
        for (pid, thread) in self.calm.drain() {
            if is_agent(pid, thread) {
                process::set_niceness_of(thread, HURRIED);
            }
        }
    }

    /// Agents are as nice as their programs.
    fn calm_agents(&mut self, managed: &BTreeMap<u32, ManagedProcess>) {
        self.calm.retain(|pid, thread| managed.get(pid).is_some_and(|known| known.reader == *thread));
        for (pid, known) in managed.iter().filter(|(_, known)| known.agent) {
            let new = self.calm.insert(*pid, known.reader).is_none();
            if new && is_agent(*pid, known.reader) {
                process::set_niceness_of(known.reader, process::niceness_of(*pid).unwrap_or(0));
            }
        }
    }
}

/// Agents may be threads of their programs or processes of their own.
fn is_agent(pid: u32, agent: u32) -> bool {
    procfs::is_agent(pid, agent) || procfs::is_agent_process(agent)
}
