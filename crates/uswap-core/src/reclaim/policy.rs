//! The interface between the pager and an eviction policy. A type that implements [`ReclaimPolicy`]
//! runs in the engine and in the lab.
//!
//! A page is *resident* (on a list, or chosen and on the way out), *staged* (out of the program,
//! still in RAM) or *evicted*. A policy learns of the events that a pager in user space can see,
//! and so of no touch of a resident page:
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
//! The pager calls `forget` for a page that is unmapped, and `forget`, then `join` with the new
//! address, for a page that moves; a fork child goes on with a clone of the policy. A policy keeps
//! its pages in [`PageLists`], so that the invariants of the lists hold for every policy
//! (`policy_tests.rs`): no page is lost, none is chosen twice.

use crate::page::table::PageTable;
use crate::page::word::PageWord;
use crate::reclaim::age_test::Cost;
use crate::reclaim::page_lists::PageLists;

/// Decides which pages of one space stay in memory. Addresses are those of pages, in bytes.
pub trait ReclaimPolicy: Clone + std::fmt::Debug {
    /// Where its pages are.
    fn pages(&self) -> &PageLists;

    /// Where its pages are.
    fn pages_mut(&mut self) -> &mut PageLists;

    /// Takes the next page to be staged off its list, and returns it.
    fn next_victim(&mut self, table: &mut PageTable) -> Option<u64>;

    /// Judges the return of an evicted page by its word.
    fn refault(&mut self, word: PageWord) -> Refault {
        Refault::measured(word, self.evictions())
    }

    /// A staged page is evicted: counts the eviction, and returns the time for the page's shadow.
    fn evict(&mut self, _word: PageWord) -> u32 {
        self.pages_mut().count_eviction() as u32
    }

    /// Evictions so far, modulo the range of a shadow.
    fn evictions(&self) -> u32 {
        self.pages().evictions() as u32
    }

    /// A page becomes resident: puts it on a list, and writes its word. The word says whether the
    /// page is active.
    fn join(&mut self, table: &mut PageTable, page: u64, word: PageWord) {
        self.pages_mut().join(table, page, word);
    }

    /// Puts a page back that was chosen and could not be staged; it is the next victim, unless
    /// others come first.
    fn rejoin(&mut self, table: &mut PageTable, page: u64, word: PageWord) {
        self.pages_mut().rejoin(table, page, word);
    }

    /// Must be called before the word of a page is overwritten.
    fn forget(&mut self, word: PageWord) {
        self.pages_mut().forget(word);
    }

    /// Whether a page that becomes resident displaces no other, and so becomes active. `ample`:
    /// there is more memory than is used.
    fn has_room(&mut self, _ample: bool) -> bool {
        false
    }

    /// Number of pages that should be staged (or be under test in another way) while `resident`
    /// pages are resident. `None`: the policy does not test the age of pages, and staged pages are
    /// stored at once.
    fn staging_target(&self, _resident: u64) -> Option<u64> {
        None
    }

    /// Reports how many pages are staged now.
    fn note_staged(&mut self, _pages: u64) {}

    /// A staged page was touched.
    fn soft_fault(&mut self, _word: PageWord) {}

    /// Reports the cost of soft faults compared with refaults, as recently measured.
    fn soft_faults_cost(&mut self, _cost: Cost) {}

    /// Whether the touch of a page under test is noted without a fault. No present kernel does
    /// that; the lab simulates it.
    fn notes_touches(&self) -> bool {
        false
    }

    /// Drops stale entries if they are many, and gives back memory that is not needed any more. It
    /// is called now and then.
    fn tidy(&mut self, table: &mut PageTable) {
        self.pages_mut().tidy(table);
    }
}

/// The policy's verdict on a refault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refault {
    /// The page becomes active.
    pub activate: bool,
    /// It had been active when it was evicted.
    pub restore: bool,
    /// With this many pages more in memory it would have stayed.
    pub distance: u64,
}

impl Refault {
    /// A refault with the distance by the page's word, after `evictions` evictions, which does not
    /// make the page active.
    pub fn measured(word: PageWord, evictions: u32) -> Self {
        Self { activate: false, restore: word.workingset(), distance: u64::from(word.refault_distance(evictions)) }
    }
}
