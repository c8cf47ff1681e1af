//! Searching for freed pages that the kernel has not taken.

use super::*;

use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::space::Space;
use uswap_abi::layout::PAGE;
use uswap_core::page::word::PageState;
use uswap_sys::procfs::pagemap::PresentRun;

impl<M: AddressSpace> Pager<M> {
    /// Searches the spaces that are to give pages for such pages.
    pub fn search_left(&mut self, is_one: impl Fn(&Space<M>) -> bool) {
        let is_due = |space: &Space<M>| space.coverage.lazyfree.is_due() && space.can_evict() && is_one(space);
        if self.spaces.values().any(|space| is_due(space)) {
            self.for_each_id(|owner, id| {
                if is_due(&owner.spaces[&id]) {
                    owner.with_space(id, |owner, space| owner.search_space(space));
                }
            });
        }
    }

    fn search_space(&mut self, space: &mut Space<M>) {
        space.coverage.lazyfree.asked = Instant::now();
        // The page table may be out of date while changes wait.
        let unknown = if space.memory.is_changing() { None } else { unknown_pages(space) };
        if !unknown.is_some_and(|unknown| space.coverage.lazyfree.is_worth_a_look(unknown)) {
            return;
        }
        let end = self.take_left(space);
        space.coverage.lazyfree.is_searched_until(end);
        space.coverage.lazyfree.took = space.coverage.lazyfree.asked.elapsed();
        if space.coverage.lazyfree.ranges.is_empty() {
            space.coverage.lazyfree.unknown = unknown_pages(space).unwrap_or(0).max(0);
        }
    }

    /// Takes the pages that are found, up to the limit for one search. Returns the address up to
    /// which it searched.
    fn take_left(&mut self, space: &mut Space<M>) -> u64 {
        let mut seen = 0;
        let mut at = 0;
        while let Some((start, end)) = next_part(space, at) {
            let mut runs = [PresentRun::default(); 64];
            let Ok((count, walked)) = space.memory.present(start, end, &mut runs) else { return u64::MAX };
            for run in &runs[..count] {
                seen += (run.end - run.start) / PAGE;
                (run.start..run.end).step_by(PAGE as usize).for_each(|page| self.take_one_left(space, page));
            }
            at = walked.max(start + PAGE);
            if seen >= MAX_PAGES {
                return at;
            }
        }
        u64::MAX
    }

    fn take_one_left(&mut self, space: &mut Space<M>, page: u64) {
        let word = space.table.get(page);
        if word.state() != PageState::Untouched || space.memory.is_own(page) {
            return;
        }
        self.shared.counters.left_pages.add(1);
        self.become_resident(space, page, word.resident());
    }
}

/// The first part of a range, from `at` on, that is registered and may hold pages.
fn next_part<M: AddressSpace>(space: &Space<M>, at: u64) -> Option<PageRange> {
    let left = space
        .coverage
        .lazyfree
        .ranges
        .iter()
        .map(|(start, end)| (at.max(*start), *end))
        .filter(|(start, end)| start < end);
    let registered = |(start, end): PageRange| {
        let before = space.coverage.registered.range(..=start).next_back().filter(|(_, e)| **e > start);
        let (s, e) = before.or_else(|| space.coverage.registered.range(start..end).next())?;
        Some((start.max(*s), end.min(*e)))
    };
    left.filter_map(registered).next()
}

/// Number of anonymous pages of the process that are not known to the pager.
fn unknown_pages<M: AddressSpace>(space: &Space<M>) -> Option<i64> {
    Some(space.memory.pages_present()? - space.counts.resident as i64 - space.trays.pages_held() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_unknown_before_is_not_searched_for_again() {
        let mut left = LazyFreeRanges::default();
        assert!(left.is_worth_a_look(WORTH_A_LOOK + 1));
        left.unknown = 500;
        assert!(!left.is_worth_a_look(500 + WORTH_A_LOOK) && left.is_worth_a_look(501 + WORTH_A_LOOK));
        assert!(!left.is_worth_a_look(-3) && left.is_worth_a_look(WORTH_A_LOOK + 1));
    }

    #[test]
    fn what_is_left_moves_along() {
        let mut left = LazyFreeRanges::default();
        left.note(0x1000, 0x3000);
        left.remap(0x8000, 0x20_0000, 0x1000);
        assert_eq!(left.ranges, [(0x1000, 0x3000)]);
        left.remap(0x2000, 0x10_0000, 0x4000);
        assert_eq!(left.ranges, [(0x1000, 0x3000), (0x10_0000, 0x10_4000)]);
        left.is_searched_until(0x2000);
        assert_eq!(left.ranges, [(0x2000, 0x3000), (0x10_0000, 0x10_4000)]);
        left.is_searched_until(u64::MAX);
        assert!(!left.is_due() && left.ranges.is_empty());
    }

    proptest! {
        #[test]
        fn ranges_are_few_and_in_order_and_hold_all_that_was_noted(
            noted in prop::collection::vec((0u64..2000, 1u64..9), 1..200),
        ) {
            let mut left = LazyFreeRanges::default();
            noted.iter().for_each(|(start, length)| left.note(*start, start + length));
            prop_assert!(left.ranges.len() <= MAX_RANGES);
            prop_assert!(left.ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
            for (start, length) in noted {
                prop_assert!(left.ranges.iter().any(|(s, e)| *s <= start && start + length <= *e));
            }
        }
    }
}
