//! The audit: whether all data about a space is consistent. Under the fault point `audit`, set by
//! tests, it runs now and then; it looks at every page.

use std::collections::HashSet;

use uswap_core::page::word::{PageState, PageWord};
use uswap_core::reclaim::policy::ReclaimPolicy;

use crate::address_space::AddressSpace;
use crate::context::Verdict;
use crate::event_loop::Pager;
use crate::reclaim::staging::{PageRun, Phase, bits};
use crate::space::Space;

impl<M: AddressSpace> Pager<M> {
    /// Ends the run with a message if the data of a space is inconsistent.
    pub fn audit(&self, space: &mut Space<M>) {
        if let Err(finding) = space.audit() {
            self.condemn_by_audit(format!("audit of {}: {finding}", space.memory.label()));
        }
    }
}

impl<M: AddressSpace> Pager<M> {
    /// Ends the run with a message if pages were evicted from memory that fork children may not
    /// have registered.
    pub fn audit_fresh(&self, space: &Space<M>) {
        self.audit_evicted(space, "memory just registered", |address| space.coverage.unsettled.contains(address));
    }

    /// The same for memory that is about to be registered: its page words are about to be
    /// forgotten.
    pub fn audit_unknown(&self, space: &Space<M>, start: u64, end: u64) {
        self.audit_evicted(space, "memory not registered", |address| (start..end).contains(&address));
    }

    /// The same if pages are about to be evicted from memory that is not registered: no fault would
    /// report a touch of them. A change that was read and is not applied yet explains it, and
    /// cancels the order.
    pub fn audit_runs(&self, space: &Space<M>, runs: &[PageRun]) {
        if space.memory.is_changing() {
            return;
        }
        if let Some(run) = runs.iter().find(|run| space.memory.is_registered(run.address) == Some(false)) {
            let (name, address) = (space.memory.label(), run.address);
            self.condemn_by_audit(format!("audit of {name}: page {address:#x} is not registered and to be evicted"));
        }
    }

    fn condemn_by_audit(&self, text: String) {
        self.shared.alarm(text.clone());
        self.shared.condemn(Verdict::Broken(text));
    }

    fn audit_evicted(&self, space: &Space<M>, what: &str, is_meant: impl Fn(u64) -> bool) {
        let evicted = |word: PageWord| matches!(word.state(), PageState::Staged(_) | PageState::Stored(_));
        let mut found = space.table.iter().filter(|(address, word)| evicted(*word) && is_meant(*address));
        if let Some((address, word)) = found.next() {
            let name = space.memory.label();
            self.condemn_by_audit(format!("audit of {name}: page {address:#x} of {what} is evicted: {word:?}"));
        }
    }
}

impl<M: AddressSpace> Space<M> {
    /// Every resident page can be found by reclaim or is set aside or ordered; every staged page
    /// lies in a live slot and every live slot holds a staged page.
    fn audit(&mut self) -> Result<(), String> {
        let lists = self.policy.pages().lists();
        let listed: HashSet<(u64, bool)> =
            lists.iter().map(|(entry, active)| (self.table.address(entry), active)).collect();
        let mut counted = [0; 2];
        let aside: HashSet<u64> =
            self.set_aside.parked.iter().copied().chain(self.set_aside.shared_parked.iter()).collect();
        let (mut resident, mut stored, mut zeros, mut staged) = (0, 0, 0, HashSet::new());
        for (address, word) in self.table.iter() {
            match word.state() {
                PageState::Resident => {
                    resident += 1;
                    counted[usize::from(word.active())] += u64::from(word.queued());
                    let found = match (word.queued(), word.in_flight()) {
                        (true, false) => listed.contains(&(address, word.active())),
                        (false, true) => true,
                        (false, false) => aside.contains(&address) || self.memory.is_orphaned(),
                        (true, true) => false,
                    };
                    if !found {
                        return Err(format!("resident page {address:#x} is lost to reclaim: {word:?}"));
                    }
                }
                PageState::Staged(slot) => {
                    staged.insert((slot, address));
                }
                PageState::Stored(_) => stored += 1,
                PageState::Zero => zeros += 1,
                _ => {}
            }
        }
        if stored != self.counts.stored {
            return Err(format!("{stored} pages are stored, {} are counted", self.counts.stored));
        }
        if zeros != self.counts.zeros {
            return Err(format!("{zeros} pages are evicted zeros, {} are counted", self.counts.zeros));
        }
        if self.counts.under_way != self.trays.pages_under_way() as i64 {
            let counted = self.trays.pages_under_way();
            return Err(format!("{counted} pages are under way, {} are charged", self.counts.under_way));
        }
        if resident != self.counts.resident {
            return Err(format!("{resident} pages are resident, {} are counted", self.counts.resident));
        }
        let told = [lists.count(false), lists.count(true)];
        if counted != told {
            return Err(format!("{counted:?} pages are inactive and active, {told:?} are counted"));
        }
        if lists.len() != self.table.names() {
            return Err(format!("the lists have {} entries, the table counts {}", lists.len(), self.table.names()));
        }
        self.audit_trays(&mut staged)?;
        staged.iter().next().map_or(Ok(()), |(slot, address)| {
            Err(format!("page {address:#x} is said to lie staged in slot {slot}, which is not live"))
        })
    }

    /// Takes the pages of live slots out of `staged`.
    fn audit_trays(&self, staged: &mut HashSet<(u16, u64)>) -> Result<(), String> {
        for (first, tray) in self.trays.with_first_slots() {
            for bit in bits(tray.live) {
                let (slot, address) = ((first + bit) as u16, tray.addresses[bit as usize]);
                if tray.phase == Phase::Free || !staged.remove(&(slot, address)) {
                    return Err(format!("slot {slot} is live for page {address:#x}, which is not staged there"));
                }
            }
        }
        Ok(())
    }
}
