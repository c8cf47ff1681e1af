//! The part of an engine's shared state that is about the processes whose memory is managed.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::Sender;
use std::time::Instant;

use uswap_core::Histogram;
use uswap_sys::io::socket::MessageSocket;
use uswap_sys::userfaultfd::Event;

use crate::EngineContext;
use crate::agent::admission::AdmissionQueue;
use crate::agent::link::AgentHello;
use crate::detach::DetachState;
use crate::fd_budget::Descriptors;
use crate::identity::lookup::{Found, MatchJob};
use crate::identity::probe::Prover;
use crate::inject::reason::UnmanagedReason;
use crate::process_tree::Tree;
use crate::sched::affinity::AffinityPolicy;
use uswap_pager::space::id::SpaceId;

/// State about processes that all threads share.
pub struct RemoteShared {
    /// Tests which process's memory is behind a userfaultfd.
    pub prover: Prover,
    /// Fork children to be matched with their processes.
    pub matches: Sender<MatchJob>,
    /// Connections of agents that could not reach the engine's socket, with their processes.
    pub fetched: Mutex<Vec<Fetched>>,
    /// Locked while a thread is traced, because the attacher must get its wait statuses. The value
    /// is the number of threads that were asked to stop and have not stopped yet; their wait
    /// statuses belong to the attacher too.
    pub tracing: Mutex<usize>,
    /// Why processes cannot be attached to.
    pub refused: Mutex<BTreeMap<u32, UnmanagedReason>>,
    /// How long threads were stopped to inject an agent, in nanoseconds.
    pub attach_stops: Histogram,
    /// The engine's descriptors.
    pub descriptors: Descriptors,
    /// The processes whose memory is managed.
    pub tree: Tree,
    /// The detach from a program that was attached to.
    pub leaving: DetachState,
    /// Shared state of the layer above. Only that layer knows its type.
    pub above: Box<dyn Any + Send + Sync>,
}

/// Methods that this file adds to [`EngineContext`].
pub trait SharedContext {
    /// Kills the tree. Returns the processes that are left of it, in words.
    fn kill_tree(&self) -> Option<String>;
}

impl SharedContext for EngineContext {
    fn kill_tree(&self) -> Option<String> {
        self.of_memory.descriptors.give_up_all();
        self.of_memory.tree.kill()
    }
}

/// The connection of an agent that did not reach the engine's socket.
#[derive(Debug)]
pub struct Fetched {
    /// The engine's end.
    pub socket: MessageSocket,
    /// Its process.
    pub pid: u32,
    /// Set if the agent was injected into a program that had none. (For a fork child of a managed
    /// process the value of its parent counts.)
    pub attached: Option<Attached>,
}

/// Facts about a program into which the agent was injected. The program has no hooks, so its advice
/// is not noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The words that the kernel clears when threads end are unknown: they may lie in the program's
    /// static data.
    pub wordless: bool,
    /// The kernel clears one known word for all threads of the program, which the agent does not
    /// move: stacks need no care.
    pub free_stacks: bool,
}

/// Messages about processes to a pager thread.
#[derive(Debug)]
pub enum RemoteMessage {
    /// An agent arrived.
    Hello(Box<AgentHello>),
    /// The matcher's answer: the process of a space and a thread of it, or none.
    Matched {
        /// The space.
        space: SpaceId,
        /// The process, proven a moment ago.
        found: Option<Found>,
    },
    /// The governor wants the space's mappings scanned; memory is to be registered from now on.
    Scan(SpaceId),
    /// The agent process of a space has no program left to serve.
    Dismiss {
        /// The space.
        space: SpaceId,
        /// Process id of the agent that is meant.
        agent: u32,
    },
}

/// State of a pager thread that is about other processes.
pub struct RemoteOwner {
    /// Events just read; the vector is kept for its allocation.
    pub events: Vec<Event>,
    /// Placement of the thread.
    pub placement: AffinityPolicy,
    /// The admission queue: new programs that wait for room.
    pub lobby: AdmissionQueue,
    /// Agents of fork children whose space is not found yet, and since when each waits.
    pub late_children: Vec<(Instant, Box<AgentHello>)>,
}
