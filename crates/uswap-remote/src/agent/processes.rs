//! Agents that are separate processes: which program each serves, how they are told from programs,
//! and how they end.
//!
//! Such an agent shares the memory of its program, so the memory stays after the program has ended
//! or executed another one, until the agent has ended too. The pager thread sees the program's end
//! by a pidfd. It sees an exec by the greeting of the new image or, where the new image has no
//! agent, at the next scan for unmanaged programs (kcmp). Then it dismisses the agent, which ends
//! by itself with status 0, since a subreaper between engine and program sees its end. An agent
//! that does not end is killed. In the tree an agent is recognised by its name; in sums over
//! processes it must not be counted beside its program.

pub mod watch;

use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use uswap_abi::thread_list::ThreadList;
use uswap_core::util::growth::{Growth, during};
use uswap_sys::process::trace::{robust_list, share_memory};
use uswap_sys::process::{kill, send_signal};

use crate::shared::RemoteMessage;
use crate::{EngineContext, Message};
use uswap_pager::context::ManagedProcess;
use uswap_sys::procfs;

const SIGKILL: i32 = 9;
/// How long a dismissed agent may take to end.
const EXIT_TIMEOUT: Duration = Duration::from_millis(200);

/// An agent process, by its pidfds.
#[derive(Debug)]
pub struct AgentProcess {
    /// Pidfd of the agent.
    pub agent: OwnedFd,
    /// Pidfd of the program.
    pub program: OwnedFd,
}

impl AgentProcess {
    /// Kills the agent at once.
    fn kill(&self) {
        // An error means that the agent has ended already.
        let _ = send_signal(&self.agent, SIGKILL);
    }
}

/// Whether `agent` still has the memory of `program`. Where the kernel cannot compare address
/// spaces (ENOSYS) the answer is yes.
pub fn speaks_for(agent: u32, program: u32) -> bool {
    const NOT_THERE: i32 = 38;
    share_memory(agent, program).unwrap_or_else(|error| error.raw_os_error() == Some(NOT_THERE))
}

/// The agent processes of this run.
pub fn of(managed: &BTreeMap<u32, ManagedProcess>) -> HashSet<u32> {
    managed.values().filter(|process| process.apart).map(|process| process.reader).collect()
}

/// The processes of the tree without agents.
pub fn programs(shared: &EngineContext) -> Vec<u32> {
    let agents = of(&shared.managed.all());
    let mut programs = shared.of_memory.tree.members();
    programs.retain(|pid| !agents.contains(pid) && !procfs::is_agent_process(*pid));
    programs
}

/// Whether an unknown process adds no memory of its own: it is an agent, or still shares its
/// parent's memory (vfork).
pub fn has_anothers_memory(pid: u32) -> bool {
    procfs::is_agent_process(pid)
        || procfs::parent(pid).is_some_and(|parent| matches!(share_memory(pid, parent), Ok(true)))
}

/// Kills the agents if only agents are left of a run: no program has their memory any more.
/// `children`: the engine's own. Returns whether only agents were left.
pub fn end_those_left(children: &[u32]) -> bool {
    let are_agents = children.iter().all(|pid| procfs::is_agent_process(*pid));
    if are_agents {
        // The id of an agent that has ended meanwhile stays valid until this process reaps it.
        children.iter().for_each(|pid| _ = kill(*pid, SIGKILL));
    }
    are_agents
}

/// Dismisses the agents of programs that have executed another program whose agent has not sent a
/// greeting.
pub fn look_for_execs(shared: &EngineContext, managed: &BTreeMap<u32, ManagedProcess>) {
    for (pid, process) in managed.iter().filter(|(_, process)| process.apart && process.agent) {
        if matches!(share_memory(*pid, process.reader), Ok(false)) {
            dismiss(shared, process);
        }
    }
}

/// Dismisses the agent of `pid` when another one has sent a greeting for it: the process has
/// executed another image.
pub fn replace(shared: &EngineContext, pid: u32, agent: u32) {
    if let Some(process) = shared.managed.all().get(&pid)
        && process.apart
        && process.agent
        && process.reader != agent
    {
        dismiss(shared, process);
    }
}

/// Tells the agent where the robust list of each thread is, since the agent itself may not ask the
/// kernel.
pub fn tell_of_threads(program: u32, list: &ThreadList) {
    list.write(robust_lists(program));
}

/// The list heads of the robust lists of a process's threads. Each lies in the control block of its
/// thread.
pub fn robust_lists(program: u32) -> impl Iterator<Item = u64> {
    let threads = during(Growth::Telling, || procfs::threads(program));
    threads.into_iter().filter_map(|tid| robust_list(tid).ok().filter(|head| *head != 0))
}

/// The list heads of all threads of a process but `agent`, sorted; `None` if a thread has none, or
/// the kernel does not tell.
pub fn thread_list_heads(program: u32, agent: u32) -> Option<Vec<u64>> {
    let threads = during(Growth::Telling, || procfs::threads(program));
    let mut heads = during(Growth::Telling, || Vec::with_capacity(threads.len()));
    for tid in threads.into_iter().filter(|tid| *tid != agent) {
        match robust_list(tid) {
            Ok(head) if head != 0 => heads.push(head),
            // A thread that is gone has taken its control block with it.
            _ if procfs::is_dead(tid) => {}
            _ => return None,
        }
    }
    heads.sort_unstable();
    Some(heads)
}

fn dismiss(shared: &EngineContext, process: &ManagedProcess) {
    shared.mailboxes[process.owner]
        .post(Message::OfMemory(RemoteMessage::Dismiss { space: process.space, agent: process.reader }));
}
