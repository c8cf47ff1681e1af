//! Latency histogram with log-linear buckets.
//!
//! Every power of two of nanoseconds is cut into 16 buckets of equal width, so a percentile is at
//! most 1/16 above the true value. Recording is one relaxed atomic add: many threads share one
//! histogram without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// log2 of the buckets per power of two.
const SUB_BITS: u32 = 4;
const SUB: usize = 1 << SUB_BITS;
/// Values of 2^40 ns (18 minutes) and above share the last bucket.
const MAX_BITS: u32 = 40;
const BUCKETS: usize = (MAX_BITS - SUB_BITS + 1) as usize * SUB;

/// A histogram of durations in nanoseconds, shared by any number of recording threads.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// The figures of a [`Histogram`] at one time. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HistogramSnapshot {
    /// Durations recorded.
    pub count: u64,
    /// Arithmetic mean.
    pub mean_ns: u64,
    /// Half of the durations were at most this long.
    pub p50_ns: u64,
    /// 99 of 100 durations were at most this long.
    pub p99_ns: u64,
    /// 999 of 1000 durations were at most this long.
    pub p999_ns: u64,
    /// The longest duration.
    pub max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram (5 KiB).
    pub fn new() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, sum_ns: AtomicU64::new(0), max_ns: AtomicU64::new(0) }
    }

    /// Adds one duration of `ns` nanoseconds.
    pub fn record(&self, ns: u64) {
        self.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
        self.max_ns.fetch_max(ns, Relaxed);
    }

    /// Adds everything `other` holds.
    pub fn merge(&self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter().zip(&other.buckets) {
            let n = theirs.load(Relaxed);
            if n != 0 {
                mine.fetch_add(n, Relaxed);
            }
        }
        self.sum_ns.fetch_add(other.sum_ns.load(Relaxed), Relaxed);
        self.max_ns.fetch_max(other.max_ns.load(Relaxed), Relaxed);
    }

    /// Durations recorded so far.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.load(Relaxed)).sum()
    }

    /// The upper edge of the bucket that holds the given quantile (`per_mille` of 1000), 0 when
    /// empty.
    pub fn quantile(&self, per_mille: u64) -> u64 {
        let rank = (self.count() * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (i, bucket) in self.buckets.iter().enumerate() {
            seen += bucket.load(Relaxed);
            if seen >= rank {
                return upper_edge(i).min(self.max_ns.load(Relaxed));
            }
        }
        0
    }

    /// Median in nanoseconds.
    pub fn p50(&self) -> u64 {
        self.quantile(500)
    }

    /// 99th percentile in nanoseconds.
    pub fn p99(&self) -> u64 {
        self.quantile(990)
    }

    /// 99.9th percentile in nanoseconds.
    pub fn p999(&self) -> u64 {
        self.quantile(999)
    }

    /// The figures as plain data. Recordings that happen meanwhile may be in some fields and not in
    /// others.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let count = self.count();
        HistogramSnapshot {
            count,
            mean_ns: self.sum_ns.load(Relaxed).checked_div(count).unwrap_or(0),
            p50_ns: self.p50(),
            p99_ns: self.p99(),
            p999_ns: self.p999(),
            max_ns: self.max_ns.load(Relaxed),
        }
    }
}

/// Values below 16 have a bucket each; above, the four bits after the leading one choose among 16.
fn bucket_of(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let exponent = ns.ilog2();
    if exponent >= MAX_BITS {
        return BUCKETS - 1;
    }
    let sub = (ns >> (exponent - SUB_BITS)) as usize & (SUB - 1);
    (exponent - SUB_BITS + 1) as usize * SUB + sub
}

/// The largest value that falls into bucket `i`.
fn upper_edge(i: usize) -> u64 {
    if i < SUB {
        return i as u64;
    }
    if i == BUCKETS - 1 {
        return u64::MAX;
    }
    let shift = (i / SUB - 1) as u32;
    ((((SUB + i % SUB) as u64) + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_cover_the_line_without_gap() {
        for i in 0..BUCKETS - 1 {
            assert_eq!(bucket_of(upper_edge(i)), i);
            assert_eq!(bucket_of(upper_edge(i) + 1), i + 1);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn empty_and_single() {
        let h = Histogram::new();
        assert_eq!(h.snapshot(), HistogramSnapshot::default());
        h.record(1234);
        let s = h.snapshot();
        assert_eq!((s.count, s.mean_ns, s.p50_ns, s.p999_ns, s.max_ns), (1, 1234, 1234, 1234, 1234));
    }

    #[test]
    fn recording_threads_lose_nothing() {
        let h = Histogram::new();
        std::thread::scope(|s| {
            for t in 0..4 {
                let h = &h;
                s.spawn(move || (0..1000).for_each(|i| h.record(i * t)));
            }
        });
        assert_eq!(h.count(), 4000);
    }

    proptest! {
        #[test]
        fn quantiles_are_within_a_sixteenth(mut values in prop::collection::vec(0u64..1 << 39, 1..300)) {
            let (a, b) = (Histogram::new(), Histogram::new());
            for (i, &v) in values.iter().enumerate() {
                if i % 2 == 0 { a.record(v) } else { b.record(v) }
            }
            a.merge(&b);
            values.sort_unstable();
            prop_assert_eq!(a.count(), values.len() as u64);
            for per_mille in [500, 990, 999] {
                let rank = (values.len() * per_mille).div_ceil(1000).max(1);
                let (truth, told) = (values[rank - 1], a.quantile(per_mille as u64));
                prop_assert!(told >= truth && told <= truth + truth / 16 + 1, "{} for {}", told, truth);
            }
        }
    }
}
