//! How it is told whether a page is in use: behind a trait, because kernels differ in what they
//! tell.
//!
//! The pages that are next to go are under *test*: whoever is touched there is in use, and becomes
//! active; who passes it is evicted. The test is the same for every kernel; what a touch costs, and
//! so how many pages should be under test, is not:
//!
//! - [`Staging`](crate::reclaim::staging::Staging), *soft faults*: a page under test has left the
//!   program and lies in RAM. A touch is a fault that is answered by mapping it again. For kernels
//!   that tell programs nothing of accesses: all so far.
//! - [`AccessBits`]: a page under test stays mapped, and the kernel notes a touch, which is asked
//!   for when the page is to go. The touch costs nothing. This is for kernels whose userfaultfd
//!   traps or notes accesses to present pages (UFFDIO_REGISTER_MODE_RWP with PAGEMAP_SCAN); the
//!   engine does not drive it yet, the laboratory does (`uswap-bits`), and shows what it would
//!   bring.

/// What touches cost beside refaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cost {
    /// So little that there may be more.
    #[default]
    Low,
    /// As much as they may.
    Fair,
    /// More than that.
    High,
}

/// A test of age, and how many pages it has.
pub trait AgeTest: Clone + std::fmt::Debug + Default {
    /// What `doctor` calls it.
    const NAME: &'static str;

    /// A touch is noted without a fault.
    const IS_SILENT: bool;

    /// Pages that shall be under test beside so many resident ones.
    fn target(&self, resident: u64) -> u64;

    /// A page under test was touched.
    fn touched(&mut self);

    /// A page that had been evicted came back.
    fn refaulted(&mut self);

    /// What touches cost beside refaults, as it was measured lately.
    fn touches_cost(&mut self, cost: Cost);

    /// A page has passed the test untouched and goes; so many are resident. `aged`: what is under
    /// test was chosen by age, and not at random.
    fn evicted(&mut self, resident: u64, aged: bool);
}

/// The test that costs nothing: a quarter of the pages at any time, which makes the rest of the
/// active list as good as in the order of use.
#[derive(Clone, Copy, Debug, Default)]
pub struct AccessBits;

impl AgeTest for AccessBits {
    const NAME: &'static str = "access bits";
    const IS_SILENT: bool = true;

    fn target(&self, resident: u64) -> u64 {
        resident / 4
    }

    fn touched(&mut self) {}

    fn refaulted(&mut self) {}

    fn touches_cost(&mut self, _cost: Cost) {}

    fn evicted(&mut self, _resident: u64, _aged: bool) {}
}
