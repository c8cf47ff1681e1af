//! The cost of soft faults for a program, compared with the refaults that they save it.
//!
//! The test of age (`staging.rs` of the core) trades soft faults for refaults, and estimates the
//! value of each. Where refaults come from the pool, soft faults are as expensive, and too many of
//! them cost more than all the refaults that they could save. So both are measured by the time for
//! which threads wait: soft faults cost too much when they take more than a thirty-sixth of the
//! time of refaults. So while refaults take most of a program's time, soft faults take less than 3
//! % of it; where refaults take less, soft faults take less too.

use std::time::{Duration, Instant};

use uswap_core::reclaim::age_test::Cost;

/// Length of a measurement.
const PERIOD: Duration = Duration::from_millis(100);
/// Soft faults cost too much when they take more than 1/`HIGH` of the time of refaults, and little
/// when they take less than 1/`LOW`.
const HIGH: u32 = 36;
const LOW: u32 = 72;

/// The measurement of one space.
#[derive(Debug)]
pub struct SoftFaultCost {
    since: Instant,
    soft_faults: Duration,
    refaults: Duration,
    cost: Cost,
}

impl SoftFaultCost {
    /// A measurement without any faults yet.
    pub fn new(now: Instant) -> Self {
        Self { since: now, soft_faults: Duration::ZERO, refaults: Duration::ZERO, cost: Cost::Low }
    }

    /// Whether soft faults cost more than they may.
    pub fn is_high(&self) -> bool {
        self.cost == Cost::High
    }

    /// Counts a fault on an evicted page that took this time.
    pub fn refault(&mut self, took: Duration) {
        self.refaults += took;
    }

    /// Counts a soft fault that took this time and ended at `now`. Returns the cost of soft faults
    /// at the end of a period.
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
