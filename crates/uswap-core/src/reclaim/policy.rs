//! What the pager asks of an eviction policy. Whoever implements [`ReclaimPolicy`] runs in the
//! engine and in the lab.
//!
//! A page is *resident* (on a list, or chosen and on the way out), *staged* (out of the program,
//! still in RAM) or *evicted*. A policy is told of what a pager in user space can see, and of no
//! touch of a resident page:
//!
//! ```text
//!             join                next_victim              evict
//! first touch ────> on a list ─────────────────> staged ─────────> evicted
//!                    ^  ^  ^         │             │                  │
//!                    │  │  └─rejoin──┘ refused     │ soft_fault, join │ refault, join
//!                    │  └──────────────────────────┘                  │
//!                    └────────────────────────────────────────────────┘
//! ```
//!
//! A page that is unmapped is told of by `forget`; one that moves by `forget` and `join` under its
//! new address; a fork child goes on with a clone. A policy has its pages in [`PageLists`], so that
//! what holds of every list holds for every policy (`policy_tests.rs`): no page is lost, none is
//! chosen twice.

use crate::page::table::PageTable;
use crate::page::word::PageWord;
use crate::reclaim::age_test::Cost;
use crate::reclaim::page_lists::PageLists;

/// Which pages of one space stay. Addresses are of pages, in bytes.
pub trait ReclaimPolicy: Clone + std::fmt::Debug {
    /// Where its pages are.
    fn pages(&self) -> &PageLists;

    /// Where its pages are.
    fn pages_mut(&mut self) -> &mut PageLists;

    /// The next page to be staged: it is on no list any more.
    fn next_victim(&mut self, table: &mut PageTable) -> Option<u64>;

    /// Judges the return of an evicted page by its word.
    fn refault(&mut self, word: PageWord) -> Refault;

    /// A staged page goes: counts the eviction, and returns the time for its shadow.
    fn evict(&mut self, word: PageWord) -> u32;

    /// Evictions so far, modulo what a shadow holds.
    fn evictions(&self) -> u32;

    /// A resident page comes: puts it on a list, and writes its word. The word says whether the
    /// page is active.
    fn join(&mut self, table: &mut PageTable, page: u64, word: PageWord) {
        self.pages_mut().join(table, page, word);
    }

    /// Puts a page back that was chosen and could not be taken; it is the next victim, unless
    /// others come first.
    fn rejoin(&mut self, table: &mut PageTable, page: u64, word: PageWord) {
        self.pages_mut().rejoin(table, page, word);
    }

    /// The word of a page is about to be overwritten.
    fn forget(&mut self, word: PageWord) {
        self.pages_mut().forget(word);
    }

    /// Whether a page that comes displaces nobody, and so becomes active. `ample`: there is more
    /// memory than is used.
    fn has_room(&mut self, _ample: bool) -> bool {
        false
    }

    /// Pages that shall lie staged (or be under test otherwise) beside so many resident ones.
    /// `None`: the policy asks nothing of a page's age, and what is staged is stored at once.
    fn staging_target(&self, _resident: u64) -> Option<u64> {
        None
    }

    /// So many pages lie staged now.
    fn note_staged(&mut self, _pages: u64) {}

    /// A staged page was touched.
    fn soft_fault(&mut self, _word: PageWord) {}

    /// What soft faults cost beside refaults, as it was measured lately.
    fn soft_faults_cost(&mut self, _cost: Cost) {}

    /// Whether the touch of a page under test is noted without a fault. No kernel of today does
    /// that; the lab has it.
    fn notes_touches(&self) -> bool {
        false
    }

    /// Drops stale entries if they are many, and gives back memory that is not needed any more. It
    /// is called now and then.
    fn tidy(&mut self, table: &mut PageTable) {
        self.pages_mut().tidy(table);
    }
}

/// What a refault means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refault {
    /// The page becomes active.
    pub activate: bool,
    /// It had been active when it was evicted.
    pub restore: bool,
    /// With so many pages more it would have stayed.
    pub distance: u64,
}

impl Refault {
    /// That of a page by its word, after so many evictions, which does not make it active.
    pub fn measured(word: PageWord, evictions: u32) -> Self {
        Self { activate: false, restore: word.workingset(), distance: u64::from(word.refault_distance(evictions)) }
    }
}
