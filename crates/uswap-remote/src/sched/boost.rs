//! Priority boost: the threads that make room run before the programs that need it, but only while
//! memory grows unseen.
//!
//! Memory that is not registered yet grows without faults. It can reach the limit before an agent
//! has registered it and pager threads have evicted as much. The more programs grow at once, the
//! less processor time is left for the threads that could stop it: each of 34 threads gets a
//! thirty-fourth. So all threads of the engine and the agents have a niceness of [`HURRIED`] while
//! the budget's *slack* says that memory grows unseen (see [`uswap_pager::accounting::budget`]).
//!
//! In the long run that would do harm. A paging program makes pager threads and agents sleep and
//! wake thousands of times a second. If threads of such a weight do that, the kernel (seen with
//! 6.18) leaves groups of other sessions without a processor for seconds, and servers of uswap's
//! own swap devices can be among them. Once memory is registered nothing grows unseen, faults wait
//! for room by themselves, and all threads get their former niceness back.
//!
//! If the guess is wrong: without the boost fast growth is noticed late, as without the privilege
//! (CAP_SYS_NICE); with a needless boost other sessions wait longer. An agent begins boosted, since
//! its program does, and the governor ends its boost.

use std::collections::{BTreeMap, HashMap};

use uswap_sys::process;

use crate::EngineContext;
use uswap_pager::context::ManagedProcess;
pub use uswap_pager::idle_priority::HURRIED;
use uswap_sys::procfs;

/// The state of the boost.
#[derive(Debug)]
pub struct PriorityBoost {
    permitted: bool,
    hurried: bool,
    /// Niceness of the engine's threads before the boost.
    niceness: i32,
    /// Processes whose agent's boost has ended, and the agent's thread.
    calm: HashMap<u32, u32>,
}

impl PriorityBoost {
    /// Boosts this thread and those that it starts from here on: at the start it is unknown whether
    /// memory grows unseen.
    pub fn begin() -> Self {
        let niceness = process::niceness_of(0).unwrap_or(0);
        let permitted = process::set_niceness_of(0, HURRIED);
        Self { permitted, hurried: permitted, niceness, calm: HashMap::new() }
    }

    /// Begins or ends the boost, by the slack of the budget.
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

    /// Ends the boost of agents: they get the niceness of their programs.
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

/// Whether a thread is the agent of a process: agents may be threads of their programs or separate
/// processes.
fn is_agent(pid: u32, agent: u32) -> bool {
    procfs::is_agent(pid, agent) || procfs::is_agent_process(agent)
}
