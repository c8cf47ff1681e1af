//! Reporting spaces to load control, and holding their faults.

use super::*;

use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::space::Space;
use uswap_core::util::growth::{Growth, during};

impl<M: AddressSpace> Pager<M> {
    /// Puts a fault aside if its process is held. Returns `false` if it must be served: faults of
    /// the agent always, since other threads wait for the agent's orders, and faults of threads
    /// that cannot be examined.
    pub fn put_aside(&mut self, space: &mut Space<M>, address: u64, write: bool, thread: u32) -> bool {
        if !space.record.is_held() || space.memory.is_own(address) || space.waiting.held.len() >= MAX_HELD {
            return false;
        }
        let Some(pid) = space.memory.may_hold(thread) else { return false };
        let question = Question { record: space.record.clone(), pid, thread, address };
        if self.shared.load.questions.try_send(question).is_err() {
            return false;
        }
        let since = Instant::now();
        let until = since + if self.shared.faults.long_hold { LONG_HOLD } else { MAX_HOLD };
        if !space.waiting.held.iter().any(|held| held.address == address) {
            self.shared.counters.held_faults.add(1);
            during(Growth::AddressSpaces, || space.waiting.held.push(HeldFault { address, write, since, until }));
        }
        space.record.blocked.store(space.waiting.held.len() as u64, Relaxed);
        self.retry_by(until);
        true
    }

    /// Serves faults of a space that were put aside: all of them once the space is no longer held,
    /// otherwise those that were held for long enough.
    pub fn serve_held(&mut self, space: &mut Space<M>) {
        let held = space.record.is_held() && self.shared.load.is_holding();
        let now = Instant::now();
        let is_due = |fault: &mut HeldFault| !held || fault.until <= now;
        let due: Vec<HeldFault> = during(Growth::AddressSpaces, || space.waiting.held.extract_if(.., is_due).collect());
        for fault in &due {
            self.shared.load.count_hold(fault);
            self.shared.counters.held_to_the_end.add(u64::from(held));
            self.serve_fault(space, fault.address, fault.write, now);
        }
        space.record.blocked.store(space.waiting.held.len() as u64, Relaxed);
        if let Some(next) = space.waiting.held.iter().map(|fault| fault.until).min() {
            self.retry_by(next);
        }
    }

    /// Serves a fault that was put aside and whose thread is in a system call, or cannot be
    /// examined.
    pub fn serve_at_once(&mut self, space: &mut Space<M>, address: u64) {
        if let Some(place) = space.waiting.held.iter().position(|fault| fault.address == address) {
            let fault = space.waiting.held.swap_remove(place);
            self.shared.load.count_hold(&fault);
            self.shared.counters.held_in_calls.add(1);
            space.record.blocked.store(space.waiting.held.len() as u64, Relaxed);
            self.serve_fault(space, address, fault.write, Instant::now());
        }
    }

    /// Reports all spaces to the controller: often while it watches, otherwise now and then.
    pub fn tell_load(&mut self, now_and_then: bool) {
        if now_and_then || self.shared.load.is_watching() && self.told_load.elapsed() >= TOLD {
            self.told_load = Instant::now();
            let groups = &self.shared.groups;
            let in_use = groups.in_use();
            let is_limited =
                |space: &Space<M>| space.account.as_ref().is_some_and(|account| groups.is_limited(account));
            self.spaces.values().for_each(|space| space.tell_load(in_use && is_limited(space)));
        }
    }

    /// The spaces whose pages are evicted first, and the number of pages that all held spaces of
    /// this pager have. The spaces are those of held processes, beginning with the one that has
    /// longest to wait for its turn, as many as are needed to have twice `wanted` pages.
    pub fn suspended(&self, wanted: u64) -> (Vec<SpaceId>, u64) {
        if !self.shared.load.is_holding() {
            return (Vec::new(), 0);
        }
        let can_give = |space: &Space<M>| space.record.is_held() && space.can_evict() && space.weight() > MIN_SUSPENDED;
        let suspended = self.spaces.values().filter(|space| can_give(space));
        let place = |space: &Space<M>| (space.record.place.load(Relaxed), space.id, space.weight());
        let mut found: Vec<(u64, SpaceId, u64)> =
            during(Growth::AddressSpaces, || suspended.map(|space| place(space)).collect());
        let pages: u64 = found.iter().map(|(.., weight)| weight).sum();
        self.shared.load.suspended[self.number].store(pages as i64, Relaxed);
        found.sort_unstable_by_key(|(place, ..)| std::cmp::Reverse(*place));
        let mut ahead = 0;
        let enough = found.into_iter().take_while(|(.., weight)| {
            ahead += weight;
            ahead - weight < 2 * wanted
        });
        (during(Growth::AddressSpaces, || enough.map(|(_, id, _)| id).collect()), pages)
    }

    /// Whether held spaces of other pagers have this many pages to give, and are about to give
    /// them.
    pub fn others_give(&self, wanted: u64) -> bool {
        let load = &self.shared.load;
        let other_owners = || self.shared.gauges.idle.iter().enumerate().filter(|(number, _)| *number != self.number);
        load.is_holding()
            && load.suspended_elsewhere(self.number) >= wanted as i64
            && self.shared.budget.has_room(0)
            && (self.shared.budget.under_way() > 0 || other_owners().any(|(_, idle)| !idle.load(Relaxed)))
    }
}

impl<M: AddressSpace> Space<M> {
    /// A process that a group limits takes no turns on behalf of the run.
    fn tell_load(&self, limited: bool) {
        let record = &self.record;
        let Runner { process, helper, within } = self.memory.runner();
        record.pid.store(process, Relaxed);
        record.agent.store(helper, Relaxed);
        record.within.store(within, Relaxed);
        record.active.store(self.active && self.can_evict() && !limited, Relaxed);
        record.pages.store(self.counts.resident + self.trays.staged_pages(), Relaxed);
        record.stored.store(self.counts.stored, Relaxed);
        record.pending.store(
            (self.waiting.waiters.len() + self.waiting.stalled.len() + self.lineage.copies.waiting()) as u64,
            Relaxed,
        );
    }
}
