//! Who goes next: an inactive and an active list per space, first in first out.
//!
//! No access bit is to be had in user space, so a page proves itself by being missed: it is taken from the head of
//! the inactive list and *staged* (out of the program, still in RAM). Touched then, it comes back at once and joins
//! the active list; untouched, it goes to the store. A page that refaults within a distance smaller than the
//! resident set would have stayed, had the active list been shorter: it joins the active list too, and the active
//! list's head ages into the inactive one (Weiner 2013; linux `mm/workingset.c`).
//!
//! Entries are page addresses and are not removed when a page leaves: an entry counts only if the page's word says
//! that it is queued on this list. That makes leaving free, at the price of stale entries that are skipped.

use std::collections::VecDeque;

/// The two lists of a space. Validity of an entry is decided by the caller's page words.
#[derive(Clone, Default, Debug)]
pub struct Lists {
    inactive: VecDeque<u64>,
    active: VecDeque<u64>,
}

impl Lists {
    /// Puts a page at the tail of one of the lists.
    pub fn push(&mut self, address: u64, active: bool) {
        if active { self.active.push_back(address) } else { self.inactive.push_back(address) }
    }

    /// Puts a page at the head of the inactive list: it is to be tried again at once.
    pub fn push_first(&mut self, address: u64) {
        self.inactive.push_front(address);
    }

    /// The head of the inactive list.
    pub fn pop_inactive(&mut self) -> Option<u64> {
        self.inactive.pop_front()
    }

    /// The head of the active list.
    pub fn pop_active(&mut self) -> Option<u64> {
        self.active.pop_front()
    }

    /// Whether the inactive list is low: below one third of all, as for anonymous memory in the kernel with
    /// `inactive_ratio` 2.
    pub fn inactive_is_low(&self) -> bool {
        self.inactive.len() * 2 < self.active.len()
    }

    /// Entries, stale ones included.
    pub fn len(&self) -> usize {
        self.inactive.len() + self.active.len()
    }

    /// No entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All entries, stale ones included; `true` for those of the active list.
    pub fn iter(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        let inactive = self.inactive.iter().map(|address| (*address, false));
        inactive.chain(self.active.iter().map(|address| (*address, true)))
    }

    /// Drops the entries that `valid` refuses. To be called when stale entries outnumber the others.
    pub fn purge(&mut self, mut valid: impl FnMut(u64, bool) -> bool) {
        self.inactive.retain(|address| valid(*address, false));
        self.active.retain(|address| valid(*address, true));
    }
}
