//! How long the source takes to answer, for each file system below it.
//!
//! The time of one read has two parts: the round trip, which is the same for a page and for a
//! thousand, and the bytes. The first matters for readahead: while it lasts, further reads
//! can be under way. So the estimate follows short times at once and long ones slowly: a quick read
//! shows that the round trip is at most that, a slow one may just have been large.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

/// The part of the difference by which a longer time raises the estimate.
const RISE: u32 = 16;

/// The round trips of file systems, by their device numbers.
#[derive(Debug, Default)]
pub struct SourcePaces(Mutex<HashMap<u64, Duration>>);

impl SourcePaces {
    /// Notes how long a read took.
    pub fn note(&self, device: u64, took: Duration) {
        let mut paces = self.0.lock().expect("paces");
        let pace = paces.entry(device).or_insert(took);
        *pace = if took < *pace { took } else { *pace + (took - *pace) / RISE };
    }

    /// The round trip; zero if nothing was read yet.
    pub fn round_trip(&self, device: u64) -> Duration {
        self.0.lock().expect("paces").get(&device).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_follows_quick_reads_at_once_and_slow_ones_slowly() {
        let (paces, ms) = (SourcePaces::default(), Duration::from_millis);
        assert_eq!(paces.round_trip(1), Duration::ZERO);
        paces.note(1, ms(40));
        assert_eq!(paces.round_trip(1), ms(40), "the first read is all that is known");
        paces.note(1, ms(8));
        assert_eq!(paces.round_trip(1), ms(8));
        paces.note(1, ms(24));
        assert_eq!(paces.round_trip(1), ms(9));
        (0..100).for_each(|_| paces.note(1, ms(30)));
        assert!(paces.round_trip(1) > ms(29), "a source that became slow is seen as slow");
        assert_eq!(paces.round_trip(2), Duration::ZERO, "another file system");
    }
}
