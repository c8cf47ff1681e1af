//! Fault latencies by tier, from the reading of the fault message to the installed page.

use std::time::Duration;

use uswap_core::{Histogram, HistogramSnapshot};

/// The place that a page came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyTier {
    /// First touch, or a page that was evicted as zeros.
    Zero,
    /// A staging slot.
    Staged,
    /// The compressed pool.
    Pool,
    /// A device.
    Device,
}

/// One histogram per tier.
#[derive(Default)]
pub struct Latencies {
    tiers: [Histogram; 4],
}

impl Latencies {
    /// Records one fault.
    pub fn record(&self, tier: LatencyTier, took: Duration) {
        self.tiers[tier as usize].record(took.as_nanos() as u64);
    }

    /// Median of the faults of this tier, in nanoseconds.
    pub fn median_ns(&self, tier: LatencyTier) -> u64 {
        self.tiers[tier as usize].snapshot().p50_ns
    }

    /// The histograms of all tiers, in the order of [`LatencyTier`].
    pub fn snapshots(&self) -> [HistogramSnapshot; 4] {
        self.tiers.each_ref().map(Histogram::snapshot)
    }
}
