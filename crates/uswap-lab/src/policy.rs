//! The simulator's interface to a policy, and the counts of a replay.

/// The result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessOutcome {
    /// The page was mapped: no cost.
    Hit,
    /// The page was staged, unmapped but in RAM: the cost is a fault, without a transfer.
    Soft,
    /// The page had to be loaded.
    Miss,
}

/// An eviction policy together with the memory that it manages. Pages are numbered densely from
/// zero.
pub trait Policy {
    /// The program accesses the page. Afterwards the page is held.
    fn access(&mut self, page: u32) -> AccessOutcome;

    /// Number of pages in memory now, including staged ones.
    fn held(&self) -> usize;

    /// Whether the page is in memory now.
    fn holds(&self, page: u32) -> bool;

    /// How often the policy has moved a page to its protected pages: the active list, Am, T2, LIR,
    /// or the main queue. Zero for policies that protect no pages.
    fn activations(&self) -> u64 {
        0
    }

    /// Accesses all pages in order and counts the results. Compiled for each policy, so that a call
    /// in the inner loop is direct.
    fn replay(&mut self, pages: &[u32], counts: &mut PolicyCounts) {
        for &page in pages {
            match self.access(page) {
                AccessOutcome::Hit => {}
                AccessOutcome::Soft => counts.soft_faults += 1,
                AccessOutcome::Miss => counts.misses += 1,
            }
        }
        counts.accesses += pages.len() as u64;
        counts.activations = self.activations();
    }
}

/// The counts of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyCounts {
    /// Number of accesses.
    pub accesses: u64,
    /// Accesses to pages that were not held; the first access to a page is one.
    pub misses: u64,
    /// Accesses to staged pages.
    pub soft_faults: u64,
    /// See [`Policy::activations`].
    pub activations: u64,
}

impl PolicyCounts {
    /// Misses divided by accesses, 0 to 1; 0 without accesses.
    pub fn miss_ratio(&self) -> f64 {
        if self.accesses == 0 { 0.0 } else { self.misses as f64 / self.accesses as f64 }
    }
}
