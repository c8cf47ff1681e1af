//! What soft faults cost a program, beside what they save it.
//!
//! The test of age (`staging.rs` of the core) trades soft faults for refaults, and guesses what
//! each is worth. Where refaults come from the pool, soft faults are as dear, and too many of them
//! cost more than all the refaults that they could save. So both are measured, by the time for
//! which threads wait: soft faults cost too much when they take more than a thirty-sixth of the
//! time of refaults. While refaults take most of a program's time, soft faults stay below 3 % of it
//! that way; where they take less, so do soft faults.

use std::time::{Duration, Instant};

use uswap_core::reclaim::age_test::Cost;

/// How long it is watched.
const PERIOD: Duration = Duration::from_millis(100);
/// Soft faults cost too much when they take more than one part in so many, and little when they
/// take less than one in so many.
const HIGH: u32 = 36;
const LOW: u32 = 72;

/// Of one space.
#[derive(Debug)]
pub struct SoftFaultCost {
    since: Instant,
    soft_faults: Duration,
    refaults: Duration,
    cost: Cost,
}

impl SoftFaultCost {
    /// Nothing was seen yet.
    pub fn new(now: Instant) -> Self {
        Self { since: now, soft_faults: Duration::ZERO, refaults: Duration::ZERO, cost: Cost::Low }
    }

    /// Whether soft faults cost more than they may.
    pub fn is_high(&self) -> bool {
        self.cost == Cost::High
    }

    /// A fault on an evicted page took so long.
    pub fn refault(&mut self, took: Duration) {
        self.refaults += took;
    }

    /// A soft fault took so long, until `now`. What they cost, if it is time to say so.
    pub fn soft_fault(&mut self, took: Duration, now: Instant) -> Option<Cost> {
        self.soft_faults += took;
        if now.saturating_duration_since(self.since) < PERIOD {
            return None;
        }
        let cost = match self.soft_faults {
            spent if spent * HIGH > self.refaults => Cost::High,
            spent if spent * LOW > self.refaults => Cost::Fair,
            _ => Cost::Low,
        };
        *self = Self { cost, ..Self::new(now) };
        Some(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_cost_too_much_above_a_thirty_sixth_of_the_refaults() {
        let begun = Instant::now();
        let (mut expense, millis) = (SoftFaultCost::new(begun), Duration::from_millis);
        let mut note = |refaults, soft_faults, at| {
            expense.refault(millis(refaults));
            expense.soft_fault(millis(soft_faults), begun + millis(at))
        };
        assert_eq!(note(100, 5, 50), None);
        assert_eq!(note(20, 0, 100), Some(Cost::High));
        assert_eq!(note(100, 2, 200), Some(Cost::Fair));
        assert_eq!(note(100, 1, 300), Some(Cost::Low));
        assert_eq!(note(0, 1, 9000), Some(Cost::High), "nothing comes back");
    }
}
