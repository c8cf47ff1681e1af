//! Charging and asking for room: every page counts for the run and for the groups of the process
//! that holds it, and both must have room.
//!
//! A space charges the account of its process. A fork child whose process is not known yet charges
//! the account of its parent, which is in the same group; the next measurement of both corrects the
//! two accounts. The space also counts its pages that are being evicted, so that they can move to
//! another account with it.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_abi::layout::TRAY_PAGES;
use uswap_core::util::growth::{Growth, during};

use crate::accounting::budget::{AMPLE, URGENT};
use crate::accounting::groups::Short;
use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::space::Space;
use crate::space::id::SpaceId;

/// Interval at which a full store is asked again to take a tray of a group.
const WHEN_FULL: Duration = Duration::from_millis(10);

impl<M: AddressSpace> Pager<M> {
    /// Finds the account of the space's process, once there are groups.
    pub fn bind_account(&self, space: &mut Space<M>) {
        let groups = &self.shared.groups;
        let Some(pid) = space.memory.process().filter(|_| groups.in_use()) else { return };
        let is_right = space.account.as_ref().is_some_and(|known| known.pid == pid && !known.has_ended());
        if is_right {
            return;
        }
        if let Some(account) = groups.known(pid) {
            groups.under_way(&account, space.counts.under_way);
            if let Some(before) = space.account.replace(account) {
                groups.under_way(&before, -space.counts.under_way);
            }
        }
    }

    /// Pages were installed in the space (or, negative, dropped).
    pub fn charge(&self, space: &Space<M>, pages: i64) {
        space.moves.count();
        self.shared.budget.charge(pages);
        if let Some(account) = &space.account {
            self.shared.groups.charge(account, pages);
        }
    }

    /// Counts pages of the space that were requested from a device (or, negative, have arrived).
    pub fn arriving(&self, space: &Space<M>, pages: i64) {
        self.shared.budget.arriving(pages);
        if let Some(account) = &space.account {
            self.shared.groups.charge(account, pages);
        }
    }

    /// Counts pages of the space that began (or, negative, ended) their eviction.
    pub fn under_way(&self, space: &mut Space<M>, pages: i64) {
        self.shared.budget.pipeline(pages);
        space.counts.under_way += pages;
        if let Some(account) = &space.account {
            self.shared.groups.under_way(account, pages);
        }
    }

    /// Whether `pages` more pages may be installed in the space now.
    pub fn has_room(&self, space: &Space<M>, pages: i64) -> bool {
        self.shared.budget.has_room(pages) && self.groups_have_room(space, pages)
    }

    fn groups_have_room(&self, space: &Space<M>, pages: i64) -> bool {
        space.account.as_ref().is_none_or(|account| self.shared.groups.has_room(account, pages))
    }

    /// Whether `pages` more pages may be installed in the space now without any page being evicted
    /// for them.
    pub fn has_free_room(&self, space: &Space<M>, pages: i64) -> bool {
        let groups = &self.shared.groups;
        let fits = space.account.as_ref().is_none_or(|account| groups.has_free_room(account, pages));
        fits && self.shared.budget.free() >= pages
    }

    /// Whether free memory is plentiful, so that pages installed in the space now displace no
    /// others.
    pub fn is_ample(&self, space: &Space<M>) -> bool {
        self.shared.budget.is_ample() && self.groups_have_room(space, AMPLE)
    }

    /// Whether memory for the space is urgently short.
    pub fn is_urgent(&self, space: &Space<M>) -> bool {
        !self.has_room(space, URGENT)
    }

    /// Whether the space has no room and nothing is under way that would make some.
    pub fn is_helpless(&self, space: &Space<M>) -> bool {
        let budget = &self.shared.budget;
        let run = budget.has_room(1) || budget.outgrown.load(Relaxed) || self.is_run_helpless();
        run && (self.groups_have_room(space, 1) || self.are_groups_helpless(space))
    }

    /// Whether memory is short and no pager has anything under way that would make room. A full
    /// store does not count: in that case the process tree is ended before it exceeds its budget.
    pub fn is_run_helpless(&self) -> bool {
        let budget = &self.shared.budget;
        let idle = self.shared.gauges.idle.iter().all(|idle| idle.load(Relaxed));
        budget.under_way() <= 0 && idle && !budget.exhausted.load(Relaxed)
    }

    /// Whether a group has no room and nothing is under way that would make some. A full store has
    /// this effect for a group: the group exceeds its limit, while the limit of the run is still
    /// kept.
    fn are_groups_helpless(&self, space: &Space<M>) -> bool {
        let groups = &self.shared.groups;
        let exhausted = self.shared.budget.exhausted.load(Relaxed);
        space
            .account
            .as_ref()
            .is_some_and(|account| exhausted || groups.is_helpless(account, self.shared.gauges.idle.len()))
    }

    /// Reclaims for the groups that exceed their own limits, the deepest first. Returns how many
    /// pages each space was asked for.
    pub fn balance_groups(&mut self) -> HashMap<SpaceId, u64> {
        let mut asked = HashMap::new();
        if !self.shared.groups.in_use() {
            return asked;
        }
        let short = during(Growth::Groups, || self.shared.groups.short());
        if short.is_empty() && self.balance.idle_groups.is_empty() {
            return asked;
        }
        // With a full store a group may be short for a long time while the run has room.
        let exhausted = self.shared.budget.exhausted.load(Relaxed);
        if exhausted && self.balance.last_of_groups.elapsed() < WHEN_FULL {
            return asked;
        }
        self.balance.last_of_groups = Instant::now();
        self.for_each_id(|owner, id| owner.with_space(id, |owner, space| owner.bind_account(space)));
        let mut idle = std::mem::take(&mut self.balance.idle_groups);
        idle.clear();
        for short in &short {
            if self.balance_group(short, &mut asked) {
                during(Growth::Groups, || idle.push(short.group));
            }
        }
        self.balance.idle_groups = idle;
        self.shared.groups.set_idle(self.number, &self.balance.idle_groups);
        asked
    }

    /// Reclaims for one group. Returns whether this pager has nothing under way that would make
    /// room.
    fn balance_group(&mut self, short: &Short, asked: &mut HashMap<SpaceId, u64>) -> bool {
        let members = during(Growth::Groups, || self.members(short.group));
        let before: u64 = members.iter().filter_map(|id| asked.get(id)).sum();
        let most = if self.shared.budget.exhausted.load(Relaxed) { u64::from(TRAY_PAGES) } else { u64::MAX };
        let wanted = (short.wanted as u64).saturating_sub(before).min(most);
        let note = |id, pages| during(Growth::Groups, || *asked.entry(id).or_default() += pages);
        self.reclaim_from(|space| members.contains(&space.id), wanted, note);
        let filling = |owner: &Self| members.iter().any(|id| owner.spaces[id].is_filling());
        if !filling(self) && members.iter().any(|id| self.is_urgent(&self.spaces[id])) {
            self.press(|space| members.contains(&space.id), wanted as usize);
        }
        !filling(self) && !self.has_cow_shared(|space| members.contains(&space.id))
    }

    fn members(&self, group: usize) -> Vec<SpaceId> {
        let is_member = |space: &Space<M>| {
            space.account.as_ref().is_some_and(|account| self.shared.groups.is_within(account, group))
        };
        self.spaces.values().filter(|space| is_member(space)).map(|space| space.id).collect()
    }
}
