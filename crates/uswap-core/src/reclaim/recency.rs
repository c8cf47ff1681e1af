//! The eviction policy of a cache that sees each access: working set detection by recency.
//!
//! The engine's own policy (`working_set.rs`) cannot see the use of a mapped page, and finds out by
//! trials whether active pages are still in use. A file system sees each access, so here each page
//! notes when it was used last, and no trial is needed:
//!
//! ```text
//! new ──> inactive (a tenth) ──> evicted, with a shadow
//!            |   ^                  |
//!   used     |   | demoted          |  refault
//!   again    v   |                  v
//!          active <──────── challenge: its reuse time is shorter than the idle time
//!                           of the coldest active page that is found
//! ```
//!
//! - All pages join the inactive list, in which a stream passes by, unless there is room: then they
//!   become active at once.
//! - An evicted page leaves a shadow (Weiner 2013; linux `mm/workingset.c`). On its return its
//!   *reuse time* is known, in evictions: the refault distance and its time in memory. It
//!   *challenges* the active list: if an active page has been idle for longer than that, by a
//!   margin, the page takes its place. The same test is made for an inactive page that was used
//!   again before it was evicted.
//! - The coldest page is looked for among [`SAMPLED`] pages at the head of the active list; the
//!   others go to its tail, as the hand of a clock passes them. A page that was used since the hand
//!   came by last is passed over, so that pages which came while there was room, and were never
//!   used again, go first. At the first shortage the pages that came last become the first inactive
//!   ones.
//!
//! So a new working set replaces one that is not used any more within two rounds: the old pages
//! are idle for longer than one round. Of a set that is swept and does not fit a part is held and
//! hit in each round: no active page is idle for longer than the round takes. The comparison of
//! reuse and idle time is that of LIRS (Jiang and Zhang 2002), without its stack.
//!
//! The first use of a page that was read ahead is no second use. Uses of a page within the same 16
//! arrivals of pages count as one (a record that is read in pieces).

use crate::page::table::PageTable;
use crate::page::word::PageWord;
use crate::reclaim::page_lists::PageLists;

/// One page in this number is inactive.
const INACTIVE_SHARE: u64 = 10;
/// Active pages of which the coldest is looked for.
const SAMPLED: usize = 16;
/// Pages in use that are passed over for one victim, at most.
const MOST_CHANCES: usize = 64;

/// Decides which pages stay in memory. Addresses are those of pages, in bytes. Words are those of
/// pages in frames ([`PageWord::in_frame`]).
#[derive(Clone, Debug, Default)]
pub struct Recency {
    pages: PageLists,
    /// Pages that came so far: the clock of uses. It goes as fast as the evictions do, and before
    /// the first of them as well.
    arrivals: u64,
    /// Pages that became active because there was room, and lie at the tail of the active list.
    filled: u64,
}

impl Recency {
    /// Where its pages are.
    pub fn pages(&self) -> &PageLists {
        &self.pages
    }

    /// A resident page is used.
    pub fn touch(&mut self, table: &mut PageTable, page: u64, word: PageWord) {
        let again = word.used_again() || !word.is_ahead() && word.unused_for(self.arrivals) > 0;
        let used = word.used_at(self.arrivals).set_used_again(again).set_ahead(false);
        if used != word {
            table.set(page, used);
        }
    }

    /// A page becomes resident; `word` is its new word, `shadow` its word before, if it was
    /// evicted. `room`: it displaces no other. Returns whether it became active.
    pub fn join(
        &mut self,
        table: &mut PageTable,
        page: u64,
        word: PageWord,
        shadow: Option<PageWord>,
        room: bool,
    ) -> bool {
        let evictions = self.pages.evictions() as u32;
        let active = room
            || shadow.is_some_and(|shadow| {
                let reuse = u64::from(shadow.refault_distance(evictions)) + self.pages.count(false);
                self.challenge(table, reuse)
            });
        self.arrivals += 1;
        self.filled += u64::from(room);
        self.pages.join(table, page, word.used_at(self.arrivals).set_active(active));
        active
    }

    /// Takes the next page to be evicted off its list. `passing`: memory is short for a moment
    /// only, and no active page goes as long as there are inactive ones.
    pub fn next_victim(&mut self, table: &mut PageTable, passing: bool) -> Option<u64> {
        let share = (self.pages.count(false) + self.pages.count(true)) / INACTIVE_SHARE;
        let target = if passing { 0 } else { share };
        while self.pages.count(false) <= target && self.demote(table) {}
        for _ in 0..MOST_CHANCES {
            let page = self.pages.take_first(table, false)?;
            let word = table.get(page);
            if !word.used_again() {
                return Some(page);
            }
            let active = self.challenge(table, self.pages.count(false));
            self.pages.join(table, page, word.set_active(active).set_used_again(false));
        }
        self.pages.take_first(table, false)
    }

    /// Takes any page off its list, active ones first: all are to leave.
    pub fn take_any(&mut self, table: &mut PageTable) -> Option<u64> {
        self.pages.take_first(table, true).or_else(|| self.pages.take_first(table, false))
    }

    /// A page that was taken is evicted: counts that, and returns the time for its shadow.
    pub fn evict(&mut self) -> u32 {
        self.pages.count_eviction() as u32
    }

    /// Must be called before the word of a page is overwritten.
    pub fn forget(&mut self, word: PageWord) {
        self.pages.forget(word);
    }

    /// Takes a resident page over from the lists of another cache, which have no entry of it any
    /// more. It counts as used now.
    pub fn adopt(&mut self, table: &mut PageTable, page: u64, word: PageWord) {
        self.pages.join(table, page, word.used_at(self.arrivals));
    }

    /// Drops the entries of pages that were forgotten. Without this call an entry of such a page
    /// may count for the page that has its place in the table next.
    pub fn drop_stale(&mut self, table: &mut PageTable) {
        self.pages.purge(table);
    }

    /// Regular work.
    pub fn tidy(&mut self, table: &mut PageTable) {
        self.pages.tidy(table);
    }

    /// Makes an active page inactive: at the first shortage after a time of room one of those that
    /// came last, about which nothing is known, later the coldest. `false`: there is none.
    fn demote(&mut self, table: &mut PageTable) -> bool {
        if self.filled > 0 {
            self.filled -= 1;
            return self.pages.demote_last(table);
        }
        let Some((page, word, _)) = self.take_coldest(table) else { return false };
        self.pages.join(table, page, word.set_active(false).set_used_again(false));
        true
    }

    /// Whether a page of that reuse time may become active; then a colder one has made room.
    fn challenge(&mut self, table: &mut PageTable, reuse: u64) -> bool {
        let Some((page, word, idle)) = self.take_coldest(table) else { return true };
        let wins = idle > reuse + reuse / 8;
        self.pages.join(table, page, word.set_active(!wins).set_used_again(false));
        wins
    }

    /// Takes the page off the active list that has been idle for longest, of some at its head. Also
    /// returns how long.
    fn take_coldest(&mut self, table: &mut PageTable) -> Option<(u64, PageWord, u64)> {
        self.filled = 0;
        let mut coldest: Option<(u64, PageWord, u64)> = None;
        let (mut chances, mut sampled) = (MOST_CHANCES, 0);
        while sampled < SAMPLED.min(self.pages.count(true) as usize + sampled) {
            let Some(page) = self.pages.take_first(table, true) else { break };
            let word = table.get(page);
            if chances > 0 && word.used_again() {
                chances -= 1;
                self.pages.join(table, page, word.set_active(true).set_used_again(false));
                continue;
            }
            sampled += 1;
            let idle = word.unused_for(self.arrivals);
            let warmer = match coldest {
                Some(found) if found.2 >= idle => Some((page, word)),
                _ => coldest.replace((page, word, idle)).map(|(page, word, _)| (page, word)),
            };
            if let Some((page, word)) = warmer {
                self.pages.join(table, page, word.set_active(true));
            }
        }
        coldest
    }
}
