//! Pages that are left of memory that the program has freed.
//!
//! MADV_FREE sends the same event as MADV_DONTNEED, but its pages stay until the kernel takes them,
//! and are written again without a fault. The pager forgets these pages with the event, so reclaim
//! would never find them, and a program whose allocator frees in this way would exceed its budget.
//! The event does not tell which advice it was. So the pager remembers the ranges in which it
//! forgot resident pages. When memory is to be taken and the kernel counts more pages of the
//! process than the pager knows of, the pager searches these ranges for pages that are present.

pub mod sweep;

use std::time::{Duration, Instant};

use crate::space::id::PageRange;

/// Maximum number of ranges; beyond it, the two nearest ranges become one.
const MAX_RANGES: usize = 32;
/// Number of unknown pages that makes a search worthwhile, beyond those that the last search left
/// unknown (512 KiB).
const WORTH_A_LOOK: i64 = 128;
/// Number of present pages that one search looks at.
const MAX_PAGES: u64 = 8192;
/// Interval at which the pager checks whether a search is worthwhile; and searches take at most one
/// part in `COST` of the time.
const ASK: Duration = Duration::from_millis(2);
const COST: u32 = 10;

/// Ranges in which pages may be left.
#[derive(Clone, Debug)]
pub struct LazyFreeRanges {
    ranges: Vec<PageRange>,
    asked: Instant,
    took: Duration,
    /// Pages of the process that are unknown and cannot be found: they are not registered.
    unknown: i64,
}

impl Default for LazyFreeRanges {
    fn default() -> Self {
        let ranges = Vec::with_capacity(MAX_RANGES + 1);
        Self { ranges, asked: Instant::now(), took: Duration::ZERO, unknown: 0 }
    }
}

impl LazyFreeRanges {
    /// Notes a range: pages that were present there may still be.
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

    /// mremap: the pages that are left move along.
    pub fn remap(&mut self, from: u64, to: u64, length: u64) {
        if self.ranges.iter().any(|(start, end)| *start < from + length && *end > from) {
            self.note(to, to + length);
        }
    }

    /// Whether it is time to check whether a search is worthwhile.
    fn is_due(&self) -> bool {
        !self.ranges.is_empty() && self.asked.elapsed() >= ASK.max(self.took * COST)
    }

    /// Whether a search is worthwhile: the process has `unknown` pages that are not known, and some
    /// of them are new.
    fn is_worth_a_look(&mut self, unknown: i64) -> bool {
        self.unknown = self.unknown.min(unknown.max(0));
        unknown > self.unknown + WORTH_A_LOOK
    }

    /// Notes that no pages are left to be found up to here.
    fn is_searched_until(&mut self, end: u64) {
        self.ranges.retain(|(_, e)| *e > end);
        self.ranges.first_mut().into_iter().for_each(|(start, _)| *start = end.max(*start));
    }
}
