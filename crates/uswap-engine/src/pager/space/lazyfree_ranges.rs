//! What is left of memory that the program has said it drops.
//!
//! MADV_FREE sends the event of MADV_DONTNEED, but its pages stay until the kernel wants them, and are written again
//! without a fault. What is known of them is forgotten with the event, so reclaim would never find them: a program whose
//! allocator frees in this way would outgrow its budget. Which advice it was the event does not say. So ranges are
//! remembered of which resident pages were forgotten; when memory is to be taken and the kernel counts more of the
//! process's than we know of, the pages that are there are looked for.

use std::time::{Duration, Instant};

use uswap_abi::layout::PAGE;
use uswap_core::page::word::PageState;
use uswap_sys::procfs::pagemap::PresentRun;

use crate::pager::address_space::AddressSpace;
use crate::pager::event_loop::Pager;
use crate::pager::space::Space;
use crate::pager::space::id::PageRange;

/// Ranges that are told apart; of more those become one that lie next to each other.
const MAX_RANGES: usize = 32;
/// Pages that must be unknown for a search, beyond those that the last one left unknown (512 KiB).
const WORTH_A_LOOK: i64 = 128;
/// Present pages that are looked at in one search.
const MAX_PAGES: u64 = 8192;
/// How often it is asked whether there is anything to be searched for; and a search may take one part in so many of the time.
const ASK: Duration = Duration::from_millis(2);
const COST: u32 = 10;

/// Ranges in which pages may be left.
#[derive(Clone, Debug)]
pub struct LazyFreeRanges {
    ranges: Vec<PageRange>,
    asked: Instant,
    took: Duration,
    /// Pages of the process that are not known and not to be found: they are not registered.
    unknown: i64,
}

impl Default for LazyFreeRanges {
    fn default() -> Self {
        let ranges = Vec::with_capacity(MAX_RANGES + 1);
        Self { ranges, asked: Instant::now(), took: Duration::ZERO, unknown: 0 }
    }
}

impl LazyFreeRanges {
    /// Pages that were there may still be.
    pub fn note(&mut self, start: u64, end: u64) {
        let first = self.ranges.partition_point(|(_, e)| *e < start);
        let behind = self.ranges.partition_point(|(s, _)| *s <= end);
        let (mut from, mut to) = (start, end);
        for (s, e) in self.ranges.drain(first..behind) {
            (from, to) = (from.min(s), to.max(e));
        }
        self.ranges.insert(first, (from, to));
        if self.ranges.len() > MAX_RANGES {
            self.join_nearest();
        }
    }

    fn join_nearest(&mut self) {
        let gap = |index: &usize| self.ranges[index + 1].0 - self.ranges[*index].1;
        let nearest = (0..self.ranges.len() - 1).min_by_key(gap).unwrap_or(0);
        self.ranges[nearest].1 = self.ranges[nearest + 1].1;
        self.ranges.remove(nearest + 1);
    }

    /// mremap: what is left moves along.
    pub fn remap(&mut self, from: u64, to: u64, length: u64) {
        if self.ranges.iter().any(|(start, end)| *start < from + length && *end > from) {
            self.note(to, to + length);
        }
    }

    /// Whether it may be asked now whether there is anything to be searched for.
    fn is_due(&self) -> bool {
        !self.ranges.is_empty() && self.asked.elapsed() >= ASK.max(self.took * COST)
    }

    /// Whether pages the process holds are `unknown` that were not before.
    fn is_worth_a_look(&mut self, unknown: i64) -> bool {
        self.unknown = self.unknown.min(unknown.max(0));
        unknown > self.unknown + WORTH_A_LOOK
    }

    /// Up to here nothing is left to be found.
    fn is_searched_until(&mut self, end: u64) {
        self.ranges.retain(|(_, e)| *e > end);
        self.ranges.first_mut().into_iter().for_each(|(start, _)| *start = end.max(*start));
    }
}

impl<M: AddressSpace> Pager<M> {
    /// Searches the spaces that shall give pages for what may be left there.
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
        // What we know of addresses can be old while changes wait.
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

    /// Takes what is found, until it is enough for once. Returns how far that was.
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

/// The first stretch from `at` on that is registered and may hold pages.
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

/// Anonymous pages of the process that we know nothing of.
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
