//! The age test: finds out whether a page is in use. It is a trait, because kernels differ in the
//! accesses that they report.
//!
//! The pages that are next to be evicted are under *test*: a page that is touched there is in use
//! and becomes active; a page that is not touched until the end of the test is evicted. The test is
//! the same for every kernel, but the cost of a touch, and so the number of pages that should be
//! under test, differ:
//!
//! - [`Staging`](crate::reclaim::staging::Staging), *soft faults*: a page under test has left the
//!   program and lies in RAM. A touch is a fault that is answered by mapping the page again. This
//!   is for kernels that report no accesses to programs: all kernels so far.
//! - [`AccessBits`]: a page under test stays mapped, and the kernel notes a touch, for which the
//!   pager asks when the page is to be evicted. The touch costs nothing. This is for kernels whose
//!   userfaultfd traps or notes accesses to present pages (UFFDIO_REGISTER_MODE_RWP with
//!   PAGEMAP_SCAN); the engine does not drive it yet; the lab does (`uswap-bits`), and shows what
//!   it would gain.

/// The cost of touches compared with the cost of refaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cost {
    /// Touches cost so little that more of them are acceptable.
    #[default]
    Low,
    /// Touches cost as much as they may.
    Fair,
    /// Touches cost too much.
    High,
}

/// A test of age, and the number of pages under test.
pub trait AgeTest: Clone + std::fmt::Debug + Default {
    /// The name that `doctor` prints.
    const NAME: &'static str;

    /// A touch is noted without a fault.
    const IS_SILENT: bool;

    /// Number of pages that should be under test while `resident` pages are resident.
    fn target(&self, resident: u64) -> u64;

    /// A page under test was touched.
    fn touched(&mut self);

    /// A page that had been evicted came back.
    fn refaulted(&mut self);

    /// Reports the cost of touches compared with refaults, as recently measured.
    fn touches_cost(&mut self, cost: Cost);

    /// A page has passed the test untouched and is evicted; `resident` pages are resident. `aged`:
    /// the pages under test were chosen by age, and not at random.
    fn evicted(&mut self, resident: u64, aged: bool);
}

/// The test that costs nothing: a quarter of the pages are under test at any time, so that the rest
/// of the active list is nearly in the order of use.
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
