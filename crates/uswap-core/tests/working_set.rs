//! A space's table and lists through all that happens to pages: no page that is listed is lost or named twice, and what is
//! stale stays little.

use std::collections::BTreeMap;

use proptest::prelude::*;
use uswap_core::page::table::PageTable;
use uswap_core::page::word::{PageWord, State};
use uswap_core::reclaim::working_set::WorkingSet;

const PAGE: u64 = 4096;
/// Stale entries that there may be beside half as many as count.
const STALE: u64 = 1024;

#[derive(Clone, Debug)]
enum Step {
    /// Pages of the range that are not resident come.
    Touch(u64, u64, bool),
    Unmap(u64, u64),
    /// mremap of a range to another.
    Move(u64, u64, u64),
    Evict(u32),
    /// Chosen and refused.
    Refuse(u32),
    /// The child goes on; the parent is dropped.
    Fork,
    Tidy,
}

/// Ranges of pages in a few regions, of which some lie far apart.
fn range() -> impl Strategy<Value = (u64, u64)> {
    (0u64..6, 0u64..300, prop_oneof![0u64..20, 0u64..900]).prop_map(|(part, first, pages)| {
        let start = ((part * part * part) << 32) + first * PAGE;
        (start, start + pages * PAGE)
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (range(), any::<bool>()).prop_map(|((start, end), active)| Step::Touch(start, end, active)),
        4 => range().prop_map(|(start, end)| Step::Unmap(start, end)),
        2 => (range(), range()).prop_map(|((start, end), (to, _))| Step::Move(start, end, to)),
        3 => (0u32..400).prop_map(Step::Evict),
        1 => (0u32..40).prop_map(Step::Refuse),
        1 => Just(Step::Fork),
        1 => Just(Step::Tidy),
    ]
}

#[derive(Clone, Default)]
struct Space {
    table: PageTable,
    set: WorkingSet,
    /// What the table must say: whether a page is resident.
    plain: BTreeMap<u64, bool>,
}

impl Space {
    fn unmap(&mut self, start: u64, end: u64) -> Vec<(u64, PageWord)> {
        let mut taken = Vec::new();
        self.table.take_range(start, end, |address, word| taken.push((address, word)));
        taken.iter().for_each(|(_, word)| self.set.forget(*word));
        self.plain.extract_if(start..end, |_, _| true).for_each(drop);
        taken
    }

    fn touch(&mut self, page: u64, active: bool) {
        let word = self.table.get(page);
        if word.state() != State::Resident {
            self.set.join(&mut self.table, page, word.resident().set_active(active));
            self.plain.insert(page, true);
        }
    }

    fn evict(&mut self) -> Option<u64> {
        let page = self.set.next_victim(&mut self.table)?;
        let word = self.table.get(page);
        let clock = self.set.evict(word);
        self.table.set(page, word.stored(1, clock));
        Some(page)
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Touch(start, end, active) => {
                (start..end).step_by(PAGE as usize).for_each(|page| self.touch(page, active));
            }
            Step::Unmap(start, end) => drop(self.unmap(start, end)),
            Step::Move(start, end, to) if to + (end - start) <= start || to >= end => {
                self.unmap(to, to + (end - start));
                for (page, word) in self.unmap(start, end) {
                    let target = page - start + to;
                    if word.state() == State::Resident {
                        self.set.join(&mut self.table, target, word);
                    } else {
                        self.table.set(target, word);
                    }
                    self.plain.insert(target, word.state() == State::Resident);
                }
            }
            Step::Move(..) => {}
            Step::Evict(pages) => {
                for _ in 0..pages {
                    let Some(page) = self.evict() else { break };
                    prop_assert_eq!(self.plain.insert(page, false), Some(true), "{:#x} was not resident", page);
                }
            }
            Step::Refuse(pages) => {
                for _ in 0..pages {
                    let Some(page) = self.set.next_victim(&mut self.table) else { break };
                    let word = self.table.get(page);
                    self.set.rejoin(&mut self.table, page, word);
                }
            }
            Step::Fork => *self = self.clone(),
            Step::Tidy => self.set.tidy(&mut self.table),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let lists = self.set.lists();
        let resident = self.plain.values().filter(|resident| **resident).count() as u64;
        let counted = lists.count(false) + lists.count(true);
        prop_assert_eq!(counted, resident);
        prop_assert_eq!(lists.len(), self.table.names());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_page_is_lost_to_reclaim_or_chosen_twice(steps in prop::collection::vec(step(), 0..60)) {
        let mut space = Space::default();
        for step in &steps {
            space.take(step)?;
            space.check()?;
            // Who leaves may make entries stale; who comes, and the hand that tidies, finds them.
            if matches!(step, Step::Tidy) {
                let lists = space.set.lists();
                let counted = lists.count(false) + lists.count(true);
                let most = counted + counted / 2 + STALE;
                prop_assert!(lists.len() as u64 <= most, "{} entries for {}", lists.len(), counted);
            }
        }
        let words: Vec<_> = space.table.iter().map(|(page, word)| (page, word.state() == State::Resident)).collect();
        prop_assert_eq!(words, space.plain.clone().into_iter().collect::<Vec<_>>());
        // All that is resident goes, each page once.
        let resident = space.plain.values().filter(|resident| **resident).count();
        let mut gone = 0;
        while let Some(page) = space.evict() {
            prop_assert_eq!(space.plain.insert(page, false), Some(true), "{:#x} was not resident", page);
            gone += 1;
        }
        prop_assert_eq!((gone, space.set.lists().len(), space.table.names()), (resident, 0, 0));
    }
}

/// Pages that come and go without being evicted, as an allocator's do: entries never outnumber their pages by much, nor do
/// regions that are kept for them, and a page that lay there is chosen once, in the order of its first entry.
#[test]
fn stale_entries_stay_few_without_anybody_tidying() {
    let mut space = Space::default();
    let pages = 4096;
    (0..pages).for_each(|page| space.touch(page * PAGE, false));
    for round in 0..2000u64 {
        let start = (round * 37 % 64) * 64 * PAGE;
        space.unmap(start, start + 64 * PAGE);
        (0..64).for_each(|page| space.touch(start + page * PAGE, round % 3 == 0));
        let (lists, most) = (space.set.lists(), pages + pages / 2 + STALE);
        assert!(lists.len() as u64 <= most, "{} entries for {pages}", lists.len());
    }
    // Each time somewhere else: what is stale names regions of which nothing is left.
    for round in 1..2000u64 {
        let old = (round - 1) << 32;
        space.unmap(old, old + pages * PAGE);
        space.touch(round << 32, false);
    }
    assert!(space.table.bytes() < 1 << 20, "{} bytes for one page", space.table.bytes());
    space.set.tidy(&mut space.table);
    let most = STALE + 2;
    assert!(space.set.lists().len() as u64 <= most, "{} entries", space.set.lists().len());
    assert_eq!((space.evict(), space.evict()), (Some(1999 << 32), None));
    assert_eq!(space.table.names(), 0);
}

/// Without a policy pages go in the order in which they came, also one that comes back at once and one that was active.
#[test]
fn without_a_policy_who_came_first_goes_first() {
    let (mut table, mut set) = (PageTable::default(), WorkingSet::<uswap_core::reclaim::staging::Staging>::plain());
    assert!(!set.has_room(true) && set.staging_target(1000) == 0);
    for page in 0..20 {
        set.join(&mut table, page * PAGE, PageWord::default().resident().set_active(page % 3 == 0));
    }
    for page in 0..40 {
        assert_eq!(set.next_victim(&mut table), Some(page % 20 * PAGE));
        let word = table.get(page % 20 * PAGE);
        let evicted = word.zero(set.evict(word));
        assert!(!set.refault(evicted).activate, "page {page}");
        set.join(&mut table, page % 20 * PAGE, evicted.resident().set_active(true));
    }
}
