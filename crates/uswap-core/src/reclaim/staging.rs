//! Decides how many pages are staged, that is, the length of the test of age, by its cost and its
//! savings.
//!
//! A staged page that is touched costs a soft fault; a page that is evicted although it was still
//! needed costs a refault, which is many times as expensive. With more staged pages the test finds
//! more of the pages that are in use before they are evicted (with all pages staged it would be
//! LRU), and costs more soft faults. Some staged pages are touched by chance: if all pages are used
//! alike, the share of staged pages that is touched is about the share of resident pages that is
//! staged. So the staged share
//!
//! - **grows** by a quarter when staged pages are touched more than twice as often as by chance,
//!   and all soft faults of a period cost less than an eighth of its refaults;
//! - **shrinks** by a fifth when they are touched less than 1.25 times as often as by chance, or
//!   cost more than a quarter of the refaults;
//!
//! - **shrinks** as well while the thrash guard is ajar: then pages are staged at random, also
//!   pages in use, and a touch tells nothing about age,
//!
//! between [`MIN`] and [`MAX`]. With a sweep, a stream or uniform random access the share stays at
//! the least; with programs that use some pages more than others it grows as far as that pays. A
//! wrong guess costs soft faults, whose sum the second condition bounds. The share is adjusted
//! about each time that the staged pages have been replaced once.
//!
//! The cost of a refault is an estimate as well: from the pool it is hardly more than that of a
//! soft fault. So there is also a bound by measured time (the engine's `soft_fault_cost.rs`): while
//! soft faults cost too much the share shrinks whatever it saves, down to almost nothing, and it
//! grows again only when they cost much less.

use crate::reclaim::age_test::{AgeTest, Cost};

/// A share is counted in parts of this size: this number stands for all resident pages.
const PARTS: u64 = 4096;
/// The least share: a thirty-second.
const MIN: u64 = PARTS / 32;
/// The least share while soft faults cost too much.
const MIN_DEAR: u64 = 1;
/// The greatest share: a quarter.
const MAX: u64 = PARTS / 4;
/// A refault costs as much as this many soft faults: at least, from the pool. From devices it costs
/// more.
const REFAULT_COST: u64 = 4;
/// The share is adjusted only after at least this many pages were evicted or touched.
const MIN_SEEN: u64 = 128;

/// The staged share of a space, and the counts since it was last adjusted.
#[derive(Clone, Debug)]
pub struct Staging {
    share: u64,
    evicted: u64,
    touched: u64,
    refaults: u64,
    cost: Cost,
}

impl Default for Staging {
    fn default() -> Self {
        Self { share: MIN, evicted: 0, touched: 0, refaults: 0, cost: Cost::Low }
    }
}

impl AgeTest for Staging {
    const NAME: &'static str = "soft faults";
    const IS_SILENT: bool = false;

    fn target(&self, resident: u64) -> u64 {
        resident * self.share / PARTS
    }

    fn touched(&mut self) {
        self.touched += 1;
    }

    fn refaulted(&mut self) {
        self.refaults += 1;
    }

    fn touches_cost(&mut self, cost: Cost) {
        self.cost = cost;
    }

    fn evicted(&mut self, resident: u64, aged: bool) {
        self.evicted += 1;
        if self.evicted + self.touched >= self.target(resident).max(MIN_SEEN) {
            self.adjust(aged);
        }
    }
}

impl Staging {
    fn adjust(&mut self, aged: bool) {
        // The share of pages that left staging by a touch, in parts.
        let touched = self.touched * PARTS / (self.evicted + self.touched);
        let refaults = self.refaults * REFAULT_COST;
        let pays = touched > 2 * self.share && self.touched * 8 < refaults;
        let fails = touched * 4 < 5 * self.share || self.touched * 4 > refaults;
        if self.cost == Cost::High {
            self.share = (self.share * 4 / 5).max(MIN_DEAR);
        } else if aged && (pays || self.share < MIN) {
            let more = if self.cost == Cost::Low { (self.share / 4).max(1) } else { 0 };
            self.share = (self.share + more).min(MAX);
        } else if (!aged || fails) && self.share > MIN {
            self.share = (self.share - self.share / 5).max(MIN);
        }
        *self = Self { share: self.share, cost: self.cost, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESIDENT: u64 = 100_000;

    /// Pages that leave staging, of which `touched` in a thousand are touched and `refaults` in a
    /// thousand come back.
    fn live(staging: &mut Staging, touched: u64, refaults: u64) -> u64 {
        for number in 0..200_000 {
            if number % 1000 < touched {
                staging.touched();
            } else {
                staging.evicted(RESIDENT, true);
            }
            if number % 1000 < refaults {
                staging.refaulted();
            }
        }
        staging.target(RESIDENT)
    }

    #[test]
    fn a_sweep_and_uniform_access_leave_the_least_staged() {
        let least = RESIDENT / 32;
        assert_eq!(live(&mut Staging::default(), 0, 1000), least);
        // As often as by chance: a thirty-second.
        assert_eq!(live(&mut Staging::default(), 31, 500), least);
    }

    #[test]
    fn pages_in_use_make_it_grow_and_their_absence_shrink() {
        let mut staging = Staging::default();
        assert_eq!(live(&mut staging, 600, 1000), RESIDENT / 32, "dearer than it saves");
        let grown = live(&mut staging, 200, 900);
        assert!(
            (RESIDENT / 10..RESIDENT / 8).contains(&grown),
            "as far as chance explains half of the touches: {grown}"
        );
        assert_eq!(live(&mut staging, 0, 900), RESIDENT / 32);
    }

    #[test]
    fn while_they_cost_too_much_next_to_nothing_lies_staged() {
        let mut staging = Staging::default();
        let grown = RESIDENT / 10..RESIDENT / 7;
        assert!(grown.contains(&live(&mut staging, 200, 900)));
        staging.touches_cost(Cost::High);
        assert_eq!(live(&mut staging, 200, 900), RESIDENT / PARTS);
        staging.touches_cost(Cost::Fair);
        assert_eq!(live(&mut staging, 200, 900), RESIDENT / PARTS);
        staging.touches_cost(Cost::Low);
        assert!(grown.contains(&live(&mut staging, 200, 900)));
        staging.touches_cost(Cost::High);
        live(&mut staging, 200, 900);
        staging.touches_cost(Cost::Low);
        assert_eq!(live(&mut staging, 0, 900), RESIDENT / 32, "no less than the least");
    }

    #[test]
    fn soft_faults_that_cost_more_than_refaults_are_given_up() {
        let mut staging = Staging::default();
        assert!(live(&mut staging, 150, 900) > RESIDENT / 16);
        assert_eq!(live(&mut staging, 300, 100), RESIDENT / 32);
    }
}
