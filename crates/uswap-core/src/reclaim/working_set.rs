//! The engine's eviction policy: working set detection for memory without access bits.
//!
//! User space has no access bits: the use of a mapped page cannot be seen. A pager sees only a
//! page's first touch, its *soft fault* (a touch while it was staged: out of the program, still in
//! RAM) and its *refault* (a touch after it was evicted). The pages in memory are in one of three
//! places:
//!
//! ```text
//! first touch ──> inactive ──> staged ──> evicted
//!                    a tenth     |   ^        |
//!                                v   |        |  refault, soon enough: a challenge
//!                              active <───────┘  (otherwise: inactive)
//! ```
//!
//! - **Active**: the pages that are kept. The list fills at first with all pages that come while
//!   there is room, in the order in which they come: of a program that sweeps over more than fits,
//!   a part stays. Active pages go only as far as others take their place: from the head of the
//!   list if the thrash guard is open, else from random places. They pass through staging, and a
//!   page that is touched there comes back to the tail of the list.
//! - **Inactive**: a tenth of what is resident (a quarter while the guard is open), which all pages
//!   pass that have not been used again yet. A stream that is read once displaces no other pages.
//! - **Staged** (the engine's staging slots): the test of the pages of both lists. A soft fault is
//!   a reference and makes a page active at once. The number of staged pages follows from the cost
//!   and the savings of staging (`staging.rs`).
//!
//! An evicted page leaves a *shadow*: when it went, by the count of evictions of its space, and
//! whether it had been active (`workingset`). On its return the difference to the present count is
//! the *refault distance*: the number of pages more that memory would have had to hold for the page
//! to stay. If the active list is longer than that, the page challenges it; the thrash guard
//! (`thrash_guard.rs`) decides whether the page is let in. Sources: Weiner's thrash detection
//! (2013; linux `mm/workingset.c`), 2Q and S3-FIFO for the small first list, segmented FIFO with a
//! resident but unmapped list (Turner and Levy 1981; Babaoglu and Joy 1981).
//!
//! The shadow is part of the page word: when a page is unmapped its shadow goes too, so that it
//! takes no memory and misleads no decision.

use crate::page::table::{PageIndex, PageTable};
use crate::page::word::PageWord;
use crate::reclaim::age_test::{AgeTest, Cost};
use crate::reclaim::page_lists::PageLists;
use crate::reclaim::policy::{ReclaimPolicy, Refault};
use crate::reclaim::staging::Staging;
use crate::reclaim::thrash_guard::{GuardSample, Passing, ThrashGuard};

/// One page in this number is inactive.
const INACTIVE_SHARE: u64 = 10;
/// The same while the thrash guard is open: then active pages are not in use, and more new pages
/// should be tried.
const INACTIVE_SHARE_OPEN: u64 = 4;
/// The most neighbours that go together when the active list must shrink.
const MAX_SHRINK: u64 = 64;

/// Decides which pages of a space stay in memory. Addresses are those of pages, in bytes. The test
/// of age is [`Staging`] unless another is named.
#[derive(Clone, Debug, Default)]
pub struct WorkingSet<A: AgeTest = Staging> {
    pages: PageLists,
    challenge: ThrashGuard,
    ageing: A,
    /// Pages that are staged, by the last report.
    staged: u64,
    /// Pages joined the active list because there was room; the inactive list is to get its share
    /// from them.
    filled: bool,
    random: u64,
    /// The block of the active list from which pages are taken at random.
    block: Block,
    /// Pages that became active while the guard was closed, and for which none was displaced yet.
    owed: u64,
}

/// Neighbours on the active list that are being taken.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    place: u64,
    left: u64,
    /// The block makes room for pages that became active; it is not taken because memory shrinks.
    owed: bool,
}

impl<A: AgeTest> ReclaimPolicy for WorkingSet<A> {
    fn pages(&self) -> &PageLists {
        &self.pages
    }

    fn pages_mut(&mut self) -> &mut PageLists {
        &mut self.pages
    }

    /// There is room while no page was evicted yet, or while memory is `ample`.
    fn has_room(&mut self, ample: bool) -> bool {
        let room = ample || self.pages.evictions() == 0;
        self.filled |= room;
        room
    }

    fn refault(&mut self, word: PageWord) -> Refault {
        self.ageing.refaulted();
        let (clock, seen) = (self.pages.evictions(), Refault::measured(word, self.evictions()));
        let distance = seen.distance;
        if seen.restore {
            self.challenge.displaced_page_returned(clock, distance);
        }
        let near = distance <= self.pages.count(true);
        let passing = Passing { inactive: self.pages.count(false), staged: self.staged };
        let admitted = near && self.challenge.challenge(clock, distance, passing, self.sample());
        self.owed += u64::from(admitted && !self.challenge.is_open());
        // If the inactive list has more than its share, the active one need not give a page.
        let spare = near && !self.challenge.is_open() && self.pages.count(false) > self.inactive_target() * 3 / 2;
        Refault { activate: admitted || spare, ..seen }
    }

    fn evict(&mut self, word: PageWord) -> u32 {
        let clock = self.pages.count_eviction();
        self.ageing.evicted(self.pages.count(false) + self.pages.count(true), !self.challenge.is_ajar());
        if word.active() {
            let sample = self.sample();
            self.challenge.displaced(clock, sample);
        }
        clock as u32
    }

    fn next_victim(&mut self, table: &mut PageTable) -> Option<u64> {
        self.fill_inactive(table);
        loop {
            let (entry, active) = self.pop_entry()?;
            // Only pages that challengers displaced are a sample of the active list: when memory
            // shrinks, neighbours go together, and may be of one kind.
            let makes_room = active && !self.challenge.is_open() && !self.block.owed;
            if let Some(page) = self.pages.settle(table, entry, active, active && !makes_room) {
                return Some(page);
            }
        }
    }

    fn staging_target(&self, resident: u64) -> Option<u64> {
        Some(self.ageing.target(resident))
    }

    fn note_staged(&mut self, pages: u64) {
        self.staged = pages;
    }

    /// Counts a reference. A displaced page has come back before it was evicted.
    fn soft_fault(&mut self, word: PageWord) {
        self.ageing.touched();
        if word.active() {
            let sample = self.sample();
            self.challenge.displaced_page_touched(self.pages.evictions(), sample);
        }
    }

    fn soft_faults_cost(&mut self, cost: Cost) {
        self.ageing.touches_cost(cost);
    }

    fn notes_touches(&self) -> bool {
        A::IS_SILENT
    }
}

impl<A: AgeTest> WorkingSet<A> {
    /// Takes an entry of the list that must give a page; the entry may be stale. Also returns
    /// whether that is the active list.
    fn pop_entry(&mut self) -> Option<(PageIndex, bool)> {
        let active = self.active_gives();
        let entry = if active && !self.challenge.is_open() { self.pop_random() } else { self.pages.pop(active) };
        entry.map(|entry| (entry, active)).or_else(|| Some((self.pages.pop(!active)?, !active)))
    }

    /// Whether the next victim is an active page: while the guard is closed, one for each
    /// challenger that was let in, and more if the inactive list has much less than its share.
    fn active_gives(&self) -> bool {
        let target = self.inactive_target();
        let least = if self.challenge.is_open() { target } else { target / 2 };
        let gives = self.pages.count(false) < least || (!self.challenge.is_open() && self.owed > 0);
        gives && self.pages.count(true) > 0
    }

    fn inactive_target(&self) -> u64 {
        let share = if self.challenge.is_open() { INACTIVE_SHARE_OPEN } else { INACTIVE_SHARE };
        ((self.pages.count(false) + self.pages.count(true)) / share).max(1)
    }

    /// The next entry of a block of neighbours that begins at a random place of the active list.
    fn pop_random(&mut self) -> Option<PageIndex> {
        let entries = self.pages.entries(true) as u64;
        let owed = self.owed > 0;
        if self.block.left == 0 || self.block.place >= entries || (owed && !self.block.owed) {
            // A linear congruential step (Knuth's constants): any sequence will do that does not
            // follow the program's.
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Pages that challengers displace are a sample of the list. Otherwise memory shrinks,
            // and few large holes are better than many small ones.
            let left = if owed { self.sample().block } else { (entries / 64).clamp(1, MAX_SHRINK) };
            self.block = Block { place: (self.random >> 33) % entries.max(1), left, owed };
        }
        self.owed = self.owed.saturating_sub(1);
        self.block.left -= 1;
        // Keeps the place: the next neighbour comes to the place that became free.
        self.pages.pop_at(self.block.place as usize)
    }

    fn sample(&self) -> GuardSample {
        GuardSample::of(self.pages.count(true))
    }

    /// Fills the inactive list at the first shortage after a time of room, and at later ones as
    /// long as few pages have come back, so that hardly anything is known about any. It moves the
    /// pages that came last to the head of the inactive list, as many as it needs to keep its share
    /// when the first ones are staged.
    fn fill_inactive(&mut self, table: &mut PageTable) {
        let ignorant = self.challenge.is_ignorant(self.sample()) && self.active_gives();
        if !std::mem::take(&mut self.filled) && !ignorant {
            return;
        }
        let staged = self.ageing.target(self.pages.count(true));
        while self.pages.count(false) < self.inactive_target() + staged && self.pages.demote_last(table) {}
    }
}
