//! The inactive and the active list of a space, first in first out.
//!
//! Entries are page addresses and are not removed when a page leaves: an entry counts only if the page's word says
//! that it is queued on this list. That makes leaving free, at the price of stale entries that are skipped. How many
//! entries count is kept beside, so whoever overwrites the word of a queued page says so (`leave`).

use std::collections::VecDeque;

use crate::growth::{Growth, during};

/// The two lists of a space. Validity of an entry is decided by the caller's page words.
#[derive(Clone, Default, Debug)]
pub struct Lists {
    queues: [VecDeque<u64>; 2],
    valid: [u64; 2],
}

impl Lists {
    /// A list that has room for one more.
    fn room(&mut self, active: bool) -> &mut VecDeque<u64> {
        let queue = &mut self.queues[usize::from(active)];
        if queue.len() == queue.capacity() {
            during(Growth::Lists, || queue.reserve(1));
        }
        queue
    }

    /// Puts a page at the tail of the inactive list or of the active one.
    pub fn push(&mut self, address: u64, active: bool) {
        self.room(active).push_back(address);
        self.valid[usize::from(active)] += 1;
    }

    /// Puts a page at the head of a list.
    pub fn push_first(&mut self, address: u64, active: bool) {
        self.room(active).push_front(address);
        self.valid[usize::from(active)] += 1;
    }

    /// Takes the entry at the head of a list, which may be stale: if it counts, [`leave`](Self::leave) says so.
    pub fn pop(&mut self, active: bool) -> Option<u64> {
        self.queues[usize::from(active)].pop_front()
    }

    /// Takes the entry at the tail of a list.
    pub fn pop_last(&mut self, active: bool) -> Option<u64> {
        self.queues[usize::from(active)].pop_back()
    }

    /// Takes the entry at `index` of the active list; the one at its head takes its place.
    pub fn pop_at(&mut self, index: usize) -> Option<u64> {
        self.queues[1].swap_remove_front(index)
    }

    /// A page that was on a list is on none any more.
    pub fn leave(&mut self, active: bool) {
        let valid = &mut self.valid[usize::from(active)];
        *valid = valid.saturating_sub(1);
    }

    /// Pages on a list.
    pub fn count(&self, active: bool) -> u64 {
        self.valid[usize::from(active)]
    }

    /// Entries of a list, stale ones included.
    pub fn entries(&self, active: bool) -> usize {
        self.queues[usize::from(active)].len()
    }

    /// Entries of both, stale ones included.
    pub fn len(&self) -> usize {
        self.entries(false) + self.entries(true)
    }

    /// No entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All entries, stale ones included; `true` for those of the active list.
    pub fn iter(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        let of = |active: bool| self.queues[usize::from(active)].iter().map(move |address| (*address, active));
        of(false).chain(of(true))
    }

    /// Drops the entries that `valid` refuses. To be called when stale entries outnumber the others.
    pub fn purge(&mut self, mut valid: impl FnMut(u64, bool) -> bool) {
        for active in [false, true] {
            let queue = &mut self.queues[usize::from(active)];
            queue.retain(|address| valid(*address, active));
            self.valid[usize::from(active)] = queue.len() as u64;
        }
    }
}
