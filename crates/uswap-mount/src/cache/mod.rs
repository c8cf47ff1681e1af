//! The cache of the content of files.
//!
//! ```text
//! read ──> resident? ── yes ────────────────────────────────────────────> frames
//!             │ no                                                           ^
//!             ├─ stored ── from the pool or a device, checksum verified ─────┤ insert, if the file
//!             └─ absent ── from the source, with what is read ahead ─────────┘ has not changed
//! ```
//! Invariant: a page is cached only if its bytes were read after the last invalidation of the file
//! began to hold, and while no write was under way ([`file::FileEntry::version`]). All tables are
//! behind one lock, which is never held over I/O, compression or copying.
//!
//! The cache may lose any page at any time: whatever goes wrong below it, the source has the
//! content.

pub mod figures;
pub mod file;
pub mod fill;
mod group_changes;
pub mod groups;
pub mod keep;
pub mod kept_index;
pub mod keys;
pub mod pages;
pub mod store_below;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use uswap_core::PAGE;
use uswap_sys::alloc::frames::{Frame, Frames, NewFrame};

use crate::OVERHEAD;
use crate::cache::figures::CacheCounters;
use crate::cache::file::{FileEntry, FileKey, FileSource, Stamp};
use crate::cache::pages::{CachePages, CachedPage, Displaced};
use crate::cache::store_below::StoreBelow;
use crate::pace::SourcePaces;
use crate::warnings::MountWarnings;

/// Frames beyond the limit: for what is being read or sent.
const FRAMES_IN_FLIGHT: u64 = 8192;

/// The part of all frames that is left to what is in flight, and its length at most.
const IN_FLIGHT_SHARE: u64 = 16;
const MOST_IN_FLIGHT: u64 = 1024;

/// Attempts to find a frame within the limit, and pages that leave for each.
const ATTEMPTS: usize = 4;
const EVICTED_TOGETHER: usize = 16;
/// The part of the memory that names of known files may take from pages.
const NAMES_SHARE: u64 = 4;
/// Growth of the pool in bytes after which memory is divided anew.
const POOL_STEP: u64 = 256 << 10;

/// Content of a file, ready to be sent.
#[derive(Debug, Default)]
pub struct FileContent {
    frames: Vec<Frame>,
    start: usize,
    length: usize,
}

impl FileContent {
    /// The bytes, in pieces of a page at most.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (mut start, mut left) = (self.start, self.length);
        self.frames.iter().map(move |frame| {
            let piece = &frame[start..frame.len().min(start + left)];
            (start, left) = (0, left - piece.len());
            piece
        })
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }
}

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Relaxed);
}

/// The tables behind the lock.
#[derive(Debug)]
pub struct CacheTables {
    pub(crate) pages: CachePages,
    files: HashMap<FileKey, FileEntry>,
}

/// The cache. Shared by all threads of a mount.
pub struct FileCache {
    tables: Mutex<CacheTables>,
    /// Signalled when pages that were being read have come.
    fetched: Condvar,
    frames: Arc<Frames>,
    below: Option<StoreBelow>,
    /// Memory that it may take, in bytes, and that it has taken at most.
    ram: AtomicU64,
    peak: AtomicU64,
    most_ram: u64,
    /// Frames that may have memory.
    most_frames: AtomicU64,
    /// Pool in bytes when memory was divided last.
    pool_then: AtomicU64,
    /// How long a comparison of stamps holds.
    revalidate: Duration,
    paces: SourcePaces,
    /// Memory in bytes that the names of known files take.
    names: AtomicU64,
    /// Sentences about what goes wrong.
    pub warnings: MountWarnings,
    /// Counts of what happened.
    pub counters: CacheCounters,
}

impl FileCache {
    /// An empty cache in `ram` bytes, of at most `most_ram` later.
    ///
    /// # Errors
    /// ENOMEM: address space.
    pub fn new(ram: u64, most_ram: u64, revalidate: Duration, below: Option<StoreBelow>) -> io::Result<Self> {
        let count =
            u32::try_from(most_ram.max(ram) / PAGE + FRAMES_IN_FLIGHT).map_err(|_| io::ErrorKind::InvalidInput)?;
        let frames = Frames::new(count)?;
        let first = ram.saturating_sub(OVERHEAD).max(PAGE) / PAGE;
        let pages = CachePages::new(Arc::clone(&frames), first, below.is_some());
        let tables = CacheTables { pages, files: HashMap::new() };
        let (most_ram, peak) = (most_ram.max(ram), AtomicU64::new(0));
        let (tables, ram, counters) = (Mutex::new(tables), AtomicU64::new(ram), CacheCounters::default());
        let (fetched, most_frames, pool_then) = (Condvar::new(), AtomicU64::new(0), AtomicU64::new(0));
        let (paces, names) = (SourcePaces::default(), AtomicU64::new(0));
        let cache = Self {
            tables,
            fetched,
            frames,
            below,
            ram,
            peak,
            most_ram,
            most_frames,
            pool_then,
            revalidate,
            paces,
            names,
            warnings: MountWarnings::default(),
            counters,
        };
        cache.balance();
        Ok(cache)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, CacheTables> {
        self.tables.lock().expect("tables of the cache")
    }

    /// How long the file system of that device number takes to answer a read, as far as is known.
    pub fn round_trip(&self, device: u64) -> Duration {
        self.paces.round_trip(device)
    }

    /// The store below, if there is one.
    pub fn below(&self) -> Option<&StoreBelow> {
        self.below.as_ref()
    }

    /// Memory that the cache may take, in bytes.
    pub fn ram(&self) -> u64 {
        self.ram.load(Relaxed)
    }

    /// The most that it can be given.
    pub fn most_ram(&self) -> u64 {
        self.most_ram
    }

    /// The most that it has taken, as far as was looked.
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// Changes the memory that the cache may take.
    pub fn set_ram(&self, bytes: u64) {
        self.ram.store(bytes, Relaxed);
        self.balance();
    }

    /// Notes the memory in bytes that the names of known files take.
    pub fn set_names(&self, bytes: u64) {
        self.names.store(bytes, Relaxed);
    }

    /// Gives the pages in memory what the rest leaves. To be called now and then.
    pub fn balance(&self) {
        let memory = self.memory();
        self.peak.fetch_max(memory.used(), Relaxed);
        let names = memory.names.min(self.ram() / NAMES_SHARE);
        let frames = self.ram().saturating_sub(memory.below + memory.tables + names + OVERHEAD) / PAGE;
        let limit = frames - (frames / IN_FLIGHT_SHARE).min(MOST_IN_FLIGHT);
        self.most_frames.store(frames, Relaxed);
        self.pool_then.store(memory.below, Relaxed);
        let mut displaced = Displaced::default();
        let mut tables = self.lock();
        tables.pages.set_limit(limit.max(1));
        tables.pages.shrink(&mut displaced);
        tables.pages.tidy();
        drop(tables);
        self.settle(displaced);
        self.frames.give_back(self.frames.with_memory().saturating_sub(frames as u32));
        if let Some(below) = &self.below {
            below.tidy(self);
        }
    }

    /// The pool has grown so much that the pages in memory must give something.
    pub(crate) fn has_grown(&self) -> bool {
        let now = self.below.as_ref().map_or(0, |below| below.store().pool_bytes());
        now > self.pool_then.load(Relaxed) + POOL_STEP
    }

    /// A frame to be written. Where that takes more memory pages leave first.
    pub(crate) fn new_frame(&self) -> Option<NewFrame> {
        for _ in 0..ATTEMPTS {
            if let Some(frame) = self.frames.take_within(self.most_frames.load(Relaxed) as u32) {
                return Some(frame);
            }
            let mut displaced = Displaced::default();
            self.lock().pages.evict_some(EVICTED_TOGETHER, &mut displaced);
            self.settle(displaced);
        }
        self.frames.take()
    }

    /// Does what changes of the tables have left to do.
    fn settle(&self, displaced: Displaced) {
        let Some(below) = &self.below else { return };
        below.release(&displaced.released);
        displaced.leaving.into_iter().for_each(|page| below.offer(page));
    }

    /// The present size of the file, compared with the source no longer ago than `within`. Cached
    /// pages that are not valid any more are forgotten.
    ///
    /// # Errors
    /// Those of the source.
    pub fn check(&self, key: FileKey, source: &dyn FileSource, within: Duration) -> io::Result<u64> {
        loop {
            let version = {
                let mut tables = self.lock();
                let CacheTables { files, pages } = &mut *tables;
                let entry = files.entry(key).or_default();
                let elsewhere = source.group().filter(|group| entry.group != *group && pages.groups().has(*group));
                if let Some(group) = elsewhere {
                    drop(tables);
                    self.change_groups(&[(key, group)]);
                    continue;
                }
                if let Some(size) = entry.fresh_size(within) {
                    return Ok(size);
                }
                entry.version()
            };
            // The moment before the stamp is taken: it holds from then on.
            let now = Instant::now();
            let stamp = source.stamp()?;
            if self.compare(key, version, stamp, now) {
                return Ok(stamp.size);
            }
        }
    }

    /// Compares a stamp with the known one. `false`: the file was written since `version`, so that
    /// the stamp may be older than the known one.
    fn compare(&self, key: FileKey, version: Option<u64>, stamp: Stamp, now: Instant) -> bool {
        let mut displaced = Displaced::default();
        let mut tables = self.lock();
        let CacheTables { files, pages } = &mut *tables;
        let entry = files.entry(key).or_default();
        // A write of our own takes the stamp when it ends.
        if entry.is_written() {
            return true;
        }
        if entry.version() != version {
            return false;
        }
        let was_changed = entry.has_other(&stamp);
        if entry.compare(stamp, now)
            && let Some(range) = entry.range
        {
            pages.forget(range.keys(), &mut displaced.released);
            add(&self.counters.invalidations, u64::from(was_changed));
        }
        drop(tables);
        self.settle(displaced);
        true
    }

    /// Reads from the file. Less than asked is returned only at its end.
    ///
    /// # Errors
    /// Those of the source.
    pub fn read(
        &self,
        file: (FileKey, &dyn FileSource),
        offset: u64,
        length: usize,
        ahead: impl FnOnce(u64, u64) -> u64,
    ) -> io::Result<FileContent> {
        let mut size = self.check(file.0, file.1, self.revalidate)?;
        if offset + length as u64 > size {
            size = self.check(file.0, file.1, Duration::ZERO)?;
        }
        let end = (offset + length as u64).min(size);
        if offset >= end {
            return Ok(FileContent::default());
        }
        let (first, last) = (offset / PAGE, (end - 1) / PAGE);
        add(&self.counters.asked, last - first + 1);
        let (frames, reached) = self.frames_of(file, first..last + 1, size, ahead)?;
        // The file may have become shorter meanwhile.
        let length = end.min(reached).saturating_sub(offset) as usize;
        Ok(FileContent { frames, start: (offset % PAGE) as usize, length })
    }

    /// Looks up pages of a file of `size` bytes. Also returns the version under which the others
    /// may be cached.
    fn look_up(&self, key: FileKey, asked: Range<u64>, size: u64) -> (Vec<CachedPage>, Option<u64>) {
        let mut displaced = Displaced::default();
        let mut tables = self.lock();
        let CacheTables { files, pages } = &mut *tables;
        let entry = files.entry(key).or_default();
        let whole = size.div_ceil(PAGE).max(asked.end);
        if let Some(range) = entry.range.filter(|range| range.pages() < whole) {
            pages.give_range_back(range, &mut displaced.released);
            entry.range = None;
        }
        if entry.range.is_none() {
            entry.range = pages.take_range(whole, entry.group);
        }
        let range = entry.range;
        let find =
            |page| range.and_then(|range| range.key(page)).map_or(CachedPage::Absent, |key| pages.get(key, true));
        let found: Vec<CachedPage> = asked.map(find).collect();
        // The object of a stored page must live until it has been read.
        if let Some(below) = &self.below {
            found.iter().for_each(|page| {
                if let CachedPage::Stored(object) = page {
                    below.retain(*object)
                }
            });
        }
        let version = entry.version();
        drop(tables);
        self.settle(displaced);
        (found, version)
    }

    /// Caches frames that hold the pages from `first` on, if the file is still the one that was
    /// read. `None`: no frame for that page. Pages from `used` on are not used yet.
    fn take_in(&self, key: FileKey, version: Option<u64>, first: u64, used: u64, frames: &[Option<Frame>]) {
        let mut displaced = Displaced::default();
        let mut tables = self.lock();
        let CacheTables { files, pages } = &mut *tables;
        let Some(entry) = files.get(&key) else { return };
        if version.is_none() || entry.version() != version {
            return;
        }
        let Some(range) = entry.range else { return };
        for (page, frame) in (first..).zip(frames) {
            if let (Some(frame), Some(key)) = (frame, range.key(page)) {
                pages.insert(key, frame, page >= used, &mut displaced);
            }
        }
        drop(tables);
        self.settle(displaced);
    }

    /// Changes the content of the source from `offset` on, `length` bytes; `change` does it.
    ///
    /// # Errors
    /// Those of the source, and of `change`.
    pub fn write<T>(
        &self,
        file: (FileKey, &dyn FileSource),
        offset: u64,
        length: u64,
        change: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        // A change by others that happened before is not to be hidden by the new stamp.
        self.check(file.0, file.1, Duration::ZERO)?;
        self.begin_write(file.0, offset, length);
        let done = change();
        let now = Instant::now();
        let stamp = file.1.stamp().ok();
        let mut tables = self.lock();
        if let Some(entry) = tables.files.get_mut(&file.0) {
            entry.end_write(stamp, now);
        }
        done
    }

    fn begin_write(&self, key: FileKey, offset: u64, length: u64) {
        let mut displaced = Displaced::default();
        let mut tables = self.lock();
        let CacheTables { files, pages } = &mut *tables;
        let entry = files.entry(key).or_default();
        entry.begin_write();
        if let Some(range) = entry.range {
            let from = range.keys_from(offset / PAGE);
            let end = offset.saturating_add(length).div_ceil(PAGE);
            let to = range.keys_from(end).start;
            pages.forget(from.start..to, &mut displaced.released);
        }
        drop(tables);
        self.settle(displaced);
    }

    /// Forgets a file: it does not exist any more.
    pub fn remove(&self, key: FileKey) {
        let mut displaced = Displaced::default();
        let mut tables = self.lock();
        let CacheTables { files, pages } = &mut *tables;
        if files.get(&key).is_some_and(FileEntry::is_busy) {
            return;
        }
        if let Some(range) = files.remove(&key).and_then(|entry| entry.range) {
            pages.give_range_back(range, &mut displaced.released);
        }
        drop(tables);
        self.settle(displaced);
    }

    /// Forgets what is known of files of which nothing is cached. To be called now and then.
    pub fn sweep(&self) {
        let mut tables = self.lock();
        let CacheTables { files, pages } = &mut *tables;
        files.retain(|_, entry| {
            let is_needed = entry.is_busy() || entry.range.is_some_and(|range| pages.has_any(range.keys()));
            if !is_needed && let Some(range) = entry.range {
                pages.give_range_back(range, &mut Vec::new());
            }
            is_needed
        });
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "keep_tests.rs"]
mod keep_tests;

#[cfg(test)]
#[path = "group_tests.rs"]
mod group_tests;
