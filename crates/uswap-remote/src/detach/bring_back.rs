//! The part of a pager thread in a detach: it brings pages back, then lets its spaces go.

use super::*;

use crate::Pager;
use crate::Space;
use crate::agent::absence::AbsencePager;
use uswap_abi::layout::{NOTICE, PAGE, SA, SB, SLOTS};
use uswap_core::page::word::PageState;
use uswap_core::util::growth::{Growth, during};
use uswap_pager::space::id::SpaceId;

/// Methods that this file adds to [`Pager`].
pub(crate) trait DetachPager {
    /// Does this thread's part of the current phase. (The budget is lifted, so nothing has to be
    /// evicted meanwhile.)
    fn leave(&mut self);
    /// Brings evicted pages back, some at a time. Returns how many pages are staged, stored or in
    /// flight.
    fn bring_back(&mut self, space: &mut Space) -> u64;
    /// Whether nothing of the space is under way: its events are read and applied, no fault waits,
    /// and no order is pending.
    fn is_clear(&mut self, space: &mut Space) -> bool;
    /// Unregisters the space and drops it.
    fn let_go(&mut self, id: SpaceId);
}

impl DetachPager for Pager {
    fn leave(&mut self) {
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
            // The page may have come back already, together with others.
            let word = space.table.get(address);
            if is_away(word.state()) && !word.in_flight() {
                self.bring(space, address);
            }
        }
        left
    }

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

    fn let_go(&mut self, id: SpaceId) {
        let Some(mut space) = self.spaces.remove(&id) else { return };
        let agent = space.memory.agent.take();
        if let Some(agent) = &agent {
            // From here on the program does not end when the engine ends.
            agent.let_go();
            self.unwatch(agent);
        }
        self.shared.faults.pause(self.shared.faults.delay_detach);
        for (start, end) in &space.coverage.registered {
            // A range that stays registered is so only until the last descriptor is closed.
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
