//! The engine's two lists with staged pages: segmented FIFO as in VAX/VMS (Turner and Levy, Segmented FIFO page
//! replacement, SIGMETRICS 1981), with the refault distance of `mm/workingset.c`.
//!
//! The lists and the page words are those of `uswap-core`, driven as `evict.rs` and `fault.rs` of the engine drive them: a page
//! goes from the head of the inactive list to the staged ones, a thirty-second of the memory; touched there it becomes
//! active; the oldest staged page is evicted when room is wanted. Left out: trays of 64 pages, watermarks, readahead.

use uswap_core::lists::Lists;
use uswap_core::word::{PageWord, State};

use crate::links::{Links, List};
use crate::pager::{FaultPolicy, Pages};

/// One staged page for so many pages of memory.
const STAGED_SHARE: usize = 32;
/// Active pages that age at a time when the inactive list is low.
const AGED_AT_ONCE: usize = 128;

/// Inactive, active and staged pages.
#[derive(Clone, Debug)]
pub struct TwoList {
    words: Vec<PageWord>,
    lists: Lists,
    links: Links,
    /// In the order in which they were staged.
    staged: List,
    clock: u32,
    activations: u64,
}

impl TwoList {
    /// For a trace of `distinct` pages.
    pub fn new(distinct: usize) -> Self {
        let words = vec![PageWord::UNTOUCHED; distinct];
        let (links, staged) = (Links::new(distinct), List::default());
        Self { words, lists: Lists::default(), links, staged, clock: 0, activations: 0 }
    }

    fn deactivate(&mut self, most: usize) -> bool {
        let mut moved = false;
        for _ in 0..most {
            let Some(page) = self.lists.pop_active() else { break };
            moved = true;
            let word = &mut self.words[page as usize];
            *word = word.set_active(false);
            self.lists.push(page, false);
        }
        moved
    }

    /// Stages the head of the inactive list; `false` when there is no page.
    fn stage_one(&mut self, pages: &mut Pages) -> bool {
        if self.lists.inactive_is_low() {
            // As many as the engine moves would be all that a small memory has.
            self.deactivate(AGED_AT_ONCE.min(pages.mapped() / STAGED_SHARE).max(1));
        }
        let page = match self.lists.pop_inactive() {
            Some(page) => page as u32,
            None if self.deactivate(1) => return self.stage_one(pages),
            None => return false,
        };
        let word = &mut self.words[page as usize];
        *word = word.staged(0);
        pages.stage(page);
        self.staged.push_back(&mut self.links, page);
        true
    }

    /// Evicts the page that is staged for longest.
    fn evict_one(&mut self, pages: &mut Pages) {
        if let Some(page) = self.staged.pop_front(&mut self.links) {
            self.clock = self.clock.wrapping_add(1);
            let word = &mut self.words[page as usize];
            *word = word.stored(0, self.clock);
            pages.evict(page);
        }
    }

    fn map(&mut self, page: u32, active: bool) {
        self.words[page as usize] = self.words[page as usize].resident().set_active(active).set_queued(true);
        self.lists.push(u64::from(page), active);
        self.activations += u64::from(active);
    }
}

impl FaultPolicy for TwoList {
    fn fault(&mut self, page: u32, pages: &mut Pages) {
        if pages.is_full() {
            let target = pages.capacity() / STAGED_SHARE;
            while pages.staged() <= target && self.stage_one(pages) {}
            self.evict_one(pages);
        }
        let word = self.words[page as usize];
        let returns = matches!(word.state(), State::Stored(_));
        let near = returns && word.refault_distance(self.clock) as usize <= pages.mapped();
        self.map(page, near);
    }

    fn soft_fault(&mut self, page: u32, _pages: &mut Pages) {
        self.staged.remove(&mut self.links, page);
        self.map(page, true);
    }

    fn activations(&self) -> u64 {
        self.activations
    }
}
