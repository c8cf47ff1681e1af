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

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};

use uswap_abi::layout::{NOTICE, PAGE, SA, SB, SLOTS};
use uswap_core::page::word::PageState;
use uswap_core::util::growth::{Growth, during};

use crate::pager::space::id::SpaceId;
use crate::remote::Pager;
use crate::remote::Space;
use crate::remote::agent::link::AgentLink;
use crate::remote::detach_progress::DetachProgress;

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

impl Pager {
    /// The owner's part of what is under way. (The budget wants nothing meanwhile.)
    pub fn leave(&mut self) {
        let shared = self.shared.clone();
        let leaving = &shared.of_memory.leaving;
        let phase = leaving.phase.load(SeqCst);
        if phase != BRINGING_BACK && phase != LETTING_GO {
            return;
        }
        let mut away = 0;
        self.for_each_id(|owner, id| {
            let mut done = false;
            owner.with_space(id, |owner, space| {
                during(Growth::Lists, || {
                    let left = owner.bring_back(space);
                    away += left;
                    done = phase == LETTING_GO && left == 0 && owner.is_clear(space);
                });
            });
            if done {
                during(Growth::AddressSpaces, || owner.let_go(id));
            }
        });
        leaving.away[self.number].store(away, SeqCst);
        if phase == LETTING_GO {
            leaving.spaces[self.number].store(self.spaces.len() as u64, SeqCst);
        }
        if !self.spaces.is_empty() {
            self.retry_soon();
        }
    }

    /// Has evicted pages come back, some at a time. Returns how many are not where the program
    /// would find them, or may be on their way out.
    fn bring_back(&mut self, space: &mut Space) -> u64 {
        self.absorb(space);
        let is_away = |state: PageState| matches!(state, PageState::Staged(_) | PageState::Stored(_));
        let mut left = 0;
        let mut next = Vec::with_capacity(AT_ONCE);
        for (address, word) in space.table.iter() {
            if is_away(word.state()) || word.in_flight() {
                left += 1;
                if next.len() < AT_ONCE && !word.in_flight() {
                    next.push(address);
                }
            }
        }
        for address in next {
            // Along with others it may be there already.
            let word = space.table.get(address);
            if is_away(word.state()) && !word.in_flight() {
                self.bring(space, address);
            }
        }
        left
    }

    /// Whether nothing of the space is under way: its events are read and applied, nobody waits,
    /// and no order is out.
    fn is_clear(&mut self, space: &mut Space) -> bool {
        self.serve(space);
        let waits = !space.waiting.waiters.is_empty()
            || !space.waiting.stalled.is_empty()
            || !space.waiting.held.is_empty()
            || space.lineage.copies.waiting() > 0;
        let orders = !space.trays.filling.is_empty();
        let changes = space.memory.agent_state.gate_pending
            || !space.memory.changes.window.is_empty()
            || !space.memory.events.is_quiet(space.memory.area);
        let is_away = |state: PageState| matches!(state, PageState::Staged(_) | PageState::Stored(_));
        let is_out = |(_, word): (u64, uswap_core::page::word::PageWord)| is_away(word.state()) || word.in_flight();
        !(waits || orders || changes || space.table.iter().any(is_out))
    }

    /// The program's memory is its own again.
    fn let_go(&mut self, id: SpaceId) {
        let Some(mut space) = self.spaces.remove(&id) else { return };
        let agent = space.memory.agent.take();
        if let Some(agent) = &agent {
            // Its end is no reason any more to end the program.
            agent.let_go();
            self.unwatch(agent);
        }
        self.shared.faults.pause(self.shared.faults.delay_detach);
        for (start, end) in &space.coverage.registered {
            // What is left registered is so until the last descriptor is closed.
            let _ = space.memory.events.unregister(*start, end - start);
        }
        let mut unregistered = !space.active;
        if space.active {
            let sa = space.memory.events.unregister(space.memory.area + SA, NOTICE - SA + PAGE);
            let staging = space.memory.staging.as_ref();
            let sb =
                staging.map_or(Ok(()), |staging| staging.unregister(space.memory.area + SB, u64::from(SLOTS) * PAGE));
            unregistered = sa.is_ok() && sb.is_ok();
        }
        if let (Some(link), Some(pid)) = (agent, space.memory.pid) {
            let (thread, area) = (space.memory.reader, space.memory.area);
            let mut agents = self.shared.of_memory.leaving.agents.lock().expect("agents");
            agents.push(Leaver { pid, thread, area, unregistered, link });
        }
        self.spaces.insert(id, space);
        self.remove_space(id);
    }
}
