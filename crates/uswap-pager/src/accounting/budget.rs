//! The budget: how much memory the tree and the engine use, and when to take some back.
//!
//! The governor measures usage: it reads what the kernel counts for each process. Between two
//! measurements the pagers add the pages that they install and subtract those that they drop, and
//! the size of the pool is read directly. So the estimate is never older than the last page that
//! moved.
//!
//! Memory that is not registered yet grows unseen between two measurements. The amount that grew in
//! this way recently gives the *slack*: all marks are lowered by it, so that growth that is noticed
//! late still fits below the limit. The slack starts at the most that the threads of the machine
//! can touch, follows the measurements, and fades within a second when nothing grows unseen.
//!
//! ```text
//! 0 ......... activation ............ low ... high ...... hard . limit
//!   nothing     memory is registered   |        |           |
//!   happens                            |        |           faults wait for room
//!                                      |        reclaim starts
//!                                      reclaim stops
//! ```
//! Between hard and limit lie the slack and a quarter of the reserve (1/64 of the limit).

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst};
use std::time::Duration;

/// First touch of unregistered memory, per millisecond and thread, in pages (1.87 MiB, measured).
const GROWTH_PAGES: i64 = 480;
/// The fastest growth to be expected on a faster machine. It decides only when memory is measured
/// again, which costs little, and not how much room is left unused.
const FASTEST_GROWTH: i64 = 3 * GROWTH_PAGES;
/// Room, in pages, below which memory is urgently short.
pub const URGENT: i64 = 64;
/// Room, in pages, that must be free beside the reserve for memory to count as ample: 4 MiB.
pub const AMPLE: i64 = 1024;
/// Time to notice growth near the limit and to react to it, in milliseconds.
const REACTION: i64 = 4;
/// Every process is measured at least once in this many rounds.
const MAX_PATIENCE: i64 = 8;
/// Processes that are found and registered in a millisecond while others grow.
const REGISTERED_PER_MS: i64 = 2;

/// Time for which a program can grow before its agent gets a processor: at most one time slice of
/// the scheduler, in milliseconds.
const TURN: i64 = 4;
/// Processes for each processor that are no crowd yet: what they touch unseen the slack covers.
const FEW_PROCESSES: i64 = 4;
/// Programs for each processor that may start at the same time.
const CROWD: i64 = 16;

/// The marks below a limit, of a run or of a group. Everything is in pages.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// Usage that must not be exceeded.
    pub limit: i64,
    /// Twice the recent growth that was noticed only by a measurement.
    pub slack: i64,
    /// Processors that can touch new memory at the same time.
    pub threads: i64,
}

impl Marks {
    /// Usage above which memory gets registered while `processes` processes share the limit.
    pub fn activation(&self, processes: i64) -> i64 {
        // Growth of the processes while all of them are being registered.
        let crowd = self.threads * GROWTH_PAGES * (processes / REGISTERED_PER_MS);
        (self.limit - self.reserve() * 3 / 2 - self.most_slack() - crowd).max(self.limit / 4)
    }

    /// Usage above which programs wait for their agents before they begin: the memory that many
    /// programs touch in their first time slices, before the governor knows of them, would not fit.
    pub fn crowded(&self) -> i64 {
        self.limit - self.threads * CROWD * GROWTH_PAGES * TURN
    }

    /// Usage above which reclaim starts.
    pub fn high(&self) -> i64 {
        self.limit - self.reserve() - self.slack()
    }

    /// Usage at which reclaim stops.
    pub fn low(&self) -> i64 {
        self.high() - self.reserve() / 2
    }

    /// Usage above which faults wait for room.
    pub fn hard(&self) -> i64 {
        self.limit - self.reserve() / 4 - self.slack()
    }

    /// The most memory that can grow unseen.
    pub fn most_slack(&self) -> i64 {
        self.threads * GROWTH_PAGES * REACTION
    }

    /// Room that is kept for unseen growth.
    fn slack(&self) -> i64 {
        self.slack.min(self.limit / 8)
    }

    /// The slack after a measurement that found `unseen` pages of unseen growth.
    pub fn next_slack(&self, unseen: i64) -> i64 {
        (self.slack - self.slack / 256 - 1).max(2 * unseen).clamp(0, self.most_slack())
    }

    /// Whether memory grows unseen: a recent measurement found at least as much unseen growth as
    /// one processor can touch in half of the reaction time.
    pub fn grows_unseen(&self) -> bool {
        self.slack > self.most_slack() / 8
    }

    fn reserve(&self) -> i64 {
        (self.limit / 64).clamp(512, 4096)
    }

    /// Pages to be ordered for eviction at this usage. `usage` does not count pages that are on the
    /// way out already.
    pub fn wanted(&self, usage: i64) -> i64 {
        if usage > self.high() { usage - self.low() } else { 0 }
    }

    /// Rounds of one millisecond in which the processors can fill the room below the high mark:
    /// from 1 to `MAX_PATIENCE`.
    pub fn patience(&self, usage: i64) -> u32 {
        ((self.high() - usage) / (self.threads * GROWTH_PAGES)).clamp(1, MAX_PATIENCE) as u32
    }

    /// How long memory need not be measured while there is this much room below the activation
    /// mark.
    pub fn poll_interval(&self, room: i64) -> Duration {
        let milliseconds = room / (self.threads * FASTEST_GROWTH);
        Duration::from_millis(milliseconds.clamp(1, 50) as u64)
    }
}

/// The budget of a run, shared by the governor and all pagers. All amounts are pages of 4 KiB.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicI64,
    measured: AtomicI64,
    since: AtomicI64,
    pool: AtomicI64,
    pool_measured: AtomicI64,
    pipeline: AtomicI64,
    arriving: AtomicI64,
    peak: AtomicI64,
    slack: AtomicI64,
    processes: AtomicI64,
    threads: i64,
    no_slack: bool,
    /// Whether the store refused pages the last time it was asked to take some.
    pub exhausted: AtomicBool,
    /// How often the store refused pages.
    pub refusals: AtomicU64,
    /// Whether memory that cannot be evicted alone exceeds the limit (see `outgrown.rs`).
    pub outgrown: AtomicBool,
}

impl Budget {
    /// Notes whether the store was full when it was asked to take pages.
    pub fn note_stored(&self, full: bool) {
        self.exhausted.store(full, Relaxed);
        self.refusals.fetch_add(u64::from(full), Relaxed);
    }

    /// A budget of `limit` bytes on a machine with this many processors.
    pub fn new(limit: u64, processors: usize) -> Self {
        let zero = || AtomicI64::new(0);
        let budget = Self {
            limit: zero(),
            measured: zero(),
            since: zero(),
            pool: zero(),
            pool_measured: zero(),
            pipeline: zero(),
            arriving: zero(),
            peak: zero(),
            slack: zero(),
            processes: zero(),
            threads: processors as i64,
            no_slack: false,
            exhausted: AtomicBool::new(false),
            refusals: AtomicU64::new(0),
            outgrown: AtomicBool::new(false),
        };
        budget.set_limit(limit);
        budget.slack.store(budget.most_slack(), Relaxed);
        budget
    }

    /// With `false`, for tests, keeps no room for memory that grows unseen.
    #[must_use]
    pub fn with_slack(self, slack: bool) -> Self {
        Self { no_slack: !slack, ..self }
    }

    /// Changes the limit, in bytes.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store((bytes / 4096) as i64, SeqCst);
    }

    /// The limit in pages.
    pub fn limit(&self) -> i64 {
        self.limit.load(Relaxed)
    }

    /// Pages in use now, by the current estimate.
    pub fn usage(&self) -> i64 {
        let pool = self.pool.load(Relaxed) - self.pool_measured.load(Relaxed);
        self.measured.load(Relaxed) + self.since.load(Relaxed) + pool + self.arriving.load(Relaxed)
    }

    /// The highest usage measured.
    pub fn peak(&self) -> i64 {
        self.peak.load(Relaxed)
    }

    fn marks(&self) -> Marks {
        let slack = if self.no_slack { 0 } else { self.slack.load(Relaxed) };
        Marks { limit: self.limit(), slack, threads: self.threads }
    }

    /// Usage above which memory gets registered: growth that is noticed late still fits below the
    /// limit.
    pub fn activation(&self) -> i64 {
        self.marks().activation(self.processes.load(Relaxed))
    }

    /// Whether memory is short, or programs that start now could exceed the limit before the
    /// governor knows of them.
    pub fn may_be_crowded(&self) -> bool {
        self.usage() > self.marks().crowded().min(self.activation())
    }

    /// Sets the number of processes that share the budget: each must be registered before its
    /// growth can be held up.
    pub fn set_processes(&self, processes: usize) {
        self.processes.store(processes as i64, Relaxed);
    }

    /// Usage above which reclaim starts.
    pub fn high(&self) -> i64 {
        self.marks().high()
    }

    fn most_slack(&self) -> i64 {
        self.marks().most_slack()
    }

    /// Whether memory grows unseen, or may: at the start of a run that is not known.
    pub fn grows_unseen(&self) -> bool {
        self.marks().grows_unseen()
    }

    /// Whether a crowd grows unseen: more processes than a few for each processor share the budget.
    pub fn crowd_grows_unseen(&self) -> bool {
        self.grows_unseen() && self.processes.load(Relaxed) > FEW_PROCESSES * self.threads
    }

    /// Usage at which reclaim stops.
    pub fn low(&self) -> i64 {
        self.marks().low()
    }

    /// Usage above which faults wait for room.
    pub fn hard(&self) -> i64 {
        self.marks().hard()
    }

    /// Pages to be ordered for eviction now: none until usage exceeds the high mark, then as many
    /// as bring it down to the low mark.
    pub fn wanted(&self) -> i64 {
        self.marks().wanted(self.usage() - self.pipeline.load(Relaxed))
    }

    /// Whether `pages` more may be installed now.
    pub fn has_room(&self, pages: i64) -> bool {
        self.usage() + pages <= self.hard()
    }

    /// Pages that can be installed without any page being evicted for them.
    pub fn free(&self) -> i64 {
        (self.high() - self.usage()).max(0)
    }

    /// Whether free memory is plentiful, so that newly installed pages displace no others.
    pub fn is_ample(&self) -> bool {
        self.has_room(AMPLE + self.marks().reserve())
    }

    /// Pages were installed (or, negative, dropped).
    pub fn charge(&self, pages: i64) {
        self.since.fetch_add(pages, Release);
    }

    /// Counts pages that were requested from a device (or, negative, have arrived). Room is kept
    /// for them however long the read takes, so they stay counted when memory is measured.
    pub fn arriving(&self, pages: i64) {
        self.arriving.fetch_add(pages, Relaxed);
    }

    /// Counts pages that began (or, negative, ended) their eviction, from the order to the drop.
    pub fn pipeline(&self, pages: i64) {
        self.pipeline.fetch_add(pages, Relaxed);
    }

    /// Pages that are being evicted: ordered and not dropped yet.
    pub fn under_way(&self) -> i64 {
        self.pipeline.load(Relaxed)
    }

    /// Sets the current size of the pool.
    pub fn set_pool(&self, bytes: u64) {
        self.pool.store((bytes / 4096) as i64, Relaxed);
    }

    /// The governor begins a measurement: pages that are charged from here on are added to its
    /// result.
    pub fn begin_measurement(&self) -> Measurement {
        let since = self.since.load(SeqCst);
        Measurement { since, counted: since, pool: self.pool.load(SeqCst) }
    }

    /// All processes have been read. Pages that were dropped meanwhile are missing in the result
    /// by then, and are not subtracted from it: the usage may seem too high for a moment, and
    /// not too low.
    pub fn has_read(&self, begun: &mut Measurement) {
        begun.counted = begun.counted.min(self.since.load(SeqCst));
    }

    /// Ends a measurement: the governor has counted `pages`.
    pub fn end_measurement(&self, begun: Measurement, pages: i64) {
        let unseen = pages - self.measured.load(SeqCst) - begun.since - (begun.pool - self.pool_measured.load(SeqCst));
        self.slack.store(self.marks().next_slack(unseen), Relaxed);
        self.measured.store(pages, SeqCst);
        self.pool_measured.store(begun.pool, SeqCst);
        self.since.fetch_sub(begun.counted, SeqCst);
        self.peak.fetch_max(pages, Relaxed);
    }

    /// Number of rounds after which the governor must also measure a process that does not change.
    pub fn patience(&self) -> u32 {
        self.marks().patience(self.usage())
    }

    /// How long the governor may sleep: until the fastest possible growth could reach the
    /// activation mark.
    pub fn poll_interval(&self) -> Duration {
        self.marks().poll_interval(self.activation() - self.usage())
    }
}

/// Pages charged, and size of the pool, when a measurement began.
#[derive(Debug)]
pub struct Measurement {
    since: i64,
    /// The part of the charges that the result has.
    counted: i64,
    pool: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_during_a_measurement_are_not_lost() {
        let budget = Budget::new(128 << 20, 2);
        budget.charge(100);
        let begun = budget.begin_measurement();
        budget.charge(7);
        budget.end_measurement(begun, 1000);
        assert_eq!(budget.usage(), 1007);
    }

    /// A drop between the beginning of a measurement and the reading of its process is in what was
    /// read: it was subtracted twice.
    #[test]
    fn drops_during_a_measurement_are_not_subtracted_twice() {
        let budget = Budget::new(128 << 20, 2);
        budget.charge(1000);
        let mut begun = budget.begin_measurement();
        budget.charge(-300);
        budget.has_read(&mut begun);
        budget.charge(-5);
        budget.end_measurement(begun, 700);
        assert_eq!(budget.usage(), 695);
        // Growth is counted whether it was read or not.
        let mut begun = budget.begin_measurement();
        budget.charge(40);
        budget.has_read(&mut begun);
        budget.end_measurement(begun, 735);
        assert_eq!(budget.usage(), 775);
    }

    #[test]
    fn pages_on_their_way_from_a_device_stay_counted_until_they_arrive() {
        let budget = Budget::new(128 << 20, 2);
        budget.arriving(500);
        for _ in 0..3 {
            let begun = budget.begin_measurement();
            budget.end_measurement(begun, 1000);
            assert_eq!(budget.usage(), 1500);
        }
        budget.arriving(-500);
        budget.charge(500);
        assert_eq!(budget.usage(), 1500);
    }

    #[test]
    fn the_marks_are_in_order_for_every_limit() {
        for limit in [16u64 << 20, 64 << 20, 128 << 20, 1 << 30, 1 << 36] {
            let b = Budget::new(limit, 2);
            assert!(0 < b.activation() && b.activation() <= b.low(), "{limit}");
            assert!(b.low() < b.high() && b.high() < b.hard() && b.hard() < b.limit(), "{limit}");
        }
    }

    #[test]
    fn growth_that_was_not_charged_lowers_the_marks_until_it_fades() {
        let budget = Budget::new(256 << 20, 2);
        let measure = |pages| {
            let begun = budget.begin_measurement();
            budget.end_measurement(begun, pages);
        };
        let wary = budget.hard();
        (0..4000).for_each(|_| measure(1000));
        let calm = budget.hard();
        assert_eq!(calm - wary, budget.most_slack());
        budget.charge(500);
        measure(1500);
        assert_eq!(budget.hard(), calm, "what was charged is no surprise");
        measure(1900);
        assert_eq!(budget.hard(), calm - 800);
    }

    #[test]
    fn growth_three_times_as_fast_as_expected_is_seen_before_it_passes_the_limit() {
        for limit in [64i64 << 20, 128 << 20, 1 << 30] {
            let budget = Budget::new(limit as u64, 2);
            let mut used = 0;
            while budget.usage() <= budget.activation() {
                used += budget.poll_interval().as_millis() as i64 * 2 * 3 * GROWTH_PAGES;
                let begun = budget.begin_measurement();
                budget.end_measurement(begun, used);
            }
            assert!(used < budget.limit(), "{used} of {}", budget.limit());
        }
    }

    #[test]
    fn many_processes_are_registered_earlier() {
        let budget = Budget::new(256 << 20, 2);
        let alone = budget.activation();
        budget.set_processes(1);
        assert_eq!(budget.activation(), alone);
        budget.set_processes(32);
        assert_eq!(alone - budget.activation(), 2 * GROWTH_PAGES * 16);
        budget.set_processes(100_000);
        assert_eq!(budget.activation(), budget.limit() / 4);
    }

    #[test]
    fn programs_wait_for_their_agents_while_a_crowd_would_not_fit() {
        let (small, large) = (Budget::new(64 << 20, 2), Budget::new(1 << 30, 2));
        assert!(small.may_be_crowded());
        assert!(!large.may_be_crowded());
        let begun = large.begin_measurement();
        large.end_measurement(begun, large.limit() - 2 * CROWD * TURN * GROWTH_PAGES + 1);
        assert!(large.usage() < large.activation() && large.may_be_crowded());
    }

    #[test]
    fn what_is_under_way_is_not_wanted_twice() {
        let budget = Budget::new(128 << 20, 2);
        let begun = budget.begin_measurement();
        budget.end_measurement(begun, budget.high() + 10);
        let wanted = budget.wanted();
        assert!(wanted > 10);
        budget.pipeline(wanted);
        assert_eq!(budget.wanted(), 0);
    }
}
