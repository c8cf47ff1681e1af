//! Memory that cannot be evicted and is more than the budget.
//!
//! Small mappings, stacks and what was locked stay where they are. If that alone is more than the
//! limit no fault will ever find room, and to hold each up for as long as is right elsewhere only
//! makes the program slow. So the user is told, once, and faults are served at once until the rest
//! fits again. What can be evicted still is.
//!
//! If the guess is wrong (a burst of memory that is about to be registered) the limit is passed
//! sooner than it need be; so it is not made before memory has been that way for a while.

use std::time::{Duration, Instant};

/// How long it has to last.
const PROOF: Duration = Duration::from_millis(300);

/// What the governor remembers of it.
#[derive(Debug, Default)]
pub struct Outgrown {
    since: Option<Instant>,
    told: bool,
}

impl Outgrown {
    /// Whether so many pages that cannot be evicted are more than the limit, and have been for a
    /// while.
    pub fn look(&mut self, fixed: i64, limit: i64, now: Instant) -> bool {
        if fixed <= limit {
            self.since = None;
            return false;
        }
        now.duration_since(*self.since.get_or_insert(now)) >= PROOF
    }

    /// Whether it has still to be told.
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
