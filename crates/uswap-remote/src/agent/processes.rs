//! Agents that are processes of their own: whose they are, telling them from programs, and their
//! end.
//!
//! Such an agent shares the memory of its program. So that memory lives on when the program ends or
//! executes another one, until the agent has gone too: the owner sees the end by a pidfd, an exec
//! by the hello of the new image or, where that has no agent, at the next census (kcmp), and sends
//! the agent away: it ends by itself, with status 0, since a subreaper between engine and program
//! sees its end. One that does not is killed. In the tree it is told by its name; in sums over
//! processes it must not count beside its program.

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
/// How long an agent may take to go.
const EXIT_TIMEOUT: Duration = Duration::from_millis(200);

/// An agent process, as its owner holds it.
#[derive(Debug)]
pub struct AgentProcess {
    /// The agent.
    pub agent: OwnedFd,
    /// Its program.
    pub program: OwnedFd,
}

impl AgentProcess {
    /// The agent ends at once, whatever it does.
    fn kill(&self) {
        // One that has ended already is what is wanted.
        let _ = send_signal(&self.agent, SIGKILL);
    }
}

/// Whether `agent` still has the memory of `program`. Where the kernel cannot compare memories
/// (ENOSYS) it is believed.
pub fn speaks_for(agent: u32, program: u32) -> bool {
    const NOT_THERE: i32 = 38;
    share_memory(agent, program).unwrap_or_else(|error| error.raw_os_error() == Some(NOT_THERE))
}

/// Agents in the tree, of this run.
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

/// Whether a process that nobody knows adds no memory: an agent, or one that still has its parent's
/// (vfork).
pub fn has_anothers_memory(pid: u32) -> bool {
    procfs::is_agent_process(pid)
        || procfs::parent(pid).is_some_and(|parent| matches!(share_memory(pid, parent), Ok(true)))
}

/// Ends the agents if nobody but agents is left of a run: nobody's memory is with them. `children`:
/// the engine's own. Whether that was so.
pub fn end_those_left(children: &[u32]) -> bool {
    let are_agents = children.iter().all(|pid| procfs::is_agent_process(*pid));
    if are_agents {
        // Whoever has ended meanwhile is still there until it is reaped, by nobody else.
        children.iter().for_each(|pid| _ = kill(*pid, SIGKILL));
    }
    are_agents
}

/// Programs that have executed another one, which has not said hello: their agents have nobody left
/// to speak for.
pub fn look_for_execs(shared: &EngineContext, managed: &BTreeMap<u32, ManagedProcess>) {
    for (pid, process) in managed.iter().filter(|(_, process)| process.apart && process.agent) {
        if matches!(share_memory(*pid, process.reader), Ok(false)) {
            dismiss(shared, process);
        }
    }
}

/// Another agent has said hello for the program of `pid`: it has executed another image.
pub fn replace(shared: &EngineContext, pid: u32, agent: u32) {
    if let Some(process) = shared.managed.all().get(&pid)
        && process.apart
        && process.agent
        && process.reader != agent
    {
        dismiss(shared, process);
    }
}

/// Asks for the agent, which may not, where the robust list of each thread is.
pub fn tell_of_threads(program: u32, list: &ThreadList) {
    list.write(robust_lists(program));
}

/// The heads of the robust lists of a process's threads. Each lies in its thread's control block.
pub fn robust_lists(program: u32) -> impl Iterator<Item = u64> {
    let threads = during(Growth::Telling, || procfs::threads(program));
    threads.into_iter().filter_map(|tid| robust_list(tid).ok().filter(|head| *head != 0))
}

fn dismiss(shared: &EngineContext, process: &ManagedProcess) {
    shared.mailboxes[process.owner]
        .post(Message::OfMemory(RemoteMessage::Dismiss { space: process.space, agent: process.reader }));
}
