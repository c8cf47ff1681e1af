//! How much of the budget is compressed pool, and how much is left to pages as they are.
//!
//! A page of memory given to the pool holds `ratio` pages of which each would otherwise cost a
//! device read; taken from the resident pages it makes one page more cost a decompression. So with
//!
//! * `d_device`, faults per slot of the devices that holds pages that compress, and `d_pool`,
//!   faults per page in the pool, in the last period,
//! * `d_near`, faults on pages that do not compress and were evicted lately, per page of memory
//!   more that would have kept them,
//! * `c_device` and `c_pool`, what such a fault costs (the medians of the fault latencies),
//!
//! the pool is worth more memory while `ratio * d_device * (c_device - c_pool)` exceeds
//! `d_pool * c_pool + d_near * c_device`, and less while it is the other way round. The share goes
//! in small steps towards where both are equal, within its limits, in larger ones while they are
//! far apart; it stays while they differ by less than a quarter, or while too little happens to
//! judge by. Memory that is touched at random and compresses ends with a large pool (nearly
//! everything fits in RAM somehow); a small hot set above much cold memory ends with a small one,
//! and so does a hot set that does not compress: no pool keeps such pages from the device.
//!
//! If the guess is wrong (the densities are averages, and what is moved next is colder than
//! average) the next period sees it in the faults, and the share turns round; a step is small
//! enough that little is lost.
//!
//! While as much as nothing lies on devices it stays: nobody can say what a fault there would cost,
//! and the pool takes no more than it needs. It begins with two thirds, in which memory that
//! compresses to a third has room for nearly twice the budget: what spills before anything is known
//! must be read back.
//!
//! While processes take turns (`load_control/mod.rs`), what those who are in need is known, and
//! goes first: a loop that lacks little misses as often per page as one that lacks much, and not at
//! all once it fits. If the pool can give what they lack, and they have lacked it for half a
//! second, it does; and it takes no more than they leave.
//!
//! What is not seen: processor time. A decompression that delays nobody else costs its latency;
//! where many processes wait for processors it costs more than that.
//!
//! Where most of the budget is memory that cannot be managed (thread stacks), it is half of the
//! rest at most.
//!
//! A share that the user gave stays; a limit that the user gave for it (`auto:40`) is the most that
//! it becomes.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::accounting::pool_share::PoolShare;

/// How often it is judged.
const PERIOD: Duration = Duration::from_millis(100);
/// Least of the budget, and where it begins, in percent, where the user's limit allows it.
const MIN: f64 = 20.0;
const BEGIN: f64 = 65.0;
/// Least while most faults are on pages that do not compress.
const MIN_BESIDE_POOR: f64 = 5.0;
/// The most beside much memory that cannot be managed.
const HALF: f64 = 50.0;
/// One step, in percent of the budget, and how many at once where gain and loss differ by more than
/// `FAR` times.
const STEP: f64 = 2.0;
const FAR: f64 = 3.0;
const STRIDE: f64 = 3.0;
/// Faults in a period that are enough to judge by.
const ENOUGH: u64 = 50;
/// What those who are in lack must be lacking for so many periods: somebody who grows has one of
/// them go back soon, and what is written to a device meanwhile must be read again.
const LACKING: u32 = 5;
/// As much as nothing lies on devices where it is no more than one page for so many in the pool:
/// those that do not compress.
const HARDLY_ANY: u64 = 64;
/// Gain and loss that differ by less than this factor are equal.
const MARGIN: f64 = 1.25;

/// What is known at one time. Faults count from the beginning of the run.
#[derive(Clone, Copy, Default, Debug)]
pub struct PoolFigures {
    /// Faults that were answered from the pool, from devices with pages that compress, and with
    /// such as do not.
    pub faults: [u64; 3],
    /// Such pages there.
    pub pages: [u64; 3],
    /// Nanoseconds that a fault takes that is answered from the pool, or from a device.
    pub costs: [u64; 2],
    /// Faults on pages that do not compress and that `beyond` pages more of memory would have kept.
    pub near: u64,
    /// See there.
    pub beyond: u64,
    /// Memory that the pool takes, in pages.
    pub pool_memory: u64,
    /// The budget, in pages.
    pub budget: i64,
    /// While processes take turns: pages that are left beside those who are in, or that they lack.
    pub spare: Option<i64>,
}

/// The pool's share of the budget.
#[derive(Debug)]
pub struct PoolSizer {
    percent: f64,
    fixed: bool,
    least: f64,
    most: f64,
    before: [u64; 3],
    near_before: u64,
    judged: Instant,
    /// For how many periods those who are in have lacked memory.
    lacking: u32,
}

impl PoolSizer {
    /// A share that the user has given, or one that follows from what faults cost.
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

    /// The share now.
    pub fn percent(&self) -> f64 {
        self.percent
    }

    /// The share of what is left beside memory that cannot be managed, which takes this part of the
    /// budget. Where that is most of it, what is left is so little that half must stay for pages as
    /// they are; also then a share that was given is kept.
    pub fn percent_beside(&self, fixed: f64) -> f64 {
        if self.fixed || fixed < 0.5 { self.percent } else { self.percent.min(HALF) }
    }

    /// Whether it is time for [`PoolSizer::judge`].
    pub fn is_due(&self) -> bool {
        !self.fixed && self.judged.elapsed() >= PERIOD
    }

    /// Takes a step, if there is reason for one.
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

/// The share as it was asked for and as it is now, for whoever asks.
#[derive(Debug)]
pub struct ShareTold {
    asked: PoolShare,
    hundredths: AtomicU32,
}

impl ShareTold {
    /// As it begins.
    pub fn new(asked: PoolShare) -> Self {
        let told = Self { asked, hundredths: AtomicU32::new(0) };
        told.tell(PoolSizer::new(asked).percent());
        told
    }

    /// It is this now, in percent.
    pub fn tell(&self, percent: f64) {
        self.hundredths.store((percent * 100.0) as u32, Relaxed);
    }

    /// As it was asked for.
    pub fn asked(&self) -> PoolShare {
        self.asked
    }

    /// In percent of the budget.
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
    /// of `budget` pages that compress by `ratio`; every page has its place by how often it is
    /// touched. Returns the share after some time.
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

    /// Random touches want a large pool; those who are in want what they lack first, if the pool
    /// can give it.
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

    /// numpy sorts numbers of which lz4 makes nothing: each fault on them waits for the device, and
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
        // Where memory would not have kept them, nor would it help to take it from the pool.
        let mut share = PoolSizer::new(AUTO);
        for round in 1..100 {
            let mut now = poor(round, 0);
            (now.faults[0], now.faults[1]) = (500 * round, 18 * round);
            share.judge(now);
        }
        assert_eq!(share.percent(), BEGIN);
        // Once others fault again its least is what it was before, and it does not fall further.
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
