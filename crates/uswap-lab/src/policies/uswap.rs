//! The engine's own policy: `working_set.rs` of `uswap-core`, the code that runs, driven as the engine drives it
//! (`evict.rs`, `install.rs`). Left out: trays of 64 pages and the floor under the staged pages that follows from them, watermarks,
//! readahead. With [`AccessBits`] instead of soft faults it is what the same policy would be on a kernel that notes accesses.

use uswap_core::PAGE_SIZE;
use uswap_core::page::table::PageTable;
use uswap_core::page::word::State;
use uswap_core::reclaim::age_test::{AccessBits, AgeTest};
use uswap_core::reclaim::staging::Staging;
use uswap_core::reclaim::working_set::WorkingSet;

use crate::links::{Links, List};
use crate::pager::{FaultPolicy, Pages};

const PAGE: u64 = PAGE_SIZE as u64;

/// A space and its staged pages.
#[derive(Clone, Debug)]
pub struct Uswap<A: AgeTest = Staging> {
    table: PageTable,
    working_set: WorkingSet<A>,
    links: Links,
    /// In the order in which they were staged.
    staged: List,
    activations: u64,
}

/// With access bits: pages under test stay mapped.
pub type UswapBits = Uswap<AccessBits>;

impl<A: AgeTest> Uswap<A> {
    /// For a trace of `distinct` pages.
    pub fn new(distinct: usize) -> Self {
        Self {
            table: PageTable::default(),
            working_set: WorkingSet::default(),
            links: Links::new(distinct),
            staged: List::default(),
            activations: 0,
        }
    }

    /// Stages the next victim; `false` when there is none.
    fn stage_one(&mut self, pages: &mut Pages) -> bool {
        let Some(address) = self.working_set.next_victim(&mut self.table) else { return false };
        let page = (address / PAGE) as u32;
        self.table.set(address, self.table.get(address).staged(0));
        self.staged.push_back(&mut self.links, page);
        pages.stage(page);
        true
    }

    /// Evicts the page that is staged for longest.
    fn evict_one(&mut self, pages: &mut Pages) {
        let Some(page) = self.staged.pop_front(&mut self.links) else { return };
        let address = u64::from(page) * PAGE;
        let word = self.table.get(address);
        let clock = self.working_set.evict(word);
        self.working_set.note_staged(pages.staged() as u64);
        self.table.set(address, word.stored(0, clock));
        pages.evict(page);
    }

    fn map(&mut self, page: u32, active: bool) {
        let address = u64::from(page) * PAGE;
        let word = self.table.get(address).resident().set_active(active);
        self.working_set.join(&mut self.table, address, word);
        self.activations += u64::from(active);
    }
}

impl<A: AgeTest> FaultPolicy for Uswap<A> {
    fn fault(&mut self, page: u32, pages: &mut Pages) {
        if pages.is_full() {
            let target = self.working_set.staging_target(pages.mapped() as u64) as usize;
            while pages.staged() <= target && self.stage_one(pages) {}
            self.evict_one(pages);
        }
        let room = self.working_set.has_room(false);
        let word = self.table.get(u64::from(page) * PAGE);
        let returns = matches!(word.state(), State::Stored(_));
        let activate = returns && self.working_set.refault(word).activate;
        self.map(page, activate || room);
    }

    fn soft_fault(&mut self, page: u32, _pages: &mut Pages) {
        self.staged.remove(&mut self.links, page);
        self.working_set.soft_fault(self.table.get(u64::from(page) * PAGE));
        self.map(page, true);
    }

    fn notes_touches(&self) -> bool {
        A::IS_SILENT
    }

    fn activations(&self) -> u64 {
        self.activations
    }
}
