//! The policy of `uswap mount`: the code of `uswap-core` itself, driven as the file cache drives
//! it, with a history as long as that of a cache without a store.

use std::collections::VecDeque;

use uswap_core::PAGE;
use uswap_core::page::table::PageTable;
use uswap_core::page::word::{PageState, PageWord};
use uswap_core::reclaim::recency::Recency;

use crate::policy::{AccessOutcome, Policy};

/// A cache of files that are one file.
#[derive(Clone, Debug)]
pub struct UswapMount {
    table: PageTable,
    policy: Recency,
    history: VecDeque<u64>,
    held: usize,
    capacity: usize,
    activations: u64,
}

impl UswapMount {
    /// The policy with a memory of `capacity` pages.
    pub fn new(_distinct: usize, capacity: usize) -> Self {
        let (table, policy, history) = (PageTable::default(), Recency::default(), VecDeque::new());
        Self { table, policy, history, held: 0, capacity, activations: 0 }
    }

    fn evict_one(&mut self) {
        let Some(key) = self.policy.next_victim(&mut self.table, false) else { return };
        let word = self.table.get(key);
        let clock = self.policy.evict();
        self.table.set(key, word.stored(0, clock));
        self.held -= 1;
        self.history.push_back(key);
        if self.history.len() > self.capacity
            && let Some(oldest) = self.history.pop_front()
        {
            let (word, now) = (self.table.get(oldest), self.policy.pages().evictions() as u32);
            if matches!(word.state(), PageState::Stored(_)) && word.refault_distance(now) as usize >= self.capacity {
                self.table.set(oldest, PageWord::UNTOUCHED);
            }
        }
    }
}

impl Policy for UswapMount {
    fn access(&mut self, page: u32) -> AccessOutcome {
        let key = u64::from(page) * PAGE;
        let word = self.table.get(key);
        if word.state() == PageState::Resident {
            self.policy.touch(&mut self.table, key, word);
            return AccessOutcome::Hit;
        }
        let room = self.held < self.capacity && self.policy.pages().evictions() == 0;
        if self.held == self.capacity {
            self.evict_one();
        }
        let shadow = matches!(word.state(), PageState::Stored(_)).then(|| self.table.get(key));
        let shadow = shadow.filter(|shadow| matches!(shadow.state(), PageState::Stored(_)));
        let active = self.policy.join(&mut self.table, key, word.in_frame(0, shadow.is_some()), shadow, room);
        self.activations += u64::from(active);
        self.held += 1;
        AccessOutcome::Miss
    }

    fn held(&self) -> usize {
        self.held
    }

    fn holds(&self, page: u32) -> bool {
        self.table.get(u64::from(page) * PAGE).state() == PageState::Resident
    }

    fn activations(&self) -> u64 {
        self.activations
    }
}
