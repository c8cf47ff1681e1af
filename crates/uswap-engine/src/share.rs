//! How much of the budget is compressed pool, and how much is left to pages as they are.
//!
//! A page of memory given to the pool holds `ratio` pages of which each would otherwise cost a device read; taken from
//! the resident pages it makes one page more cost a decompression. So with
//!
//! * `d_device`, faults per page on the devices, and `d_pool`, faults per page in the pool, in the last period,
//! * `c_device` and `c_pool`, what such a fault costs,
//!
//! the pool is worth more memory while `ratio * d_device * (c_device - c_pool)` exceeds `d_pool * c_pool`, and less while
//! it is the other way round; within a quarter of each other they are equal. Memory that is touched at random and compresses ends with a
//! large pool (nearly everything fits in RAM somehow); a small hot set above much cold memory ends with a small one.
//!
//! **What a fault costs.** A decompression is work of a processor. A device read is mostly waiting, and waiting
//! costs nothing where another thread runs meanwhile. So of the time that a device takes, beyond the work, only a part counts: all of
//! it while a quarter of the processors' time is idle, nothing where they never are (a parallel build).
//!
//! **Steps.** The share grows only while the pool is at its limit, in larger steps while gain and loss are far apart. It shrinks from what the pool has,
//! by little at first and by twice as much each time in a row. For what goes first then is the coldest of the pool, and how cold that is nobody knows
//! before it lies on a device: the first step is a question. If the answer is faults, the share grows again, and the next question
//! comes after twice the time (6 seconds at most); if shrinking turns out right, sooner.
//!
//! **If the guess is wrong** (densities are averages, and latencies are medians of the whole run) the next period sees it in the
//! faults, and the share turns round; a step is small enough that little is lost.
//!
//! A share that the user gave is the most that the pool may have; one that is said to be fixed stays as it is.

use std::time::{Duration, Instant};

/// How often it is judged.
const PERIOD: Duration = Duration::from_millis(100);
/// Least and most of the budget, and where it begins, in percent.
const LEAST: f64 = 20.0;
const MOST: f64 = 90.0;
const BEGIN: f64 = 50.0;
/// A step upwards in percent of the budget, and the one where gain and loss differ by more than `FAR` times.
const STEP: f64 = 2.0;
const FAR: f64 = 3.0;
const STRIDE: f64 = 6.0;
/// The first step downwards.
const QUESTION: f64 = 0.5;
/// Periods between growth and the next question, at least and at most.
const PATIENCE: (u32, u32) = (2, 64);
/// Faults in a period that are enough to judge by.
const ENOUGH: u64 = 50;
/// Gain and loss that differ by less than this factor are equal.
const MARGIN: f64 = 1.25;
/// The part of its limit from which on a pool is at it: writeback stops at 90 %.
const FULL: f64 = 0.85;
/// Nanoseconds that a fault takes before it is read and after its page is there: the changes to the owner and back.
const PASSAGE: f64 = 8_000.0;
/// Nanoseconds of a processor that a page from a device takes more than one from the pool: asking, the interrupt, and the
/// write that made room (measured with perf on runs at random: 20 to 30).
const DEVICE_WORK: f64 = 25_000.0;
/// The idle part of the processors' time from which on all waiting counts.
const IDLE: f64 = 0.25;

/// What is known at one time. Faults count from the beginning of the run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Figures {
    /// Faults that were answered from the pool, and from devices.
    pub faults: [u64; 2],
    /// Pages there.
    pub pages: [u64; 2],
    /// Nanoseconds from the reading of such a fault to its page.
    pub latencies: [u64; 2],
    /// Memory that the pool takes, and may take, in pages.
    pub pool: [u64; 2],
    /// The part of the last period in which processors were idle, 0 to 1.
    pub idle: f64,
}

impl Figures {
    /// What a fault costs in each tier.
    fn costs(&self) -> [f64; 2] {
        let [pool, device] = self.latencies.map(|latency| latency as f64 + PASSAGE);
        let work = pool + DEVICE_WORK;
        let counts = (self.idle / IDLE).clamp(0.0, 1.0);
        [pool, work + counts * (device - work).max(0.0)]
    }

    /// What a little more memory for the pool gains, and loses, in a period with these faults.
    fn gain_and_loss(&self, faults: [u64; 2]) -> (f64, f64) {
        let density = |tier: usize| faults[tier] as f64 / self.pages[tier].max(1) as f64;
        let [pool_cost, device_cost] = self.costs();
        let ratio = self.pages[0] as f64 / self.pool[0].max(1) as f64;
        (ratio * density(1) * (device_cost - pool_cost), density(0) * pool_cost)
    }

    fn is_full(&self) -> bool {
        self.pool[0] as f64 >= FULL * self.pool[1] as f64
    }
}

/// What the user wants of the share.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PoolShare {
    /// It follows from what faults cost, up to so many percent of the budget.
    UpTo(f64),
    /// It stays at so many percent.
    Fixed(f64),
}

impl Default for PoolShare {
    fn default() -> Self {
        Self::UpTo(MOST)
    }
}

/// The pool's share of the budget.
#[derive(Debug)]
pub struct Share {
    percent: f64,
    wanted: PoolShare,
    before: [u64; 2],
    judged: Instant,
    /// The next step downwards, in percent.
    down: f64,
    /// Periods until the next question, and after the next growth.
    pause: u32,
    patience: u32,
}

impl Share {
    /// The share to begin with.
    pub fn new(wanted: PoolShare) -> Self {
        let percent = match wanted {
            PoolShare::UpTo(most) => BEGIN.min(most),
            PoolShare::Fixed(percent) => percent,
        };
        let (down, pause, patience) = (QUESTION, 0, PATIENCE.0);
        Self { percent, wanted, before: [0; 2], judged: Instant::now(), down, pause, patience }
    }

    /// The share now.
    pub fn percent(&self) -> f64 {
        self.percent
    }

    /// Whether it is time for [`Share::judge`].
    pub fn is_due(&self) -> bool {
        matches!(self.wanted, PoolShare::UpTo(_)) && self.judged.elapsed() >= PERIOD
    }

    /// Takes a step, if there is reason for one.
    pub fn judge(&mut self, now: Figures) {
        self.judged = Instant::now();
        self.pause = self.pause.saturating_sub(1);
        let PoolShare::UpTo(most) = self.wanted else { return };
        let faults = [0, 1].map(|tier| now.faults[tier].saturating_sub(self.before[tier]));
        if faults[0] + faults[1] < ENOUGH {
            return;
        }
        self.before = now.faults;
        let (gain, loss) = now.gain_and_loss(faults);
        if gain > MARGIN * loss {
            if now.is_full() {
                self.grow(if gain > FAR * loss { STRIDE } else { STEP }, most);
            }
        } else if loss > MARGIN * gain && self.pause == 0 {
            let has = self.percent * now.pool[0] as f64 / (FULL * now.pool[1].max(1) as f64);
            self.shrink(has, most);
        }
    }

    fn grow(&mut self, step: f64, most: f64) {
        if self.down > QUESTION {
            // The last question, or several, was answered by faults.
            self.patience = (2 * self.patience).min(PATIENCE.1);
        }
        self.percent = (self.percent + step).min(most);
        (self.down, self.pause) = (QUESTION, self.patience);
    }

    fn shrink(&mut self, has: f64, most: f64) {
        self.percent = (self.percent.min(has) - self.down).max(LEAST.min(most));
        self.down = (2.0 * self.down).min(STRIDE);
        if self.down == STRIDE {
            self.patience = PATIENCE.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCIES: [u64; 2] = [8_000, 130_000];

    /// A program with `hot` pages touched `heat` times as often as the others of `all`, in a budget of `budget` pages
    /// that compress by `ratio`; every page has its place by how often it is touched.
    struct Program {
        all: f64,
        hot: f64,
        heat: f64,
        budget: f64,
        ratio: f64,
        idle: f64,
    }

    const AT_RANDOM: Program = Program { all: 100_000.0, hot: 0.0, heat: 1.0, budget: 50_000.0, ratio: 2.9, idle: 0.5 };
    const HOT_AND_COLD: Program =
        Program { all: 100_000.0, hot: 30_000.0, heat: 10_000.0, budget: 40_000.0, ratio: 2.5, idle: 0.5 };

    impl Program {
        /// Lets periods pass. Returns the shares.
        fn run(&self, share: &mut Share, periods: usize) -> Vec<f64> {
            let mut faults = [0.0f64; 2];
            let mut shares = Vec::new();
            for _ in 0..periods {
                let limit = self.budget * share.percent() / 100.0;
                // The least pool beside which all the rest is resident: no more is evicted than has to be.
                let needed = (self.all - self.budget) / (self.ratio - 1.0);
                let memory = limit.min(needed);
                let resident = self.budget - memory;
                let pool = (memory * self.ratio).min(self.all - resident);
                let device = (self.all - resident - pool).max(0.0);
                let weight = |from: f64, to: f64| {
                    self.heat * (to.min(self.hot) - from.min(self.hot)) + (to.max(self.hot) - from.max(self.hot))
                };
                let total = weight(0.0, self.all);
                faults[0] += 10_000.0 * weight(resident, resident + pool) / total;
                faults[1] += 10_000.0 * weight(resident + pool, self.all) / total;
                share.judge(Figures {
                    faults: faults.map(|n| n as u64),
                    pages: [pool as u64, device as u64],
                    latencies: LATENCIES,
                    pool: [memory as u64, limit as u64],
                    idle: self.idle,
                });
                shares.push(share.percent());
            }
            shares
        }

        fn settles(&self) -> f64 {
            *self.run(&mut Share::new(PoolShare::default()), 300).last().expect("some")
        }
    }

    #[test]
    fn random_touches_of_memory_that_compresses_want_all_of_it_in_ram() {
        let mut share = Share::new(PoolShare::default());
        let shares = AT_RANDOM.run(&mut share, 400);
        let needed = 100.0 / 1.9;
        assert!(shares[8] > needed, "it grows within a second: {:?}", &shares[..10]);
        let short = |shares: &[f64]| shares.iter().filter(|share| **share < needed - 0.1).count();
        assert!(short(&shares[100..]) < 15, "questions become rare: {} of 300 periods", short(&shares[100..]));
        let lowest = shares[100..].iter().copied().fold(f64::INFINITY, f64::min);
        assert!(lowest > needed - 1.5, "and are small: {lowest}");
    }

    #[test]
    fn a_hot_set_that_fits_beside_cold_memory_wants_a_small_pool() {
        let settled = HOT_AND_COLD.settles();
        assert!(settled < 30.0, "{settled}");
    }

    /// The same program where other threads use the time of waits: more of its faults may go to the device.
    #[test]
    fn busy_processors_want_a_smaller_pool_than_idle_ones() {
        let warm = Program { all: 100_000.0, hot: 30_000.0, heat: 12.0, budget: 45_000.0, ratio: 2.0, idle: 0.5 };
        let (idle, busy) = (warm.settles(), Program { idle: 0.0, ..warm }.settles());
        assert!(busy < idle - 10.0, "{busy} and {idle}");
    }

    #[test]
    fn what_is_given_is_the_most_and_what_is_fixed_stays() {
        let mut share = Share::new(PoolShare::UpTo(40.0));
        assert!(AT_RANDOM.run(&mut share, 100).iter().all(|percent| *percent <= 40.0));
        let mut share = Share::new(PoolShare::UpTo(10.0));
        assert!(
            HOT_AND_COLD.run(&mut share, 100).iter().all(|percent| *percent == 10.0),
            "below the least nothing moves"
        );
        let mut share = Share::new(PoolShare::Fixed(35.0));
        assert!(!share.is_due() && AT_RANDOM.run(&mut share, 100).iter().all(|percent| *percent == 35.0));
    }

    #[test]
    fn bounds_are_kept_and_a_quiet_period_changes_nothing() {
        let quiet = Figures { faults: [10, 10], pages: [100, 100], latencies: LATENCIES, pool: [50, 50], idle: 1.0 };
        let mut share = Share::new(PoolShare::default());
        share.judge(quiet);
        assert_eq!(share.percent(), BEGIN);
        for round in 1..100 {
            share.judge(Figures { faults: [0, 1000 * round], pages: [10, 10], ..quiet });
        }
        assert_eq!(share.percent(), MOST);
        for round in 1..200 {
            share.judge(Figures { faults: [1000 * round, 99_000], pages: [10, 10], ..quiet });
        }
        assert_eq!(share.percent(), LEAST);
    }

    /// A pool that is not full needs no larger limit.
    #[test]
    fn it_grows_only_when_the_pool_is_full() {
        let mut share = Share::new(PoolShare::default());
        let roomy = Figures { faults: [0, 9000], pages: [100, 100], latencies: LATENCIES, pool: [50, 100], idle: 1.0 };
        share.judge(roomy);
        assert_eq!(share.percent(), BEGIN);
        share.judge(Figures { faults: [0, 20_000], pool: [99, 100], ..roomy });
        assert!(share.percent() > BEGIN);
    }
}
