//! What the locks of the swap core cost, one change after the other: the table of Tim Chen's and
//! Huang Ying's series "mm/swap: Regular page swap optimizations" (2017), for this store.
//!
//! Threads store pages that do not compress on a device in memory and free the oldest ones, each
//! with a window of its own, which is the smaller the more threads there are: real swap-out through
//! [`Store`], page by page. The rows are the same code with other settings ([`Concurrency`]).
//! Beside it the slots alone are taken and freed, where nothing hides the locks.
//!
//! All rows of a number of threads run one after the other in each round, beginning with another
//! one each time. A *wait* is a lock that was not to be had at once; waits for each thousand pages
//! say how often, on any number of processors.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use uswap_core::{LockWaits, Locking, PAGE_SIZE, PageBuf, PageHasher, SlotRun, Slots, worker_number};
use uswap_device::RamDevice;
use uswap_store::{Concurrency, Scratch, Store, StoreConfig, Tier};

use crate::measure::statistics::Summary;

/// What is measured.
#[derive(Clone, Debug)]
pub struct LocksPlan {
    /// Numbers of threads.
    pub threads: Vec<u32>,
    /// Rounds of all rows.
    pub rounds: u32,
    /// Of each run.
    pub seconds: f64,
}

/// The rows: each adds one change to the one before.
pub const ROWS: [(&str, Concurrency); 4] = [
    ("one lock", Concurrency { slots: Locking::Whole, shards: 1, one_pool_lock: false }),
    ("cluster locks", Concurrency { slots: Locking::Clusters, shards: 1, one_pool_lock: false }),
    ("+ sharded swap cache", Concurrency { slots: Locking::Clusters, shards: 256, one_pool_lock: false }),
    ("+ slot caches", Concurrency { slots: Locking::Caches, shards: 256, one_pool_lock: false }),
];

/// Pages that all threads hold together: 64 MiB, more than the caches of most processors. Were it
/// so many for each thread, what 32 of them write would leave the cache in which what two write
/// stays, and that would be taken for a cost of locks.
const HELD: usize = 16 << 10;

/// Pages that each of so many threads holds before it frees the oldest for each new one.
pub(crate) fn window(threads: u32) -> usize {
    (HELD / threads as usize).max(1)
}

/// Slots of the device: 256 MiB.
const SLOTS: u32 = 64 << 10;
/// Pages of different content for each thread.
const CONTENTS: u64 = 8;
/// Steps between two looks at the clock's flag.
const STEPS: u64 = 16;

/// What the threads of one run did together.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocksSample {
    /// Pages stored (and as many freed) each second.
    pub rate: f64,
    /// Part of the threads' time that they waited for locks, 0 to 1.
    pub waiting: f64,
    /// Locks waited for, for each thousand pages.
    pub waits_per_thousand: f64,
    /// Microseconds on a processor for each page: other programs on the machine change it little. 0
    /// where the kernel does not tell.
    pub processor_time: f64,
}

/// Samples of a row with a number of threads.
#[derive(Clone, Debug)]
pub struct LocksCell {
    /// Number of threads.
    pub threads: u32,
    /// Name of the row.
    pub row: &'static str,
    /// One per round.
    pub samples: Vec<LocksSample>,
}

impl LocksCell {
    fn median(&self, of: impl Fn(&LocksSample) -> f64) -> Summary {
        let values: Vec<f64> = self.samples.iter().map(of).collect();
        Summary::of(&values).expect("a round at least")
    }
}

/// A thread's part in a run: makes the thread's state when called, which then does one step at a
/// time.
pub(crate) type Work<'a> = dyn Fn() -> Box<dyn FnMut()> + Sync + 'a;

/// What one thread did.
struct LocksPart {
    steps: u64,
    begin: Instant,
    end: Instant,
    on_processor: Duration,
    waits: LockWaits,
}

/// Time that the calling thread was on a processor (proc_pid_schedstat(5)).
fn on_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0))
}

/// One thread: warms up (`window` pages are held then), waits for the others, and steps until it is
/// over.
fn one(window: usize, work: &Work<'_>, ready: &Barrier, over: &AtomicBool) -> LocksPart {
    let mut step = work();
    (0..2 * window).for_each(|_| step());
    ready.wait();
    let (waits, processor, begin, mut steps) = (LockWaits::here(), on_processor(), Instant::now(), 0);
    while !over.load(Relaxed) {
        (0..STEPS).for_each(|_| step());
        steps += STEPS;
    }
    let (after, end) = (LockWaits::here(), Instant::now());
    LocksPart {
        steps,
        begin,
        end,
        on_processor: on_processor() - processor,
        waits: LockWaits { count: after.count - waits.count, time: after.time - waits.time },
    }
}

/// Threads that step until `seconds` are over.
pub(crate) fn run(threads: u32, seconds: f64, work: &Work<'_>) -> LocksSample {
    let (over, ready) = (AtomicBool::new(false), Barrier::new(threads as usize + 1));
    let parts: Vec<LocksPart> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(|| one(window(threads), work, &ready, &over))).collect();
        ready.wait();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        over.store(true, Relaxed);
        all.into_iter().map(|thread| thread.join().expect("a thread of the benchmark")).collect()
    });
    // Not from when this thread was told: with many threads it may be told long after the first has
    // begun.
    let (begin, end) = (parts.iter().map(|part| part.begin).min(), parts.iter().map(|part| part.end).max());
    let elapsed = end.zip(begin).map_or(0.0, |(end, begin)| (end - begin).as_secs_f64());
    let sum = |of: &dyn Fn(&LocksPart) -> Duration| parts.iter().map(of).sum::<Duration>().as_secs_f64();
    let pages = parts.iter().map(|part| part.steps).sum::<u64>() as f64;
    let waits = parts.iter().map(|part| part.waits.count).sum::<u64>() as f64;
    LocksSample {
        rate: pages / elapsed,
        waiting: sum(&|part| part.waits.time) / sum(&|part| part.end - part.begin),
        waits_per_thousand: waits * 1000.0 / pages,
        processor_time: sum(&|part| part.on_processor) * 1e6 / pages,
    }
}

/// Noise, which does not compress.
pub(crate) fn noise(seed: u64) -> Box<PageBuf> {
    let (mut state, mut page) = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, Box::new([0; PAGE_SIZE]));
    for word in page.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_ne_bytes();
    }
    page
}

/// Swap-out through the store.
fn swap_out(threads: u32, seconds: f64, concurrency: Concurrency) -> LocksSample {
    let (window, hasher) = (window(threads), PageHasher::new(1));
    let devices: Vec<(Box<dyn uswap_device::Device>, i32)> = vec![(Box::new(RamDevice::new("ram", SLOTS)), 0)];
    let config = StoreConfig {
        pool_limit_bytes: 0,
        pool_reserve_bytes: 1 << 20,
        hasher,
        devices,
        concurrency,
        tier: Tier::default(),
    };
    let store = std::sync::Arc::new(Store::new(config).expect("a megabyte of address space"));
    run(threads, seconds, &|| {
        let (store, mut scratch, mut held) = (store.clone(), Scratch::new(), VecDeque::with_capacity(window + 1));
        let contents: Vec<_> = (0..CONTENTS).map(|n| noise(worker_number() as u64 * CONTENTS + n)).collect();
        let hashes: Vec<_> = contents.iter().map(|page| hasher.hash(page)).collect();
        let mut turn = 0;
        Box::new(move || {
            turn = (turn + 1) % contents.len();
            held.push_back(store.put(&contents[turn], hashes[turn], &mut scratch).expect("the device has room"));
            if held.len() > window {
                store.release(held.pop_front().expect("more than a window"));
            }
        })
    })
}

/// Slots alone are taken and freed.
fn slots_alone(threads: u32, seconds: f64, locking: Locking) -> LocksSample {
    let (window, slots) = (window(threads), std::sync::Arc::new(Slots::new(SLOTS, locking)));
    run(threads, seconds, &|| {
        let (slots, mut runs, mut held) = (slots.clone(), Vec::new(), VecDeque::with_capacity(window + 1));
        let worker = worker_number();
        Box::new(move || {
            runs.clear();
            assert_eq!(slots.allocate(worker, 1, &mut runs), 1, "the device has room");
            held.push_back(runs[0].first);
            if held.len() > window {
                slots.free(worker, SlotRun { first: held.pop_front().expect("more than a window"), count: 1 });
            }
        })
    })
}

/// All rounds: `measure` runs a row (by its place among `rows`) with a number of threads.
pub(crate) fn rounds(
    plan: &LocksPlan,
    rows: &[&'static str],
    measure: impl Fn(u32, usize) -> LocksSample,
) -> Vec<LocksCell> {
    let cell = |threads: &u32| {
        let threads = *threads;
        rows.iter().map(move |row| LocksCell { threads, row, samples: Vec::new() })
    };
    let mut cells: Vec<LocksCell> = plan.threads.iter().flat_map(cell).collect();
    for round in 0..plan.rounds as usize {
        for (number, threads) in plan.threads.iter().enumerate() {
            for row in (0..rows.len()).map(|turn| (turn + round) % rows.len()) {
                cells[number * rows.len() + row].samples.push(measure(*threads, row));
            }
        }
    }
    cells
}

/// Measures all and writes it as Markdown.
pub fn measure(plan: &LocksPlan) -> String {
    let names = ROWS.map(|(name, _)| name);
    let stored = rounds(plan, &names, |threads, row| swap_out(threads, plan.seconds, ROWS[row].1));
    let alone: Vec<_> = ROWS.iter().filter(|(_, kind)| kind.shards == 1 || kind.slots == Locking::Caches).collect();
    let names: Vec<_> = alone.iter().map(|(name, _)| *name).collect();
    let slots = rounds(plan, &names, |threads, row| slots_alone(threads, plan.seconds, alone[row].1.slots));
    let mut text = String::new();
    let _ = write!(
        text,
        "## Swap-out\nPages that do not compress are stored on a device in memory, one by one, and as many old ones freed.\n\n\
         {}\n{}\n## Slots alone\nA slot is taken and an old one freed.\n\n{}\n{}",
        table(&stored),
        in_words(&stored, ROWS[3].0),
        table(&slots),
        crate::studies::pool_locks::measure(plan),
    );
    text
}

/// A line for each cell; rates are of thousand pages a second.
pub(crate) fn table(cells: &[LocksCell]) -> String {
    let mut text = String::from(
        "| threads | locks | thousand pages/s | least - most | to one lock | processor time a page | lock wait \
         | waits per 1000 pages |\n|---|---|---|---|---|---|---|---|\n",
    );
    for cell in cells {
        let first = cells.iter().find(|other| other.threads == cell.threads).expect("itself at least");
        let rate = cell.median(|sample| sample.rate);
        let waiting = cell.median(|sample| sample.waiting).median * 100.0;
        let processor = cell.median(|sample| sample.processor_time).median;
        let waits = cell.median(|sample| sample.waits_per_thousand).median;
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {:.0} - {:.0} | {:.2} | {processor:.2} us | {waiting:.2} % | {waits:.2} |",
            cell.threads,
            cell.row,
            rate.median / 1e3,
            rate.least / 1e3,
            rate.most / 1e3,
            rate.median / first.median(|sample| sample.rate).median,
        );
    }
    text
}

/// Whether the last row does what it is there for, by the medians.
pub(crate) fn in_words(cells: &[LocksCell], last: &str) -> String {
    let mine: Vec<&LocksCell> = cells.iter().filter(|cell| cell.row == last).collect();
    let rate = |cell: &LocksCell| cell.median(|sample| sample.rate).median;
    let behind: Vec<String> = mine
        .iter()
        .filter(|cell| cells.iter().any(|other| other.threads == cell.threads && rate(other) > rate(cell)))
        .map(|cell| cell.threads.to_string())
        .collect();
    let fastest = match behind.is_empty() {
        true => "the fastest with every number of threads".to_string(),
        false => format!("not the fastest with {} threads", behind.join(" and ")),
    };
    let most = mine.iter().map(|cell| cell.median(|sample| sample.waiting).median).fold(0.0, f64::max);
    format!("The last row is {fastest}; it waits for locks {:.2} % of its time at most.\n", most * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(threads: u32, row: &'static str, rates: &[f64]) -> LocksCell {
        let samples = rates.iter().map(|rate| LocksSample {
            rate: *rate,
            waiting: 0.015,
            waits_per_thousand: 2.5,
            processor_time: 1.25,
        });
        LocksCell { threads, row, samples: samples.collect() }
    }

    #[test]
    fn the_table_compares_with_the_first_row_and_says_when_the_last_is_slower() {
        let mut cells = vec![cell(2, "one lock", &[1e5, 2e5, 9e5]), cell(2, "+ slot caches", &[3e5, 3e5, 4e5])];
        assert!(table(&cells).contains("| 2 | + slot caches | 300 | 300 - 400 | 1.50 | 1.25 us | 1.50 % | 2.50 |"));
        assert!(
            in_words(&cells, ROWS[3].0)
                .starts_with("The last row is the fastest with every number of threads; it waits")
        );
        cells.extend([cell(8, "one lock", &[3e5]), cell(8, "+ slot caches", &[2e5])]);
        assert!(in_words(&cells, ROWS[3].0).contains("not the fastest with 8 threads; it waits for locks 1.50 %"));
    }

    #[test]
    fn however_many_threads_there_are_they_hold_as_many_pages() {
        for threads in [1, 2, 8, 32] {
            assert_eq!(window(threads) * threads as usize, HELD);
        }
        assert!(HELD < SLOTS as usize / 2 && window(1 << 20) == 1);
    }

    #[test]
    fn every_row_stores_and_frees() {
        for (name, concurrency) in ROWS {
            let sample = swap_out(3, 0.05, concurrency);
            assert!(sample.rate > 0.0 && (0.0..1.0).contains(&sample.waiting), "{name}: {sample:?}");
        }
        let plan = LocksPlan { threads: vec![1, 2], rounds: 2, seconds: 0.02 };
        let text = measure(&plan);
        assert_eq!(text.lines().filter(|line| line.starts_with("| 2 |")).count(), 4 + 3 + 4, "{text}");
    }
}
