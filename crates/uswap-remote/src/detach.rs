//! Detaching from a program: all evicted pages come back, then everything of uswap is removed from
//! it.
//!
//! There are three phases. The main thread begins each when every pager thread has done its part of
//! the one before:
//!
//! 1. *Bringing back.* The budget is lifted, nothing is evicted any more, and each pager thread
//!    brings evicted pages back as if they were touched. Faults are served as before. If memory
//!    runs short in this phase the detach is given up, and the run goes on as before.
//! 2. *Letting go.* No page of any space is staged or stored, and none can be. A space whose events
//!    are all read is unregistered and dropped. A fork that is under way then leaves a child that
//!    has all its pages: the kernel removes the registration from it when the userfaultfd is
//!    closed. Agents have been told that the program does not depend on them any more.
//! 3. *Leaving.* The attacher makes each agent unmap the memory that was mapped for it, and end.
//!
//! A failure in the last two phases only leaves mappings behind: an agent whose socket is closed
//! ends by itself.

pub mod bring_back;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};

use crate::agent::link::AgentLink;
use crate::detach_progress::DetachProgress;

/// Phase: no detach is under way.
pub const STAYING: u8 = 0;
/// The first phase.
pub const BRINGING_BACK: u8 = 1;
/// The second phase.
pub const LETTING_GO: u8 = 2;
/// The third phase.
pub const LEAVING: u8 = 3;

/// Maximum of pages that a pager thread brings back before it reads its mailbox.
const AT_ONCE: usize = 1024;

/// Progress of a detach.
#[derive(Debug)]
pub struct DetachState {
    phase: AtomicU8,
    /// Pages of each pager thread that are staged, stored or in flight; `UNKNOWN` until it has
    /// counted them in this phase.
    away: Vec<AtomicU64>,
    spaces: Vec<AtomicU64>,
    /// Agents of the spaces that were let go.
    agents: Mutex<Vec<Leaver>>,
    /// The attacher has done its part of the last phase.
    pub agents_gone: AtomicBool,
    /// The last detach.
    pub outcome: Mutex<Option<DetachAsked>>,
}

/// A detach, and its outcome.
#[derive(Clone, Debug)]
pub struct DetachAsked {
    /// Pages that were to come back when the detach began.
    pub pages: u64,
    /// The budget before, in bytes.
    pub limit_before: u64,
    /// The budget in bytes that the user had ordered before; 0: none.
    pub order_before: u64,
    /// Why it was given up.
    pub error: Option<String>,
}

/// An agent that is to go.
#[derive(Debug)]
pub struct Leaver {
    /// The process that it serves.
    pub pid: u32,
    /// The agent's thread.
    pub thread: u32,
    /// Address of its area.
    pub area: u64,
    /// All of the area is unregistered, so it may be unmapped.
    pub unregistered: bool,
    /// Connection to the agent; it ends when the agent has ended.
    pub link: AgentLink,
}

const UNKNOWN: u64 = u64::MAX;

impl DetachState {
    /// The state while no detach is under way.
    pub fn new(owners: usize) -> Self {
        let unknown = || (0..owners).map(|_| AtomicU64::new(UNKNOWN)).collect();
        Self {
            phase: AtomicU8::new(STAYING),
            away: unknown(),
            spaces: unknown(),
            agents: Mutex::default(),
            agents_gone: AtomicBool::new(false),
            outcome: Mutex::default(),
        }
    }

    /// Whether a detach is under way: nothing is evicted then, and no agent injected.
    pub fn is_under_way(&self) -> bool {
        self.phase.load(SeqCst) != STAYING
    }

    /// Whether all spaces were let go, and agents are to be removed.
    pub fn is_last_phase(&self) -> bool {
        self.phase.load(SeqCst) == LEAVING
    }

    /// Takes the agents that are to be removed.
    pub fn take_agents(&self) -> Vec<Leaver> {
        std::mem::take(&mut *self.agents.lock().expect("agents"))
    }

    /// Sum over all pager threads; `None` until each has reported.
    fn sum(figures: &[AtomicU64]) -> Option<u64> {
        figures.iter().map(|figure| Some(figure.load(SeqCst)).filter(|n| *n != UNKNOWN)).sum()
    }

    /// Pages that are staged, stored or in flight; `None` until all pager threads have reported.
    pub fn away(&self) -> Option<u64> {
        Self::sum(&self.away)
    }

    /// Spaces that are not let go yet; `None` until all pager threads have reported.
    pub fn spaces_left(&self) -> Option<u64> {
        Self::sum(&self.spaces)
    }

    /// The current phase.
    pub fn phase(&self) -> u8 {
        self.phase.load(SeqCst)
    }

    /// Begins a phase.
    pub fn begin(&self, phase: u8) {
        for figure in self.away.iter().chain(&self.spaces) {
            figure.store(UNKNOWN, SeqCst);
        }
        self.phase.store(phase, SeqCst);
    }

    /// Ends the attacher's work: no agent is injected or removed any more.
    pub fn end(&self) {
        self.agents_gone.store(true, SeqCst);
        self.phase.store(LEAVING, SeqCst);
    }

    /// The figures for the status.
    pub fn figures(&self) -> Option<DetachProgress> {
        let DetachAsked { pages, error, .. } = self.outcome.lock().expect("outcome").clone()?;
        let pages_left = Self::sum(&self.away).unwrap_or(pages);
        Some(DetachProgress { running: self.is_under_way(), pages, pages_left, error })
    }
}
