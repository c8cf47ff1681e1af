//! What is left of memory that the program has said it drops.
//!
//! MADV_FREE sends the event of MADV_DONTNEED, but its pages stay until the kernel wants them, and
//! are written again without a fault. What is known of them is forgotten with the event, so reclaim
//! would never find them: a program whose allocator frees in this way would outgrow its budget.
//! Which advice it was the event does not say. So ranges are remembered of which resident pages
//! were forgotten; when memory is to be taken and the kernel counts more of the process's than we
//! know of, the pages that are there are looked for.

pub mod sweep;

use std::time::{Duration, Instant};

use crate::space::id::PageRange;

/// Ranges that are told apart; of more those become one that lie next to each other.
const MAX_RANGES: usize = 32;
/// Pages that must be unknown for a search, beyond those that the last one left unknown (512 KiB).
const WORTH_A_LOOK: i64 = 128;
/// Present pages that are looked at in one search.
const MAX_PAGES: u64 = 8192;
/// How often it is asked whether there is anything to be searched for; and a search may take one
/// part in so many of the time.
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
