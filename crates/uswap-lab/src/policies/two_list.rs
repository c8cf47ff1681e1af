//! Two lists with staged pages: segmented FIFO as in VAX/VMS (Turner and Levy, Segmented FIFO page
//! replacement, SIGMETRICS 1981), with the refault distance of `mm/workingset.c`.
//!
//! This was the engine's policy before its working sets (0.1.0), kept for comparison: a page goes
//! from the head of the inactive list to the staged pages, a thirty-second of the memory; if it is
//! accessed there, it becomes active; the oldest staged page is evicted when room is needed; a page
//! that returns within a distance no larger than the resident set becomes active. The page words
//! are those of `uswap-core`. Left out: batches of 64 pages, watermarks, readahead.

use uswap_core::page::word::{PageState, PageWord};

use crate::links::{LinkedPages, PageLinks};
use crate::pager::{FaultPolicy, SimulatedPages};

/// One page in this many pages of memory is staged.
const STAGED_SHARE: usize = 32;
/// Number of active pages that are aged at a time when the inactive list is low.
const AGED_AT_ONCE: usize = 128;

/// Inactive, active and staged pages.
#[derive(Clone, Debug)]
pub struct TwoList {
    words: Vec<PageWord>,
    links: PageLinks,
    inactive: LinkedPages,
    active: LinkedPages,
    /// Staged pages in the order in which they were staged.
    staged: LinkedPages,
    clock: u32,
    activations: u64,
}

impl TwoList {
    /// The policy for a trace of `distinct` pages.
    pub fn new(distinct: usize) -> Self {
        let words = vec![PageWord::UNTOUCHED; distinct];
        let (links, list) = (PageLinks::new(distinct), LinkedPages::default());
        Self { words, links, inactive: list, active: list, staged: list, clock: 0, activations: 0 }
    }

    fn deactivate(&mut self, most: usize) {
        for _ in 0..most {
            let Some(page) = self.active.pop_front(&mut self.links) else { break };
            self.words[page as usize] = self.words[page as usize].set_active(false);
            self.inactive.push_back(&mut self.links, page);
        }
    }

    /// Stages the head of the inactive list; `false` when there is no page.
    fn stage_one(&mut self, pages: &mut SimulatedPages) -> bool {
        // The inactive list has less than a third of all pages, as with an `inactive_ratio` of 2.
        if self.inactive.len() * 2 < self.active.len() || self.inactive.is_empty() {
            // In a small memory, as many pages as the engine moves would be all pages.
            self.deactivate(AGED_AT_ONCE.min(pages.mapped() / STAGED_SHARE).max(1));
        }
        let Some(page) = self.inactive.pop_front(&mut self.links) else { return false };
        self.words[page as usize] = self.words[page as usize].staged(0);
        self.staged.push_back(&mut self.links, page);
        pages.stage(page);
        true
    }

    /// Evicts the page that has been staged for the longest time.
    fn evict_one(&mut self, pages: &mut SimulatedPages) {
        if let Some(page) = self.staged.pop_front(&mut self.links) {
            self.clock = self.clock.wrapping_add(1);
            let word = &mut self.words[page as usize];
            *word = word.stored(0, self.clock);
            pages.evict(page);
        }
    }

    fn map(&mut self, page: u32, active: bool) {
        self.words[page as usize] = self.words[page as usize].resident().set_active(active).set_queued(true);
        let list = if active { &mut self.active } else { &mut self.inactive };
        list.push_back(&mut self.links, page);
        self.activations += u64::from(active);
    }
}

impl FaultPolicy for TwoList {
    fn fault(&mut self, page: u32, pages: &mut SimulatedPages) {
        if pages.is_full() {
            let target = pages.capacity() / STAGED_SHARE;
            while pages.staged() <= target && self.stage_one(pages) {}
            self.evict_one(pages);
        }
        let word = self.words[page as usize];
        let returns = matches!(word.state(), PageState::Stored(_));
        let near = returns && word.refault_distance(self.clock) as usize <= pages.mapped();
        self.map(page, near);
    }

    fn soft_fault(&mut self, page: u32, _pages: &mut SimulatedPages) {
        self.staged.remove(&mut self.links, page);
        self.map(page, true);
    }

    fn activations(&self) -> u64 {
        self.activations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::SimulatedPager;
    use crate::policy::{AccessOutcome, Policy};

    #[test]
    fn staged_pages_come_back_and_early_refaults_become_active() {
        let mut memory = SimulatedPager::new(TwoList::new(100), 100, 64);
        (0..64).for_each(|page| assert_eq!(memory.access(page), AccessOutcome::Miss));
        assert_eq!(memory.access(64), AccessOutcome::Miss, "0, 1 and 2 are staged, 0 is evicted");
        assert_eq!(
            [1, 1, 3].map(|page| memory.access(page)),
            [AccessOutcome::Soft, AccessOutcome::Hit, AccessOutcome::Hit]
        );
        assert_eq!((memory.activations(), memory.holds(0), memory.held()), (1, false, 64));
        assert_eq!(memory.access(0), AccessOutcome::Miss, "3 and 4 are staged, 2 is evicted");
        assert_eq!((memory.activations(), memory.holds(2)), (2, false));
        assert_eq!(
            [3, 4, 5].map(|page| memory.access(page)),
            [AccessOutcome::Soft, AccessOutcome::Soft, AccessOutcome::Hit]
        );
    }
}
