//! What a policy is to the simulator, and what is counted of it.

/// What an access met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessOutcome {
    /// The page was mapped: costs nothing.
    Hit,
    /// The page was staged, unmapped but in RAM: costs a fault and no transfer.
    Soft,
    /// The page had to be brought in.
    Miss,
}

/// An eviction policy together with the memory that it manages. Pages are numbered densely from
/// zero.
pub trait Policy {
    /// The program touches the page. Afterwards the page is held.
    fn access(&mut self, page: u32) -> AccessOutcome;

    /// Pages that take up memory now, staged ones included.
    fn held(&self) -> usize;

    /// Whether the page takes up memory now.
    fn holds(&self, page: u32) -> bool;

    /// How often a page was put among the protected ones: the active list, Am, T2, LIR, the main
    /// queue. Zero for policies that protect none.
    fn activations(&self) -> u64 {
        0
    }

    /// Accesses all pages in order and counts. Compiled for each policy, so that a call in the
    /// inner loop is direct.
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

/// What came of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyCounts {
    /// Touches of pages.
    pub accesses: u64,
    /// Touches of pages that were not held; the first touch of a page is one.
    pub misses: u64,
    /// Touches of staged pages.
    pub soft_faults: u64,
    /// See [`Policy::activations`].
    pub activations: u64,
}

impl PolicyCounts {
    /// Misses among the accesses, 0 to 1; 0 of none.
    pub fn miss_ratio(&self) -> f64 {
        if self.accesses == 0 { 0.0 } else { self.misses as f64 / self.accesses as f64 }
    }
}
