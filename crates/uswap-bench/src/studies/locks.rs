//! Measures the cost of the locks of the swap core, one change after the other: the table of Tim
//! Chen's and Huang Ying's series "mm/swap: Regular page swap optimizations" (2017), for this
//! store.
//!
//! Threads store incompressible pages on a device in memory and free the oldest ones. Each thread
//! has its own window of pages, which is smaller the more threads there are. This is real swap-out
//! through [`Store`], page by page. The rows are the same code with other settings
//! ([`Concurrency`]). A second table takes and frees only slots, where no other work hides the cost
//! of the locks.
//!
//! In each round, all rows of a number of threads run one after the other, beginning with another
//! one each time. A *wait* is a lock that was not free at once; the number of waits per thousand
//! pages is comparable for any number of processors.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use uswap_core::{LockWaits, Locking, PAGE_SIZE, PageBuf, PageHasher, SlotRun, Slots, worker_number};
use uswap_device::RamDevice;
use uswap_store::{Concurrency, Scratch, Store, StoreConfig, Tier};

use crate::measure::statistics::Summary;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct LocksPlan {
    /// Numbers of threads.
    pub threads: Vec<u32>,
    /// Number of rounds, each with all rows.
    pub rounds: u32,
    /// Duration of each run in seconds.
    pub seconds: f64,
}

/// The rows; each adds one change to the row before.
pub const ROWS: [(&str, Concurrency); 4] = [
    ("one lock", Concurrency { slots: Locking::Whole, shards: 1, one_pool_lock: false }),
    ("cluster locks", Concurrency { slots: Locking::Clusters, shards: 1, one_pool_lock: false }),
    ("+ sharded swap cache", Concurrency { slots: Locking::Clusters, shards: 256, one_pool_lock: false }),
    ("+ slot caches", Concurrency { slots: Locking::Caches, shards: 256, one_pool_lock: false }),
];

/// Number of pages that all threads hold together: 64 MiB, more than the caches of most processors.
/// If each thread held a fixed number, the pages that 32 threads write would not fit in the cache,
/// while those of two threads would, and the difference would look like a cost of locks.
const HELD: usize = 16 << 10;

/// Number of pages that each of `threads` threads holds before it frees the oldest page for each
/// new one.
pub(crate) fn window(threads: u32) -> usize {
    (HELD / threads as usize).max(1)
}

/// Number of slots of the device: 256 MiB.
const SLOTS: u32 = 64 << 10;
/// Number of pages of different content for each thread.
const CONTENTS: u64 = 8;
/// Number of steps between two checks of the flag that ends the run.
const STEPS: u64 = 16;

/// The results of all threads of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocksSample {
    /// Pages stored (and freed) per second.
    pub rate: f64,
    /// Share of the threads' time spent waiting for locks, 0 to 1.
    pub waiting: f64,
    /// Number of waits for locks per thousand pages.
    pub waits_per_thousand: f64,
    /// Processor time per page in microseconds, on which other programs of the machine have little
    /// influence. 0 where the kernel does not report it.
    pub processor_time: f64,
}

/// The samples of a row with a number of threads.
#[derive(Clone, Debug)]
pub struct LocksCell {
    /// Number of threads.
    pub threads: u32,
    /// Name of the row.
    pub row: &'static str,
    /// One sample per round.
    pub samples: Vec<LocksSample>,
}

impl LocksCell {
    fn median(&self, of: impl Fn(&LocksSample) -> f64) -> Summary {
        let values: Vec<f64> = self.samples.iter().map(of).collect();
        Summary::of(&values).expect("a round at least")
    }
}

/// The work of a thread in a run: when called, it makes the thread's state, which does one step per
/// call.
pub(crate) type Work<'a> = dyn Fn() -> Box<dyn FnMut()> + Sync + 'a;

/// The results of one thread.
struct LocksPart {
    steps: u64,
    begin: Instant,
    end: Instant,
    on_processor: Duration,
    waits: LockWaits,
}

/// Time that the calling thread has spent on a processor (proc_pid_schedstat(5)).
fn on_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0))
}

/// One thread: it warms up (it holds `window` pages then), waits for the others, and does steps
/// until `over` is set.
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

/// Runs threads that do steps for `seconds`.
pub(crate) fn run(threads: u32, seconds: f64, work: &Work<'_>) -> LocksSample {
    let (over, ready) = (AtomicBool::new(false), Barrier::new(threads as usize + 1));
    let parts: Vec<LocksPart> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(|| one(window(threads), work, &ready, &over))).collect();
        ready.wait();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        over.store(true, Relaxed);
        all.into_iter().map(|thread| thread.join().expect("a thread of the benchmark")).collect()
    });
    // The duration does not begin when this thread wakes up: with many threads it may wake up long
    // after the first one has begun.
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

/// A page of noise, which does not compress.
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

/// Measures swap-out through the store.
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

/// Measures only taking and freeing slots.
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

/// Runs all rounds: `measure` runs a row (by its index in `rows`) with a number of threads.
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

/// Measures everything and returns it as Markdown.
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

/// One line per cell; rates are in thousand pages per second.
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

/// Whether the last row brings its intended improvement, by the medians, in words.
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
