//! The engine's policies: the code of `uswap-core` itself, driven by the same trait and in the same
//! way as in the engine (`evict.rs`, `install.rs`). Left out: batches of 64 pages and the minimum
//! number of staged pages that follows from them, watermarks, readahead. With [`AccessBits`]
//! instead of soft faults, this is what the engine's own policy would be on a kernel that records
//! accesses.

use uswap_core::PAGE;
use uswap_core::page::table::PageTable;
use uswap_core::page::word::PageState;
use uswap_core::reclaim::age_test::AccessBits;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::reclaim::working_set::WorkingSet;

use crate::links::{LinkedPages, PageLinks};
use crate::pager::{FaultPolicy, SimulatedPages};

/// A space and its staged pages.
#[derive(Clone, Debug)]
pub struct Uswap<P> {
    table: PageTable,
    policy: P,
    links: PageLinks,
    /// Staged pages in the order in which they were staged.
    staged: LinkedPages,
    activations: u64,
}

/// The variant with access bits: pages under test stay mapped.
pub type UswapBits = Uswap<WorkingSet<AccessBits>>;

impl<P: ReclaimPolicy> Uswap<P> {
    /// The simulator of this policy, for a trace of `distinct` pages.
    pub fn of(policy: P, distinct: usize) -> Self {
        Self {
            table: PageTable::default(),
            policy,
            links: PageLinks::new(distinct),
            staged: LinkedPages::default(),
            activations: 0,
        }
    }

    /// Stages the next page that the policy chooses; `false` when there is none.
    fn stage_one(&mut self, pages: &mut SimulatedPages) -> bool {
        let Some(address) = self.policy.next_victim(&mut self.table) else { return false };
        let page = (address / PAGE) as u32;
        self.table.set(address, self.table.get(address).staged(0));
        self.staged.push_back(&mut self.links, page);
        pages.stage(page);
        true
    }

    /// Evicts the page that has been staged for the longest time.
    fn evict_one(&mut self, pages: &mut SimulatedPages) {
        let Some(page) = self.staged.pop_front(&mut self.links) else { return };
        let address = u64::from(page) * PAGE;
        let word = self.table.get(address);
        let clock = self.policy.evict(word);
        self.policy.note_staged(pages.staged() as u64);
        self.table.set(address, word.stored(0, clock));
        pages.evict(page);
    }

    fn map(&mut self, page: u32, active: bool) {
        let address = u64::from(page) * PAGE;
        let word = self.table.get(address).resident().set_active(active);
        self.policy.join(&mut self.table, address, word);
        self.activations += u64::from(active);
    }
}

impl UswapBits {
    /// The simulator of the variant with access bits, for a trace of `distinct` pages.
    pub fn new(distinct: usize) -> Self {
        Self::of(WorkingSet::default(), distinct)
    }
}

impl<P: ReclaimPolicy> FaultPolicy for Uswap<P> {
    fn fault(&mut self, page: u32, pages: &mut SimulatedPages) {
        if pages.is_full() {
            let target = self.policy.staging_target(pages.mapped() as u64).unwrap_or(0) as usize;
            while pages.staged() <= target && self.stage_one(pages) {}
            self.evict_one(pages);
        }
        let room = self.policy.has_room(false);
        let word = self.table.get(u64::from(page) * PAGE);
        let returns = matches!(word.state(), PageState::Stored(_));
        let activate = returns && self.policy.refault(word).activate;
        self.map(page, activate || room);
    }

    fn soft_fault(&mut self, page: u32, _pages: &mut SimulatedPages) {
        self.staged.remove(&mut self.links, page);
        self.policy.soft_fault(self.table.get(u64::from(page) * PAGE));
        self.map(page, true);
    }

    fn notes_touches(&self) -> bool {
        self.policy.notes_touches()
    }

    fn activations(&self) -> u64 {
        self.activations
    }
}
