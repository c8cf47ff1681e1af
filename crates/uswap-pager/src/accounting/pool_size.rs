//! How much of the budget is compressed pool, and how much is left to resident pages.
//!
//! A page of memory that is given to the pool holds `ratio` pages, each of which would otherwise
//! cost a device read. Since it is taken from the resident pages, one more page costs a
//! decompression. So with
//!
//! * `d_device`, faults in the last period for each device slot that holds compressible pages, and
//!   `d_pool`, faults for each page in the pool,
//! * `d_near`, faults on recently evicted pages that do not compress, for each additional page of
//!   memory that would have kept them resident,
//! * `c_device` and `c_pool`, the cost of such a fault (the medians of the fault latencies),
//!
//! the pool is worth more memory while `ratio * d_device * (c_device - c_pool)` exceeds
//! `d_pool * c_pool + d_near * c_device`, and less while it is the other way round. The pool's
//! share moves in small steps towards the point where both are equal, within its limits, and in
//! larger steps while they are far apart. It stays while they differ by less than a quarter, or
//! while there are too few faults to judge by. Memory that is touched at random and compresses ends
//! with a large pool (nearly all of it fits in RAM in some form). A small hot set beside much cold
//! memory ends with a small pool, and so does a hot set that does not compress: no pool saves such
//! pages from the device.
//!
//! If the estimate is wrong (the densities are averages, and the pages that move next are colder
//! than average), the faults of the next period show it and the share turns round; a step is so
//! small that little is lost.
//!
//! While next to nothing lies on devices the share stays: the cost of a fault there is not known,
//! and the pool takes no more memory than it needs. The share begins at two thirds, in which memory
//! that compresses to a third has room for nearly twice the budget: pages that spill to a device
//! before anything is known would have to be read back.
//!
//! While processes take turns (`load_control/mod.rs`), the memory that the running processes lack
//! is known, and goes before the needs of the pool: a loop that lacks little memory misses as often
//! per page as one that lacks much, and not at all once it fits. If the pool can give the memory
//! that they lack, and they have lacked it for half a second, the pool gives it; and the pool takes
//! no more than they leave.
//!
//! The estimate does not see processor time. A decompression that delays no other process costs its
//! latency; where many processes wait for processors it costs more than that.
//!
//! Where most of the budget is memory that cannot be managed (thread stacks), the pool takes at
//! most half of the rest.
//!
//! A percentage that the user sets stays; with a limit that the user sets (`auto:40`) the share
//! never exceeds it.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::accounting::pool_share::PoolShare;

/// Interval between two evaluations.
const PERIOD: Duration = Duration::from_millis(100);
/// Smallest share and first share, in percent of the budget, where the user's limit allows them.
const MIN: f64 = 20.0;
const BEGIN: f64 = 65.0;
/// Smallest share, in percent, while most faults are on pages that do not compress.
const MIN_BESIDE_POOR: f64 = 5.0;
/// Largest share, in percent, beside much memory that cannot be managed.
const HALF: f64 = 50.0;
/// One step, in percent of the budget, and the number of steps at once where gain and loss differ
/// by more than the factor `FAR`.
const STEP: f64 = 2.0;
const FAR: f64 = 3.0;
const STRIDE: f64 = 3.0;
/// Faults in a period from which on it is evaluated.
const ENOUGH: u64 = 50;
/// Periods for which the running processes must have lacked memory before the pool gives any: when
/// a process grows, load control soon suspends another one, and pages written to a device meanwhile
/// would have to be read again.
const LACKING: u32 = 5;
/// Next to nothing lies on devices while they hold at most one page for this many in the pool:
/// those that do not compress.
const HARDLY_ANY: u64 = 64;
/// Gain and loss that differ by less than this factor are equal.
const MARGIN: f64 = 1.25;

/// The figures at one time. Faults count from the beginning of the run.
#[derive(Clone, Copy, Default, Debug)]
pub struct PoolFigures {
    /// Faults that were answered from the pool, from devices with pages that compress, and from
    /// devices with pages that do not.
    pub faults: [u64; 3],
    /// Pages that lie in each of these three places.
    pub pages: [u64; 3],
    /// Nanoseconds that a fault takes when it is answered from the pool, and from a device.
    pub costs: [u64; 2],
    /// Faults on pages that do not compress and that `beyond` more pages of memory would have kept
    /// resident.
    pub near: u64,
    /// See `near`.
    pub beyond: u64,
    /// Memory that the pool takes, in pages.
    pub pool_memory: u64,
    /// The budget, in pages.
    pub budget: i64,
    /// While processes take turns: pages that the running processes leave free, or (negative) lack.
    pub spare: Option<i64>,
}

/// The evaluation of the pool's share of the budget.
#[derive(Debug)]
pub struct PoolSizer {
    percent: f64,
    fixed: bool,
    least: f64,
    most: f64,
    before: [u64; 3],
    near_before: u64,
    judged: Instant,
    /// Periods for which the running processes have lacked memory.
    lacking: u32,
}

impl PoolSizer {
    /// Begins with a percentage that the user has set, or with one that follows from the cost of
    /// faults.
    pub fn new(asked: PoolShare) -> Self {
        let (percent, most, fixed) = match asked {
            PoolShare::Fixed(percent) => (percent, percent, true),
            PoolShare::Adaptive(most) => (BEGIN.min(most), most, false),
        };
        Self {
            percent,
            fixed,
            least: MIN.min(most),
            most,
            before: [0; 3],
            near_before: 0,
            judged: Instant::now(),
            lacking: 0,
        }
    }

    /// The share now, in percent.
    pub fn percent(&self) -> f64 {
        self.percent
    }

    /// The share, in percent, of the budget without the memory that cannot be managed; that memory
    /// takes the fraction `fixed` of the budget. Where it takes most of the budget, the rest is so
    /// small that half of it must stay for resident pages. A share that the user has set is kept in
    /// this case too.
    pub fn percent_beside(&self, fixed: f64) -> f64 {
        if self.fixed || fixed < 0.5 { self.percent } else { self.percent.min(HALF) }
    }

    /// Whether it is time for [`PoolSizer::judge`].
    pub fn is_due(&self) -> bool {
        !self.fixed && self.judged.elapsed() >= PERIOD
    }

    /// Evaluates a period and moves the share by a step where that pays.
    pub fn judge(&mut self, now: PoolFigures) {
        self.judged = Instant::now();
        let percent = |pages: i64| 100.0 * pages as f64 / now.budget.max(1) as f64;
        let spare = now.spare.map_or(f64::INFINITY, percent);
        self.lacking = if spare < 0.0 { self.lacking + 1 } else { 0 };
        if self.lacking >= LACKING && self.percent + spare >= self.least {
            self.percent = (self.percent - STRIDE * STEP).max(self.least);
            return;
        }
        let faults = [0, 1, 2].map(|tier| now.faults[tier].saturating_sub(self.before[tier]));
        let all: u64 = faults.iter().sum();
        if all < ENOUGH {
            return;
        }
        self.before = now.faults;
        let near = now.near.saturating_sub(self.near_before) as f64;
        self.near_before = now.near;
        if now.pages[1] + now.pages[2] <= now.pages[0] / HARDLY_ANY {
            return;
        }
        let density = |tier: usize| faults[tier] as f64 / now.pages[tier].max(1) as f64;
        let [pool_cost, device_cost] = now.costs.map(|cost| cost as f64);
        let ratio = now.pages[0] as f64 / now.pool_memory.max(1) as f64;
        let gain = ratio * density(1) * (device_cost - pool_cost).max(0.0);
        let loss = density(0) * pool_cost + near * device_cost / now.beyond.max(1) as f64;
        let least = if faults[2] * 2 > all { MIN_BESIDE_POOR.min(self.least) } else { self.least };
        let step = |more: f64, less: f64| if more > FAR * less { STRIDE * STEP } else { STEP };
        if gain > MARGIN * loss {
            self.percent = (self.percent + step(gain, loss).min(spare.max(0.0))).min(self.most);
        } else if loss > MARGIN * gain {
            self.percent = (self.percent - step(loss, gain)).max(least.min(self.percent));
        }
    }
}

/// The share as it was set and as it is now, for reports.
#[derive(Debug)]
pub struct ShareTold {
    asked: PoolShare,
    hundredths: AtomicU32,
}

impl ShareTold {
    /// The share at the beginning of a run.
    pub fn new(asked: PoolShare) -> Self {
        let told = Self { asked, hundredths: AtomicU32::new(0) };
        told.tell(PoolSizer::new(asked).percent());
        told
    }

    /// Publishes the share now, in percent.
    pub fn tell(&self, percent: f64) {
        self.hundredths.store((percent * 100.0) as u32, Relaxed);
    }

    /// The setting of the user.
    pub fn asked(&self) -> PoolShare {
        self.asked
    }

    /// The share now, in percent of the budget.
    pub fn now(&self) -> f64 {
        f64::from(self.hundredths.load(Relaxed)) / 100.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: f64 = PoolShare::MAX;
    const AUTO: PoolShare = PoolShare::Adaptive(MAX);

    const COSTS: [u64; 2] = [20_000, 160_000];

    fn figures(faults: [u64; 2], pages: [u64; 2], pool_memory: u64) -> PoolFigures {
        let [pool, device] = faults;
        let (faults, pages) = ([pool, device, 0], [pages[0], pages[1], 0]);
        PoolFigures { faults, pages, costs: COSTS, pool_memory, budget: 10_000, ..PoolFigures::default() }
    }

    /// A program with `hot` pages touched `heat` times as often as the others of `all`, in a budget
    /// of `budget` pages that compress by `ratio`; the pages that are touched most often are
    /// resident, the next are in the pool. Returns the share after some time.
    fn settles(all: f64, hot: f64, heat: f64, budget: f64, ratio: f64) -> f64 {
        let mut share = PoolSizer::new(AUTO);
        let mut faults = [0.0f64; 2];
        for _ in 0..200 {
            let pool_memory = budget * share.percent() / 100.0;
            let resident = budget - pool_memory;
            let pool = (pool_memory * ratio).min(all - resident);
            let device = (all - resident - pool).max(0.0);
            // The hottest are resident, the next in the pool.
            let weight = |from: f64, to: f64| heat * (to.min(hot) - from.min(hot)) + (to.max(hot) - from.max(hot));
            let total = weight(0.0, all);
            faults[0] += 10_000.0 * weight(resident, resident + pool) / total;
            faults[1] += 10_000.0 * weight(resident + pool, all) / total;
            share.judge(figures(faults.map(|n| n as u64), [pool as u64, device as u64], (pool / ratio) as u64));
        }
        share.percent()
    }

    #[test]
    fn random_touches_of_memory_that_compresses_want_a_large_pool() {
        assert!(settles(100_000.0, 0.0, 1.0, 40_000.0, 2.5) > 75.0);
    }

    #[test]
    fn a_hot_set_that_fits_beside_cold_memory_wants_a_small_one() {
        assert!(settles(100_000.0, 30_000.0, 100_000.0, 40_000.0, 2.5) < 30.0);
    }

    #[test]
    fn a_given_share_stays_and_a_quiet_period_changes_nothing() {
        let share = PoolSizer::new(PoolShare::Fixed(35.0));
        assert!(!share.is_due() && share.percent() == 35.0);
        let mut share = PoolSizer::new(AUTO);
        share.judge(figures([10, 10], [100, 100], 50));
        assert_eq!(share.percent(), BEGIN);
    }

    #[test]
    fn the_users_limit_bounds_a_share_that_moves() {
        for (most, begin, least) in [(40.0, 40.0, MIN), (80.0, BEGIN, MIN), (10.0, 10.0, 10.0)] {
            let mut share = PoolSizer::new(PoolShare::Adaptive(most));
            assert_eq!(share.percent(), begin);
            for round in 1..100 {
                share.judge(figures([1000 * round, 0], [10, 10], 5));
            }
            assert_eq!(share.percent(), least);
            for round in 1..100 {
                share.judge(figures([99_000, 1000 * round], [10, 10], 5));
                assert!(share.percent() <= most);
            }
            assert_eq!(share.percent(), most);
        }
    }

    #[test]
    fn while_nothing_lies_on_devices_it_stays() {
        let mut share = PoolSizer::new(AUTO);
        for round in 1..100 {
            share.judge(figures([1000 * round, 0], [1000, 0], 500));
        }
        assert_eq!(share.percent(), BEGIN);
    }

    #[test]
    fn beside_much_that_cannot_be_managed_it_is_half_at_most() {
        assert_eq!(PoolSizer::new(AUTO).percent_beside(0.4), BEGIN);
        assert_eq!(PoolSizer::new(AUTO).percent_beside(0.6), HALF);
        assert_eq!(PoolSizer::new(PoolShare::Fixed(70.0)).percent_beside(0.6), 70.0);
    }

    /// Random touches favour a large pool; memory that the running processes lack goes first, if
    /// the pool can give it.
    #[test]
    fn who_has_a_turn_goes_before_the_pool() {
        let mut share = PoolSizer::new(AUTO);
        let mut judged = |round: u64, spare| {
            let mut now = figures([0, 1000 * round], [10, 10], 5);
            now.spare = Some(spare);
            share.judge(now);
            share.percent()
        };
        assert_eq!(judged(1, 100), BEGIN + 1.0, "no more than is left");
        (2..1 + u64::from(LACKING))
            .for_each(|round| assert_eq!(judged(round, -500), BEGIN + 1.0, "it may be over soon"));
        assert_eq!(judged(10, -500), BEGIN + 1.0 - STEP * STRIDE);
        assert!(judged(11, 0) < BEGIN);
        (12..20).for_each(|round| assert!(judged(round, -9000) <= BEGIN, "that much the pool does not have"));
        assert!(judged(20, 5000) > BEGIN - STEP * STRIDE + 1.0);
        (21..100).for_each(|round| assert!(judged(round, -1) >= MIN));
    }

    #[test]
    fn a_page_that_does_not_compress_says_nothing_of_devices() {
        let mut share = PoolSizer::new(AUTO);
        (1..50).for_each(|round| share.judge(figures([1000 * round, 0], [20_000, 7], 6000)));
        assert_eq!(share.percent(), BEGIN);
        (50..60).for_each(|round| share.judge(figures([1000 * round, 0], [20_000, 700], 6000)));
        assert!(share.percent() < BEGIN, "seven hundred that nobody wants do");
    }

    /// numpy sorts numbers that lz4 cannot compress: each fault on them waits for the device, and
    /// no pool helps.
    #[test]
    fn what_does_not_compress_wants_memory_and_no_pool() {
        let poor = |round: u64, near: u64| PoolFigures {
            faults: [10 * round, 0, 1000 * round],
            pages: [10_000, 5000, 5000],
            near: near * round,
            beyond: 500,
            ..figures([0, 0], [0, 0], 5000)
        };
        let mut share = PoolSizer::new(AUTO);
        (1..100).for_each(|round| share.judge(poor(round, 900)));
        assert_eq!(share.percent(), MIN_BESIDE_POOR);
        // Where more memory would not have kept the pages resident, taking it from the pool would
        // not help either.
        let mut share = PoolSizer::new(AUTO);
        for round in 1..100 {
            let mut now = poor(round, 0);
            (now.faults[0], now.faults[1]) = (500 * round, 18 * round);
            share.judge(now);
        }
        assert_eq!(share.percent(), BEGIN);
        // Once compressible pages fault again, the smallest share is the former one, and the share
        // does not fall further.
        let mut share = PoolSizer::new(AUTO);
        (1..100).for_each(|round| share.judge(poor(round, 900)));
        let mut now = poor(100, 900);
        now.faults[0] += 5000;
        share.judge(now);
        assert_eq!(share.percent(), MIN_BESIDE_POOR);
    }

    #[test]
    fn bounds_are_kept() {
        let mut share = PoolSizer::new(AUTO);
        for round in 1..100 {
            share.judge(figures([0, 1000 * round], [10, 10], 5));
        }
        assert_eq!(share.percent(), MAX);
        for round in 1..100 {
            share.judge(figures([1000 * round, 99_000], [10, 10], 5));
        }
        assert_eq!(share.percent(), MIN);
    }
}
