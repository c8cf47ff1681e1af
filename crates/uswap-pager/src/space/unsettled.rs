//! Unsettled ranges: memory registered a moment ago, which a fork child whose event is still to
//! come may not have registered.
//!
//! Such a child was forked before the registration. No page of that memory is evicted until it is
//! *settled*: until a moment at which no event was pending, since from then on every fork child has
//! it registered. If a fork is handled before that moment, the child's page words for the memory
//! are forgotten and learnt anew.
//!
//! This concerns the mapping that was registered, and not the addresses. Pages that are moved to
//! these addresses later may well be evicted: they were registered all the time, and so they are in
//! every child that was forked after the move. Changes are applied in the order in which they
//! happened, so all forks still to come are later than the move: its source and its target are no
//! longer unsettled, and neither are ranges that were unmapped.

use std::time::{Duration, Instant};

use crate::space::id::PageRange;

/// The ranges.
#[derive(Clone, Debug, Default)]
pub struct UnsettledRanges {
    ranges: Vec<PageRange>,
    since: Option<Instant>,
}

impl UnsettledRanges {
    /// Adds ranges that were just registered.
    pub fn add(&mut self, ranges: &[PageRange]) {
        self.ranges.extend_from_slice(ranges);
        self.since = Some(Instant::now());
    }

    /// Removes a range: its memory is gone or replaced.
    pub fn cut(&mut self, start: u64, end: u64) {
        let pieces = |(s, e): &PageRange| [(*s, start.min(*e)), (end.max(*s), *e)];
        self.ranges = self.ranges.iter().flat_map(pieces).filter(|(s, e)| s < e).collect();
    }

    /// Whether no range is unsettled.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether there are unsettled ranges that may be settled: they must be at least as old as
    /// `least` (for tests).
    pub fn is_due(&self, least: Duration) -> bool {
        !self.ranges.is_empty() && self.since.is_none_or(|since| since.elapsed() >= least)
    }

    /// Settles all ranges: they were registered before every later fork child was made.
    pub fn settle(&mut self) {
        self.ranges.clear();
    }

    /// The ranges that a child forked now may not have registered.
    pub fn ranges(&self) -> &[PageRange] {
        &self.ranges
    }

    /// The unsettled parts of a range.
    pub fn within(&self, start: u64, end: u64) -> Vec<PageRange> {
        let both = |(s, e): &PageRange| (start.max(*s), end.min(*e));
        self.ranges.iter().map(both).filter(|(s, e)| s < e).collect()
    }

    /// Whether the page is unsettled.
    pub fn contains(&self, page: u64) -> bool {
        self.ranges.iter().any(|(start, end)| (*start..*end).contains(&page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_due_when_it_is_old_enough_until_it_is_settled() {
        let mut fresh = UnsettledRanges::default();
        assert!(fresh.is_empty() && !fresh.is_due(Duration::ZERO));
        fresh.add(&[(4, 8)]);
        assert!(fresh.is_due(Duration::ZERO) && !fresh.is_due(Duration::from_secs(60)));
        assert!(fresh.contains(4) && !fresh.contains(8));
        fresh.settle();
        assert!(fresh.is_empty() && !fresh.contains(4) && !fresh.is_due(Duration::ZERO));
    }

    proptest! {
        #[test]
        fn what_is_cut_is_not_fresh_and_all_else_stays_so(
            added in prop::collection::vec((0u64..40, 1u64..10), 0..6),
            cut in prop::collection::vec((0u64..40, 0u64..10), 0..6),
        ) {
            let mut fresh = UnsettledRanges::default();
            let ranges: Vec<PageRange> = added.iter().map(|(start, length)| (*start, start + length)).collect();
            fresh.add(&ranges);
            cut.iter().for_each(|(start, length)| fresh.cut(*start, start + length));
            for page in 0..60 {
                let within = |list: &[(u64, u64)]| list.iter().any(|(s, l)| (*s..s + l).contains(&page));
                prop_assert_eq!(fresh.contains(page), within(&added) && !within(&cut), "page {}", page);
                let part: Vec<PageRange> = fresh.within(15, 35);
                let is_of_it = part.iter().any(|(s, e)| (*s..*e).contains(&page));
                prop_assert_eq!(is_of_it, (15..35).contains(&page) && fresh.contains(page), "page {}", page);
            }
        }
    }
}
