//! The page-visiting workload: fill the memory, visit its pages by a pattern, check all pages.
//!
//! Each thread owns a share of the pages, so no two threads write to one page. A visit reads three
//! words of a page and may write two; each visit is timed. The visits end after a number of
//! operations or after a time, whichever comes first, so a slow pager cannot make the workload
//! endless: the result is the time per operation.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use uswap_core::Histogram;

use crate::content::{ContentKind, LINK, WORDS};
use crate::pattern::{TouchPattern, Walk, cycle};
use crate::sequence::SequenceRandom;

/// A visit that took longer than this, in nanoseconds, has waited for its page.
pub const SLOW_NS: u64 = 2_000;

/// Options of `memory`.
#[derive(Args, Debug)]
pub struct MemoryArguments {
    /// Memory to fill, in MiB
    #[arg(long, default_value_t = 512)]
    mib: usize,
    /// Order of the visits
    #[arg(long, value_enum, default_value = "seq")]
    pattern: TouchPattern,
    /// What pages hold
    #[arg(long, value_enum, default_value = "text")]
    content: ContentKind,
    /// Percentage of visits that write
    #[arg(long, default_value_t = 0)]
    writes: u64,
    /// Threads, each with its share of the pages
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Visits of all threads together
    #[arg(long, default_value_t = 500_000)]
    operations: u64,
    /// The visits end after so many seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// The final look at every page ends after so many seconds
    #[arg(long, default_value_t = 2.0)]
    check_seconds: f64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The results of one thread.
#[derive(Default)]
struct MemoryShare {
    fill: Duration,
    visits: Duration,
    operations: u64,
    written: u64,
    check: Duration,
    checked: usize,
}

/// The memory of one thread: the pages from `first` on.
struct MemoryPart<'a> {
    arguments: &'a MemoryArguments,
    memory: &'a mut [u64],
    first: u64,
    /// How often each page was written, stored outside of the pages.
    versions: Vec<u8>,
    all: &'a Histogram,
    slow: &'a Histogram,
}

/// Runs the workload; returns its results, which are printed as one line of JSON.
///
/// # Errors
/// The first page that did not hold what was written to it.
pub fn run(arguments: &MemoryArguments) -> Result<Value, String> {
    let (threads, pages) = (arguments.threads.max(1), (arguments.mib << 20) / (WORDS * 8));
    if pages < threads {
        return Err(format!("{} MiB are fewer pages than {threads} threads", arguments.mib));
    }
    let mut room = vec![0u64; (pages + 1) * WORDS];
    let memory = whole_pages(&mut room, pages);
    let (all, slow) = (Histogram::new(), Histogram::new());
    let barrier = std::sync::Barrier::new(threads);
    let share = pages.div_ceil(threads);
    let outcomes: Vec<Result<MemoryShare, String>> = std::thread::scope(|scope| {
        let parts = memory.chunks_mut(share * WORDS).enumerate().map(|(i, memory)| {
            let versions = vec![0; memory.len() / WORDS];
            let (all, slow, barrier) = (&all, &slow, &barrier);
            let part = MemoryPart { arguments, memory, first: (i * share) as u64, versions, all, slow };
            scope.spawn(move || part.run(barrier))
        });
        let handles: Vec<_> = parts.collect();
        handles.into_iter().map(|handle| handle.join().expect("a thread of the workload panicked")).collect()
    });
    let shares = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(tell(arguments, pages, &shares, &all, &slow))
}

/// The part of `room` that begins at a page boundary of the machine: an allocation begins some
/// bytes after one, and each page of the workload would lie in two pages of the machine.
fn whole_pages(room: &mut [u64], pages: usize) -> &mut [u64] {
    let skip = room.as_ptr().align_offset(WORDS * 8);
    &mut room[skip..skip + pages * WORDS]
}

impl MemoryPart<'_> {
    fn run(mut self, barrier: &std::sync::Barrier) -> Result<MemoryShare, String> {
        let start = Instant::now();
        self.fill();
        let mut share = MemoryShare { fill: start.elapsed(), ..MemoryShare::default() };
        barrier.wait();
        let start = Instant::now();
        let outcome = self.visit(start, &mut share);
        share.visits = start.elapsed();
        barrier.wait();
        outcome?;
        let start = Instant::now();
        self.check(start, &mut share)?;
        share.check = start.elapsed();
        Ok(share)
    }

    fn fill(&mut self) {
        let mut random = SequenceRandom::new(self.arguments.seed + self.first);
        let links = match self.arguments.pattern {
            TouchPattern::Chase => cycle(self.versions.len(), &mut random),
            _ => Vec::new(),
        };
        for (i, page) in self.memory.chunks_mut(WORDS).enumerate() {
            let link = links.get(i).copied().unwrap_or(0);
            self.arguments.content.fill(page, self.first + i as u64, u64::from(link));
        }
    }

    fn visit(&mut self, start: Instant, share: &mut MemoryShare) -> Result<(), String> {
        let MemoryArguments { pattern, content, writes, threads, operations, seconds, seed, .. } = *self.arguments;
        let mut random = SequenceRandom::new(seed ^ self.first << 20 ^ 77);
        let mut walk = Walk::new(pattern, self.versions.len() as u64);
        let limit = Duration::from_secs_f64(seconds);
        for n in 0..operations / threads as u64 {
            let at = walk.next(&mut random);
            let dice = random.next();
            let page = self.page(at)?;
            let writing = content != ContentKind::Zero && dice % 100 < writes;
            let begin = Instant::now();
            let link = self.touch(page, (dice >> 32) as usize % WORDS, writing)?;
            let took = begin.elapsed().as_nanos() as u64;
            walk.link = link;
            self.all.record(took);
            if took > SLOW_NS {
                self.slow.record(took);
            }
            share.operations += 1;
            share.written += u64::from(writing);
            if n % 32 == 0 && start.elapsed() > limit {
                break;
            }
        }
        Ok(())
    }

    /// The number of the page that a walk names; the walk of a chain names what it has read from a
    /// page.
    fn page(&self, at: u64) -> Result<usize, String> {
        if (at as usize) < self.versions.len() {
            return Ok(at as usize);
        }
        Err(format!("the chain names page {at} of {}", self.versions.len()))
    }

    fn touch(&mut self, at: usize, word: usize, writing: bool) -> Result<u64, String> {
        let page = &mut self.memory[at * WORDS..(at + 1) * WORDS];
        let (kind, number) = (self.arguments.content, self.first + at as u64);
        kind.check(page, number, self.versions[at], word)?;
        if writing {
            self.versions[at] = self.versions[at].wrapping_add(1);
            kind.stamp(page, number, self.versions[at]);
        }
        Ok(page[LINK])
    }

    fn check(&self, start: Instant, share: &mut MemoryShare) -> Result<(), String> {
        let limit = Duration::from_secs_f64(self.arguments.check_seconds);
        for (i, page) in self.memory.chunks(WORDS).enumerate() {
            self.arguments.content.check_all(page, self.first + i as u64, self.versions[i])?;
            share.checked += 1;
            if start.elapsed() > limit {
                break;
            }
        }
        Ok(())
    }
}

fn tell(arguments: &MemoryArguments, pages: usize, shares: &[MemoryShare], all: &Histogram, slow: &Histogram) -> Value {
    let longest = |part: fn(&MemoryShare) -> Duration| shares.iter().map(part).max().unwrap_or_default().as_secs_f64();
    let sum = |part: fn(&MemoryShare) -> u64| shares.iter().map(part).sum::<u64>();
    let (operations, written, visits) = (sum(|s| s.operations), sum(|s| s.written), longest(|s| s.visits));
    let planned = arguments.operations / shares.len() as u64 * shares.len() as u64;
    let mib = |visits_of: u64| visits_of as f64 * 4096.0 / f64::from(1 << 20) / visits.max(1e-9);
    json!({
        "answer": "whole",
        "fill_seconds": longest(|s| s.fill),
        "visit_seconds": visits,
        "check_seconds": longest(|s| s.check),
        "operations": operations,
        // A thread whose whole share is in memory makes nearly all of the visits.
        "operations_of_threads": shares.iter().map(|s| s.operations).collect::<Vec<_>>(),
        "planned": planned,
        // Time that the planned work takes, extrapolated if the time limit ended it.
        "seconds": longest(|s| s.fill) + visits * planned as f64 / operations.max(1) as f64,
        "pages": pages,
        "pages_checked": shares.iter().map(|s| s.checked).sum::<usize>(),
        "read_mib_per_second": mib(operations - written),
        "write_mib_per_second": mib(written),
        "latency": all.snapshot(),
        "slow": slow.snapshot(),
    })
}
