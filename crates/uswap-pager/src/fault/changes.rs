//! Changes: what the program does to its address space, applied to the page table in the order in
//! which it happened.
//!
//! All of this runs with the gate closed and the ring absorbed: no MOVE is under way, and every
//! MOVE that has happened is in the page table.

use uswap_abi::layout::PAGE;
use uswap_core::page::word::{PageState, PageWord};
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_store::ObjectId;

use crate::address_space::{AddressSpace, Change};
use crate::event_loop::Pager;
use crate::reclaim::staging::{Phase, bits};
use crate::space::Space;

impl<M: AddressSpace> Pager<M> {
    /// Applies one change, with the moment at which it happened. `last`: no other change is left to
    /// be applied.
    pub fn apply(&mut self, space: &mut Space<M>, (change, moment): (Change<M>, u64), last: bool) {
        let counters = &self.shared.counters;
        M::comes_to(space, moment);
        match &change {
            Change::Unmap(range) => {
                counters.unmap_events.add(1);
                self.release_range(space, range.start, range.end);
                space.unregister_range(range.start, range.end);
                self.cut_fresh(space, range.start, range.end);
                space.memory.was_applied(&change);
                self.wake_waiters(space, range.start, range.end);
            }
            Change::Remove(range) => {
                counters.remove_events.add(1);
                self.remove(space, range.start, range.end);
            }
            Change::Remap { from, to, length, .. } => {
                counters.remap_events.add(1);
                if !self.shared.faults.ignore_remap {
                    self.remap(space, *from, *to, *length);
                    space.memory.was_applied(&change);
                }
            }
            Change::Fork(_) => counters.fork_events.add(1),
        }
        if let Change::Fork(copy) = change {
            self.fork(space, *copy, last);
        }
    }

    fn remove(&mut self, space: &mut Space<M>, start: u64, end: u64) {
        if !self.shared.faults.ignore_remove && !space.memory.is_own(start) {
            let resident = space.counts.resident;
            self.release_range(space, start, end);
            if space.counts.resident < resident && !self.shared.faults.trust_remove {
                space.coverage.lazyfree.note(start, end);
            }
        }
        self.wake_waiters(space, start, end);
    }

    /// Forgets the pages of a range and gives back the objects and slots that they hold.
    pub fn release_range(&mut self, space: &mut Space<M>, start: u64, end: u64) {
        self.cancel_orders(space, start, end);
        self.release_pages(space, start, end);
    }

    /// Like [`Self::release_range`], for pages without orders under way.
    pub fn release_pages(&mut self, space: &mut Space<M>, start: u64, end: u64) {
        let store = &self.shared.store;
        let (trays, resident, policy) = (&mut space.trays, &mut space.counts.resident, &mut space.policy);
        let (stored, mut zeros) = (&mut space.counts.stored, 0);
        space.table.take_range(start, end, |_, word| {
            policy.forget(word);
            match word.state() {
                PageState::Stored(object) => {
                    store.release(ObjectId::from_bits(object));
                    *stored = stored.saturating_sub(1);
                }
                PageState::Staged(slot) => {
                    let (tray, bit) = trays.of_slot(slot);
                    tray.live &= !(1 << bit);
                }
                PageState::Resident => *resident = resident.saturating_sub(1),
                PageState::Zero => zeros += 1,
                _ => {}
            }
            if let Some(copy) = word.kept_copy() {
                store.release_cached(ObjectId::from_bits(copy));
            }
        });
        space.counts.zeros -= zeros;
        self.shared.gauges.zero_pages.sub(zeros);
    }

    /// Cancels the orders under way for a range: runs that the agent has not begun are not
    /// executed.
    pub fn cancel_orders(&mut self, space: &mut Space<M>, start: u64, end: u64) {
        let filling = space.trays.filling.clone();
        for number in filling {
            let tray = space.trays.get_mut(number);
            let touched: Vec<usize> = (0..tray.runs.len()).filter(|r| tray.runs[*r].overlaps(start, end)).collect();
            for index in touched {
                space.memory.cancel(number, index as u32);
                self.shared.counters.orders_cancelled.add(1);
                let tray = space.trays.get_mut(number);
                let slots = tray.runs[index].slots() & tray.ordered;
                tray.ordered &= !slots;
                let addresses = tray.addresses;
                for slot in bits(slots) {
                    let address = addresses[slot as usize];
                    let word = space.table.get(address);
                    if word.state() == PageState::Resident && word.in_flight() {
                        space.policy.join(&mut space.table, address, word.set_in_flight(false));
                    }
                }
            }
        }
    }

    fn wake_waiters(&mut self, space: &mut Space<M>, start: u64, end: u64) {
        space.lineage.copies.wake(&space.memory, start, end);
        while let Some((address, _)) = space.waiting.waiters.next_from(start).filter(|(address, _)| *address < end) {
            space.waiting.waiters.remove(address);
            space.memory.wake(address, PAGE);
        }
        let (memory, gone) = (&space.memory, start..end);
        space
            .waiting
            .held
            .extract_if(.., |fault| gone.contains(&fault.address))
            .for_each(|held| memory.wake(held.address, PAGE));
    }

    /// mremap: page words, registration and staged pages move along.
    fn remap(&mut self, space: &mut Space<M>, from: u64, to: u64, length: u64) {
        self.cancel_orders(space, from, from + length);
        self.release_range(space, to, to + length);
        let mut moved: Vec<(u64, PageWord)> = Vec::new();
        space.table.take_range(from, from + length, |address, word| moved.push((address, word)));
        moved.iter().for_each(|(_, word)| space.policy.forget(*word));
        for (address, word) in moved {
            let target = address - from + to;
            if let PageState::Staged(slot) = word.state() {
                let (tray, bit) = space.trays.of_slot(slot);
                tray.addresses[bit as usize] = target;
            }
            let word = word.set_in_flight(false);
            if word.state() == PageState::Resident {
                // Pages that were set aside join the list too: a page that is on no list under its
                // new address would never be found again.
                space.policy.join(&mut space.table, target, word);
            } else {
                space.table.set(target, word);
            }
        }
        space.move_registration(from, to, length);
        space.coverage.lazyfree.remap(from, to, length);
        self.cut_fresh(space, from, from + length);
        self.cut_fresh(space, to, to + length);
        self.wake_waiters(space, from, from + length);
    }

    fn cut_fresh(&self, space: &mut Space<M>, start: u64, end: u64) {
        if !self.shared.faults.lasting_fresh {
            space.coverage.unsettled.cut(start, end);
        }
    }

    /// fork: the child gets a page table of its own and shares the stored objects. `last`: no other
    /// change is left to be applied.
    fn fork(&mut self, parent: &mut Space<M>, copy: M, last: bool) {
        parent.lineage.forks += 1;
        parent.suspect_sharing();
        let mut child = Space::new(self.new_id(), copy);
        (child.active, child.lineage.parent) = (true, Some(parent.id));
        child.coverage.registered = parent.coverage.registered.clone();
        child.lineage.family = parent.lineage.family.child();
        child.lineage.copies = parent.lineage.copies.inherited();
        child.account = parent.account.clone();
        child.coverage.lazyfree = parent.coverage.lazyfree.clone();
        child.coverage.spared = parent.coverage.spared.clone();
        child.suspect_sharing();
        // Both run already, and cloning takes milliseconds. Pages that are set aside as shared need
        // not be moved from list to list in each child.
        let is_protected = self.take_protection_of_fork(parent) || {
            let is_protected = self.protect_child(parent, &child);
            self.copies_begin(parent);
            is_protected
        };
        if !self.shared.faults.no_fork_clone {
            self.clone_pages(parent, &mut child);
        }
        let excluded = M::excluded_from_fork(self, parent, last);
        if self.shared.faults.audit {
            self.audit_fresh(parent);
        }
        for (start, end) in excluded.into_iter().chain(self.fresh_at_fork(parent)) {
            self.release_range(&mut child, start, end);
            child.unregister_range(start, end);
        }
        self.copies_of_child_begin(&mut child, is_protected);
        self.shared.counters.managed_processes.add(1);
        M::begin_copy(parent, &mut child);
        if !self.add_space(child) {
            let text = "a fork child's memory cannot be watched (out of file descriptors or memory)".to_string();
            self.shared.condemn(crate::context::Verdict::Broken(text));
        }
    }

    /// Ranges that the child has registered only if it was forked after the pager registered them.
    /// Nothing of them was evicted (see `fill_tray`), so the pager learns the child's ranges anew,
    /// by a scan or by a fault, whichever comes first.
    fn fresh_at_fork(&self, parent: &Space<M>) -> Vec<(u64, u64)> {
        if self.shared.faults.trust_fresh { Vec::new() } else { parent.coverage.unsettled.ranges().to_vec() }
    }

    fn clone_pages(&mut self, parent: &Space<M>, child: &mut Space<M>) {
        let store = &self.shared.store;
        child.table = parent.table.clone();
        child.policy = parent.policy.clone();
        (child.set_aside.parked, child.set_aside.shared_parked) =
            (parent.set_aside.parked.clone(), parent.set_aside.shared_parked.clone());
        child.trays = parent.trays.inherited();
        child.counts.stored = parent.counts.stored;
        child.counts.zeros = parent.counts.zeros;
        self.shared.gauges.zero_pages.add(child.counts.zeros);
        let (mut ordered, resident) = (Vec::new(), &mut child.counts.resident);
        child.table.for_each_mut(|address, word| {
            match word.state() {
                PageState::Stored(object) => store.retain(ObjectId::from_bits(object)),
                PageState::Resident => *resident += 1,
                _ => {}
            }
            if let Some(copy) = word.kept_copy() {
                store.retain_cached(ObjectId::from_bits(copy));
            }
            // Orders and reads under way belong to the parent.
            if word.in_flight() && word.state() == PageState::Resident {
                ordered.push(address);
            }
            *word = word.set_in_flight(false);
        });
        for address in ordered {
            let word = child.table.get(address);
            child.policy.join(&mut child.table, address, word);
        }
    }

    /// Settles a space whose agent has gone, so that no more orders are executed: looks up how far
    /// the last ones were executed. The memory itself may live on.
    pub fn settle_orphans(&mut self, space: &mut Space<M>) {
        let filling = std::mem::take(&mut space.trays.filling);
        for number in filling {
            self.settle_orphan(space, number);
        }
        for number in std::mem::take(&mut space.trays.dropping) {
            let charged = space.trays.get(number).charged;
            self.under_way(space, -i64::from(charged));
            space.trays.put_free_unclean(number);
        }
    }

    fn settle_orphan(&mut self, space: &mut Space<M>, number: u32) {
        let ordered = space.trays.get(number).ordered;
        for bit in bits(ordered) {
            let slot = number * uswap_abi::layout::TRAY_PAGES + bit;
            let address = space.trays.get(number).addresses[bit as usize];
            // A page that is still in its place was not moved: its slot may hold another page,
            // which the agent inherited and was to drop.
            let stayed = space.memory.is_present(address) == Some(true);
            let moved = !stayed && space.memory.place_of(slot, true).is_some();
            let tray = space.trays.get_mut(number);
            tray.ordered &= !(1 << bit);
            let word = space.table.get(address);
            if word.state() == PageState::Resident && word.in_flight() {
                if moved {
                    tray.live |= 1 << bit;
                    tray.clean |= 1 << bit;
                    space.counts.resident = space.counts.resident.saturating_sub(1);
                    space.table.set(address, word.staged(slot as u16));
                } else {
                    space.table.set(address, word.set_in_flight(false));
                }
            }
        }
        let tray = space.trays.get_mut(number);
        (tray.inherited, tray.phase) = (true, Phase::Staged);
        space.trays.staged.push_back(number);
    }
}

impl<M: AddressSpace> Space<M> {
    /// Forgets that a range is registered.
    pub fn unregister_range(&mut self, start: u64, end: u64) {
        while let Some(page) = self.coverage.spared.range(start..end).next().copied() {
            self.coverage.spared.remove(&page);
        }
        let touched: Vec<(u64, u64)> =
            self.coverage.registered.range(..end).filter(|(_, e)| **e > start).map(|(s, e)| (*s, *e)).collect();
        for (s, e) in touched {
            self.coverage.registered.remove(&s);
            if s < start {
                self.coverage.registered.insert(s, start);
            }
            if e > end {
                self.coverage.registered.insert(end, e);
            }
        }
    }

    fn move_registration(&mut self, from: u64, to: u64, length: u64) {
        self.unregister_range(from, from + length);
        self.unregister_range(to, to + length);
        self.coverage.registered.insert(to, to + length);
    }
}
