//! Detects that memory that cannot be evicted exceeds the budget.
//!
//! Small mappings, stacks and locked memory are never evicted. If they alone exceed the limit no
//! fault will ever find room, and the waits that faults need otherwise would only make the program
//! slow. So the user is told, once, and faults are served at once until the memory that cannot be
//! evicted fits again. All other pages are still evicted.
//!
//! If the guess is wrong (a burst of memory that is about to be registered) the limit is exceeded
//! without need. So the state must last for a while before it counts.

use std::time::{Duration, Instant};

/// How long the state has to last.
const PROOF: Duration = Duration::from_millis(300);

/// The governor's state of the detection.
#[derive(Debug, Default)]
pub struct Outgrown {
    since: Option<Instant>,
    told: bool,
}

impl Outgrown {
    /// Whether the pages that cannot be evicted (`fixed`) exceed the limit, and have done so for a
    /// while.
    pub fn look(&mut self, fixed: i64, limit: i64, now: Instant) -> bool {
        if fixed <= limit {
            self.since = None;
            return false;
        }
        now.duration_since(*self.since.get_or_insert(now)) >= PROOF
    }

    /// Whether the user has still to be told. Later calls return `false`.
    pub fn is_news(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_to_last() {
        let (mut outgrown, begun) = (Outgrown::default(), Instant::now());
        assert!(!outgrown.look(11, 10, begun) && !outgrown.look(11, 10, begun + PROOF / 2));
        assert!(outgrown.look(11, 10, begun + PROOF));
        assert!(!outgrown.look(10, 10, begun + PROOF), "it fits");
        assert!(!outgrown.look(11, 10, begun + PROOF), "it begins anew");
        assert!(outgrown.is_news() && !outgrown.is_news());
    }
}
