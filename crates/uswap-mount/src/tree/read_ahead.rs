//! Threads that read ahead of proven streams, as many and as far as the source's round trip makes
//! worthwhile.
//!
//! A program that reads in order must not wait for the source. So the pages that it consumes during
//! one round trip are to be under way: [`PAGES_PER_MS`] of them for each millisecond. They are
//! asked for in pieces, each by one thread that waits for the whole round trip; so there is one
//! more thread for each [`PER_THREAD`]. A source on a local disk has two threads and 4 MiB, one
//! that takes 50 ms has sixteen and 32 MiB.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uswap_core::PAGE;
use uswap_sys::process::thread::spawn;

use crate::cache::FileCache;
use crate::cache::file::{FileKey, FileSource};

/// The fewest and the most threads that read ahead, and the round trip for each further one.
const FEW: usize = 2;
const MANY: usize = 16;
const PER_THREAD: Duration = Duration::from_millis(1);
/// Pages that are read ahead for each millisecond of a round trip, so that a program that consumes
/// 800 MB/s does not wait; at least, and at most.
const PAGES_PER_MS: u64 = 200;
const LEAST_AHEAD: u64 = 1024;
const MOST_AHEAD: u64 = 8192;
/// The part of the cache that they are at most.
const AHEAD_SHARE: u64 = 32;
/// Pages that one thread reads together, and pieces that wait for a thread.
const PIECE: u64 = 256;
const WAITING: usize = 64;

/// How much readahead the round trip of a source makes worthwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Worthwhile {
    threads: usize,
    pages: u64,
}

impl Worthwhile {
    fn new(round_trip: Duration, ram: u64) -> Self {
        let threads = FEW + (round_trip.as_micros() / PER_THREAD.as_micros()) as usize;
        let pages = round_trip.as_micros() as u64 * PAGES_PER_MS / 1000;
        let most = (ram / PAGE / AHEAD_SHARE).min(MOST_AHEAD);
        Self { threads: threads.min(MANY), pages: pages.max(LEAST_AHEAD).min(most) }
    }
}

struct ReadAhead {
    key: FileKey,
    file: Arc<dyn FileSource>,
    first: u64,
    count: u64,
}

/// Threads that read ahead. They end when this value is dropped.
pub struct Prefetcher {
    orders: SyncSender<ReadAhead>,
    waiting: Arc<Mutex<Receiver<ReadAhead>>>,
    threads: AtomicUsize,
    cache: Arc<FileCache>,
}

impl Prefetcher {
    /// Starts the first threads.
    ///
    /// # Errors
    /// EAGAIN: no more threads.
    pub fn start(cache: Arc<FileCache>) -> io::Result<Self> {
        let (orders, waiting) = sync_channel(WAITING);
        let waiting = Arc::new(Mutex::new(waiting));
        let prefetcher = Self { orders, waiting, threads: AtomicUsize::new(0), cache };
        prefetcher.have_threads(FEW)?;
        Ok(prefetcher)
    }

    fn have_threads(&self, wanted: usize) -> io::Result<()> {
        while self.threads.load(SeqCst) < wanted {
            // Two callers may both add one.
            self.threads.fetch_add(1, SeqCst);
            let (cache, waiting) = (Arc::clone(&self.cache), Arc::clone(&self.waiting));
            spawn("read ahead".into(), move || while read_ahead(&cache, &waiting) {})?;
        }
        Ok(())
    }

    /// The most pages that are to be read ahead in files of that file system.
    pub fn most(&self, device: u64) -> u64 {
        self.worthwhile(device).pages
    }

    fn worthwhile(&self, device: u64) -> Worthwhile {
        Worthwhile::new(self.cache.round_trip(device), self.cache.ram())
    }

    /// Reads pages ahead. A piece that comes while all threads are busy and many pieces wait is
    /// left out: its pages are read when they are asked for.
    pub fn read(&self, (key, file): (FileKey, Arc<dyn FileSource>), first: u64, count: u64) {
        // Without a further thread those that are there do it.
        let _ = self.have_threads(self.worthwhile(key.device).threads);
        let end = first + count;
        for first in (first..end).step_by(PIECE as usize) {
            let order = ReadAhead { key, file: Arc::clone(&file), first, count: PIECE.min(end - first) };
            if self.orders.try_send(order).is_err() {
                return;
            }
        }
    }
}

fn read_ahead(cache: &FileCache, waiting: &Mutex<Receiver<ReadAhead>>) -> bool {
    let order = waiting.lock().expect("orders").recv();
    let Ok(ReadAhead { key, file, first, count }) = order else { return false };
    cache.prefetch((key, &*file), first, count);
    true
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::time::Instant;

    use uswap_sys::fs::inode::FileStatus;

    use super::*;
    use crate::OVERHEAD;
    use crate::cache::file::Stamp;

    #[test]
    fn a_source_that_is_far_away_has_more_threads_and_more_pages() {
        let worthwhile = |micros, ram| {
            let found = Worthwhile::new(Duration::from_micros(micros), ram);
            (found.threads, found.pages)
        };
        assert_eq!(worthwhile(0, 1 << 30), (2, 1024));
        assert_eq!(worthwhile(900, 1 << 30), (2, 1024));
        assert_eq!(worthwhile(10_000, 1 << 30), (12, 2000));
        assert_eq!(worthwhile(50_000, 1 << 30), (16, 8192));
        assert_eq!(worthwhile(50_000, 64 << 20), (16, 512), "a small cache");
    }

    /// A file of zeros that takes its time; counts how many reads are under way.
    #[derive(Default)]
    struct Slow {
        round_trip: Duration,
        reading: AtomicUsize,
        most: AtomicUsize,
    }

    const FILE: u64 = 4096;

    impl FileSource for Slow {
        fn stamp(&self) -> io::Result<Stamp> {
            Ok(Stamp::of(&FileStatus { size: FILE * PAGE, ..FileStatus::default() }))
        }

        fn read_at(&self, buffers: &mut [IoSliceMut<'_>], _: u64) -> io::Result<usize> {
            let now = self.reading.fetch_add(1, SeqCst) + 1;
            self.most.fetch_max(now, SeqCst);
            std::thread::sleep(self.round_trip);
            self.reading.fetch_sub(1, SeqCst);
            Ok(buffers.iter().map(|buffer| buffer.len()).sum())
        }
    }

    /// The most reads of a source with that round trip that are under way at once.
    fn reads_under_way(round_trip: Duration) -> usize {
        let ram = OVERHEAD + 2 * FILE * PAGE;
        let cache = Arc::new(FileCache::new(ram, ram, Duration::ZERO, None).expect("a cache"));
        let prefetcher = Prefetcher::start(Arc::clone(&cache)).expect("threads");
        let file = Arc::new(Slow { round_trip, ..Slow::default() });
        let key = FileKey { device: 1, inode: 1 };
        let shared: Arc<dyn FileSource> = file.clone();
        // The first piece shows how slow it is.
        cache.prefetch((key, &*file), 0, PIECE);
        prefetcher.read((key, shared), PIECE, FILE - PIECE);
        let begun = Instant::now();
        let all = |count: u64| count == FILE;
        while !all(cache.counters.source_reads.load(SeqCst)) && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let content = cache.read((key, &*file), 0, PAGE as usize, |_, missing| missing).expect("content");
        assert!(content.length() == PAGE as usize && all(cache.counters.source_reads.load(SeqCst)));
        file.most.load(SeqCst)
    }

    /// A reader that comes to pages which are being read ahead waits for them. It does not begin a
    /// stream of its own there, which would end the lead.
    #[test]
    fn a_reader_follows_its_lead() {
        let ram = OVERHEAD + 2 * FILE * PAGE;
        let cache = FileCache::new(ram, ram, Duration::ZERO, None).expect("a cache");
        let file = Slow { round_trip: Duration::from_millis(50), ..Slow::default() };
        let key = FileKey { device: 1, inode: 1 };
        std::thread::scope(|scope| {
            scope.spawn(|| cache.prefetch((key, &file), 0, PIECE));
            while file.reading.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            let begins = |_, _| panic!("a stream begins where pages are being read");
            let content = cache.read((key, &file), 0, (PIECE * PAGE) as usize, begins).expect("content");
            assert_eq!(content.length() as u64, PIECE * PAGE);
        });
        assert_eq!(cache.counters.source_reads.load(SeqCst), PIECE, "pages were read twice");
    }

    #[test]
    fn pieces_of_a_slow_source_are_under_way_at_the_same_time() {
        let slow = reads_under_way(Duration::from_millis(30));
        assert!(slow > 2 * FEW, "{slow} reads at once");
    }
}
