//! Tests that every policy of the registry must pass. A space's table and lists go through all that
//! can happen to pages: no listed page is lost or named twice, and stale entries stay few.

use crate::PAGE;
use std::collections::BTreeMap;

use crate::page::table::PageTable;
use crate::page::word::{PageState, PageWord};
use crate::reclaim::policy::ReclaimPolicy;
use crate::reclaim::{AnyPolicy, PolicyKind};
use proptest::prelude::*;

/// Stale entries that are allowed beyond half the number of those that count.
const STALE: u64 = 1024;

#[derive(Clone, Debug)]
enum Step {
    /// Pages of the range that are not resident become so.
    Touch(u64, u64, bool),
    Unmap(u64, u64),
    /// mremap of a range to another.
    Move(u64, u64, u64),
    Evict(u32),
    /// Pages are chosen and put back.
    Refuse(u32),
    /// A fork: the test goes on with the child and drops the parent.
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
    policy: AnyPolicy,
    /// Expected content of the table: whether a page is resident.
    plain: BTreeMap<u64, bool>,
}

impl Space {
    fn of(kind: PolicyKind) -> Self {
        Self { policy: kind.build(), ..Self::default() }
    }

    fn unmap(&mut self, start: u64, end: u64) -> Vec<(u64, PageWord)> {
        let mut taken = Vec::new();
        self.table.take_range(start, end, |address, word| taken.push((address, word)));
        taken.iter().for_each(|(_, word)| self.policy.forget(*word));
        self.plain.extract_if(start..end, |_, _| true).for_each(drop);
        taken
    }

    fn touch(&mut self, page: u64, active: bool) {
        let word = self.table.get(page);
        if word.state() != PageState::Resident {
            self.policy.join(&mut self.table, page, word.resident().set_active(active));
            self.plain.insert(page, true);
        }
    }

    fn evict(&mut self) -> Option<u64> {
        let page = self.policy.next_victim(&mut self.table)?;
        let word = self.table.get(page);
        let clock = self.policy.evict(word);
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
                    if word.state() == PageState::Resident {
                        self.policy.join(&mut self.table, target, word);
                    } else {
                        self.table.set(target, word);
                    }
                    self.plain.insert(target, word.state() == PageState::Resident);
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
                    let Some(page) = self.policy.next_victim(&mut self.table) else { break };
                    let word = self.table.get(page);
                    self.policy.rejoin(&mut self.table, page, word);
                }
            }
            Step::Fork => *self = self.clone(),
            Step::Tidy => self.policy.tidy(&mut self.table),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let lists = self.policy.pages().lists();
        let resident = self.plain.values().filter(|resident| **resident).count() as u64;
        let counted = lists.count(false) + lists.count(true);
        prop_assert_eq!(counted, resident);
        prop_assert_eq!(lists.len(), self.table.names());
        Ok(())
    }
}

/// Takes these steps, and in the end evicts all resident pages.
fn lose_no_page_and_choose_none_twice(kind: PolicyKind, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut space = Space::of(kind);
    for step in steps {
        space.take(step)?;
        space.check()?;
        // A page that leaves may make entries stale; a page that comes, and `tidy`, removes them.
        if matches!(step, Step::Tidy) {
            let lists = space.policy.pages().lists();
            let counted = lists.count(false) + lists.count(true);
            let most = counted + counted / 2 + STALE;
            prop_assert!(lists.len() as u64 <= most, "{} entries for {}", lists.len(), counted);
        }
    }
    let words: Vec<_> = space.table.iter().map(|(page, word)| (page, word.state() == PageState::Resident)).collect();
    prop_assert_eq!(words, space.plain.clone().into_iter().collect::<Vec<_>>());
    let resident = space.plain.values().filter(|resident| **resident).count();
    let mut gone = 0;
    while let Some(page) = space.evict() {
        prop_assert_eq!(space.plain.insert(page, false), Some(true), "{:#x} was not resident", page);
        gone += 1;
    }
    prop_assert_eq!((gone, space.policy.pages().lists().len(), space.table.names()), (resident, 0, 0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_page_is_lost_to_reclaim_or_chosen_twice(steps in prop::collection::vec(step(), 0..60)) {
        for kind in PolicyKind::ALL {
            lose_no_page_and_choose_none_twice(*kind, &steps)?;
        }
    }
}

/// Pages that come and go without being evicted, as an allocator's do: entries never outnumber
/// their pages by much, nor do regions that are kept for them, and a page that lay there is chosen
/// once.
#[test]
fn stale_entries_stay_few_without_anybody_tidying() {
    PolicyKind::ALL.iter().for_each(|kind| leave_few_stale_entries(Space::of(*kind)));
}

fn leave_few_stale_entries(mut space: Space) {
    let pages = 4096;
    (0..pages).for_each(|page| space.touch(page * PAGE, false));
    for round in 0..2000u64 {
        let start = (round * 37 % 64) * 64 * PAGE;
        space.unmap(start, start + 64 * PAGE);
        (0..64).for_each(|page| space.touch(start + page * PAGE, round % 3 == 0));
        let (lists, most) = (space.policy.pages().lists(), pages + pages / 2 + STALE);
        assert!(lists.len() as u64 <= most, "{} entries for {pages}", lists.len());
    }
    // Each round uses another place, so that stale entries name regions of which nothing is left.
    for round in 1..2000u64 {
        let old = (round - 1) << 32;
        space.unmap(old, old + pages * PAGE);
        space.touch(round << 32, false);
    }
    assert!(space.table.bytes() < 1 << 20, "{} bytes for one page", space.table.bytes());
    space.policy.tidy(&mut space.table);
    let most = STALE + 2;
    assert!(space.policy.pages().lists().len() as u64 <= most, "{} entries", space.policy.pages().lists().len());
    assert_eq!((space.evict(), space.evict()), (Some(1999 << 32), None));
    assert_eq!(space.table.names(), 0);
}

#[test]
fn names_are_told_apart_and_found() {
    for kind in PolicyKind::ALL {
        assert_eq!(PolicyKind::named(kind.name()), Some(*kind));
        assert!(!kind.about().is_empty() && kind.full_name().ends_with(kind.name()));
    }
    assert_eq!(PolicyKind::named("best"), None);
    assert!(PolicyKind::named("newest-first").is_some(), "the policy that only tests know");
    assert_eq!(PolicyKind::default().name(), "working-set");
}
