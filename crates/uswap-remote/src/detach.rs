//! Letting go of a program that was attached to: all that was evicted comes back, then nothing of
//! ours is left in it.
//!
//! Three phases, begun by the main thread when every owner has done its part of the one before:
//!
//! 1. *Bringing back.* The budget is lifted, nothing is evicted any more, and each owner has
//!    evicted pages come back as if they were touched. Faults are served as ever. If memory runs
//!    short now all goes on as it was before.
//! 2. *Letting go.* No page of any space is away, and none can go. A space whose events are all
//!    read is unregistered, and is forgotten. A fork that is under way then leaves a child whose
//!    pages are all its own: the kernel takes the registration away from it when the userfaultfd is
//!    closed. Agents have been told that nothing of the program hangs on them.
//! 3. *Leaving.* The attacher has each agent unmap what was mapped for it, and end.
//!
//! Whatever fails in the last two leaves mappings behind and no more: an agent whose socket ends
//! goes by itself.

pub mod bring_back;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};

use crate::agent::link::AgentLink;
use crate::detach_progress::DetachProgress;

/// The phases: nothing is under way.
pub const STAYING: u8 = 0;
/// The first.
pub const BRINGING_BACK: u8 = 1;
/// The second.
pub const LETTING_GO: u8 = 2;
/// The third.
pub const LEAVING: u8 = 3;

/// Pages that an owner brings back before it looks after its mail.
const AT_ONCE: usize = 1024;

/// How far it is.
#[derive(Debug)]
pub struct DetachState {
    phase: AtomicU8,
    /// Of each owner: pages that are away; `UNKNOWN` until it has looked in this phase.
    away: Vec<AtomicU64>,
    spaces: Vec<AtomicU64>,
    /// Agents of spaces that were let go.
    agents: Mutex<Vec<Leaver>>,
    /// The attacher has done its part.
    pub agents_gone: AtomicBool,
    /// What was asked for last.
    pub outcome: Mutex<Option<DetachAsked>>,
}

/// What was asked for last, and what came of it.
#[derive(Clone, Debug)]
pub struct DetachAsked {
    /// Pages that were to come back when it began.
    pub pages: u64,
    /// The budget before, in bytes.
    pub limit_before: u64,
    /// The budget that had been ordered before, in bytes; 0: none.
    pub order_before: u64,
    /// Why it was given up.
    pub error: Option<String>,
}

/// An agent that is to go.
#[derive(Debug)]
pub struct Leaver {
    /// Its process.
    pub pid: u32,
    /// Its thread.
    pub thread: u32,
    /// Where its area lies.
    pub area: u64,
    /// All of the area is unregistered: it may be unmapped.
    pub unregistered: bool,
    /// Ends when the agent has gone.
    pub link: AgentLink,
}

const UNKNOWN: u64 = u64::MAX;

impl DetachState {
    /// Nobody leaves yet.
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

    /// Whether nothing is to be evicted, and no agent to be brought.
    pub fn is_under_way(&self) -> bool {
        self.phase.load(SeqCst) != STAYING
    }

    /// Whether all spaces were let go, and agents are to be removed.
    pub fn is_last_phase(&self) -> bool {
        self.phase.load(SeqCst) == LEAVING
    }

    /// Agents that are to go.
    pub fn take_agents(&self) -> Vec<Leaver> {
        std::mem::take(&mut *self.agents.lock().expect("agents"))
    }

    /// Sum over all owners; `None` until all have told.
    fn sum(figures: &[AtomicU64]) -> Option<u64> {
        figures.iter().map(|figure| Some(figure.load(SeqCst)).filter(|n| *n != UNKNOWN)).sum()
    }

    /// Pages that are away; `None` until all owners have told.
    pub fn away(&self) -> Option<u64> {
        Self::sum(&self.away)
    }

    /// Spaces that are not let go; `None` until all owners have told.
    pub fn spaces_left(&self) -> Option<u64> {
        Self::sum(&self.spaces)
    }

    /// The phase now.
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

    /// No agent is brought any more.
    pub fn end(&self) {
        self.agents_gone.store(true, SeqCst);
        self.phase.store(LEAVING, SeqCst);
    }

    /// For the status.
    pub fn figures(&self) -> Option<DetachProgress> {
        let DetachAsked { pages, error, .. } = self.outcome.lock().expect("outcome").clone()?;
        let pages_left = Self::sum(&self.away).unwrap_or(pages);
        Some(DetachProgress { running: self.is_under_way(), pages, pages_left, error })
    }
}
