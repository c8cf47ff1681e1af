//! What the threads of an engine share of the processes whose memory is managed.

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

/// Known to every thread.
pub struct RemoteShared {
    /// Tells whose memory is behind a userfaultfd.
    pub prover: Prover,
    /// Fork children to be matched with their processes.
    pub matches: Sender<MatchJob>,
    /// Connections of agents that could not come to the door, with their processes.
    pub fetched: Mutex<Vec<Fetched>>,
    /// Held while a thread is traced: the news of it belong to the attacher. So do those of threads
    /// that are to stop and have not yet, whose number this is.
    pub tracing: Mutex<usize>,
    /// Why processes cannot be attached to.
    pub refused: Mutex<BTreeMap<u32, UnmanagedReason>>,
    /// How long threads were stopped for an agent to be brought, in nanoseconds.
    pub attach_stops: Histogram,
    /// The engine's descriptors.
    pub descriptors: Descriptors,
    /// Whose memory this is about.
    pub tree: Tree,
    /// Letting go of a program that was attached to.
    pub leaving: DetachState,
    /// What the layer above shares; it alone knows what that is.
    pub above: Box<dyn Any + Send + Sync>,
}

/// What this file adds to [`EngineContext`].
pub trait SharedContext {
    /// Kills the tree; what is left of it, in words.
    fn kill_tree(&self) -> Option<String>;
}

impl SharedContext for EngineContext {
    fn kill_tree(&self) -> Option<String> {
        self.of_memory.descriptors.give_up_all();
        self.of_memory.tree.kill()
    }
}

/// The connection of an agent that did not come to the door.
#[derive(Debug)]
pub struct Fetched {
    /// Our end.
    pub socket: MessageSocket,
    /// Its process.
    pub pid: u32,
    /// It was brought to a program that had none. (A fork child of one that is managed goes by what
    /// is known of its parent.)
    pub attached: Option<Attached>,
}

/// What is known of a program that the agent was brought to. It has no hooks: advice that it gives
/// sends no note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// It is not known which words the kernel clears when threads end: they may lie in its static
    /// data.
    pub wordless: bool,
    /// The kernel clears one known word for all its threads, which the agent leaves alone: stacks
    /// need no care.
    pub free_stacks: bool,
}

/// What an owner is told by whoever looks after processes.
#[derive(Debug)]
pub enum RemoteMessage {
    /// An agent arrived.
    Hello(Box<AgentHello>),
    /// The matcher found the process of a space and a thread of it, or did not.
    Matched {
        /// Whose.
        space: SpaceId,
        /// Its process, proven a moment ago.
        found: Option<Found>,
    },
    /// The governor wants the space's mappings looked at; memory is to be registered from now on.
    Scan(SpaceId),
    /// The agent process of a space has nobody left to speak for.
    Dismiss {
        /// Whose.
        space: SpaceId,
        /// The agent that is meant.
        agent: u32,
    },
}

/// What an owner of processes' memory keeps.
pub struct RemoteOwner {
    /// Kept for their room: events just read.
    pub events: Vec<Event>,
    /// Where the owner runs.
    pub placement: AffinityPolicy,
    /// New programs that wait for room.
    pub lobby: AdmissionQueue,
    /// Agents of fork children whose space is not found yet, and since when they wait.
    pub late_children: Vec<(Instant, Box<AgentHello>)>,
}
