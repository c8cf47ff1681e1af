//! Filling: brings the pages that a reader asks for from the store below or from the source, and
//! those that are read ahead with them.

use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use uswap_core::PAGE;
use uswap_store::{LoadScratch, ObjectId};
use uswap_sys::alloc::frames::{Frame, NewFrame};

use crate::cache::file::{FileKey, FileSource};
use crate::cache::pages::CachedPage;
use crate::cache::{CacheTables, FileCache, add};
use crate::warnings::WarningKind;

thread_local! {
    static SCRATCH: std::cell::RefCell<Option<LoadScratch>> = const { std::cell::RefCell::new(None) };
}

/// Pages that were read from the source in a row.
struct ReadRun {
    frames: Vec<Frame>,
    /// Where the file ended, if it was shorter than expected: then nothing of it is cached.
    end: Option<u64>,
}

impl FileCache {
    /// The asked pages of a file of `size` bytes, in order, and the byte up to which they are the
    /// file's. `ahead` tells how many pages are to be read, from the first missing one and the
    /// number of missing ones.
    ///
    /// # Errors
    /// Those of the source.
    pub(super) fn frames_of(
        &self,
        file: (FileKey, &dyn FileSource),
        asked: Range<u64>,
        size: u64,
        ahead: impl FnOnce(u64, u64) -> u64,
    ) -> io::Result<(Vec<Frame>, u64)> {
        let (found, version) = self.look_up(file.0, asked.clone(), size);
        let first = asked.start;
        let mut frames = self.gather(found);
        let loaded = frames.loaded;
        if loaded {
            self.take_in(file.0, version, first, asked.end, &frames.pages);
        }
        let mut ahead = Some(ahead);
        let mut reached = size;
        while let Some(run) = missing_run(&frames.pages) {
            let (from, mut count) = (first + run.start as u64, run.len() as u64);
            // A page that another thread is reading was asked for before: it begins no stream.
            if self.wait_for(file.0, from) {
                let (found, _) = self.look_up(file.0, from..from + count, size);
                frames.pages.splice(run, self.gather(found).pages);
                continue;
            }
            if run.end == frames.pages.len()
                && let Some(ahead) = ahead.take()
            {
                count = self.absent_from(file.0, from, count, ahead(from, count), size);
            }
            // Another thread may have begun just now.
            let Some(fetch) = self.fetch(file.0, from..from + count) else { continue };
            let read = self.read_source(file, fetch.pages.clone(), size)?;
            add(&self.counters.source_reads, read.frames.len() as u64);
            let got: Vec<Option<Frame>> = read.frames.into_iter().map(Some).collect();
            if read.end.is_none() {
                self.take_in(file.0, version, from, asked.end, &got);
            }
            drop(fetch);
            for (place, frame) in frames.pages[run].iter_mut().zip(got) {
                *place = frame;
            }
            if let Some(end) = read.end {
                reached = reached.min(end);
                frames.pages.truncate((end.div_ceil(PAGE).max(first) - first) as usize);
            }
        }
        Ok((frames.pages.into_iter().map_while(|frame| frame).collect(), reached))
    }

    /// Reads pages ahead of their use.
    pub fn prefetch(&self, file: (FileKey, &dyn FileSource), first: u64, count: u64) {
        let Ok(size) = self.check(file.0, file.1, self.revalidate) else { return };
        let end = (first + count).min(size.div_ceil(PAGE));
        let mut at = first;
        while at < end {
            let (_, version) = self.look_up(file.0, at..at, size);
            let absent = self.absent_from(file.0, at, 0, end - at, size);
            let fetch = if absent > 0 { self.fetch(file.0, at..at + absent) } else { None };
            let Some(fetch) = fetch else {
                at += 1;
                continue;
            };
            at = fetch.pages.end;
            // An error is met again when the page is asked for.
            let Ok(read) = self.read_source(file, fetch.pages.clone(), size) else { return };
            if read.end.is_some() {
                return;
            }
            add(&self.counters.source_reads, read.frames.len() as u64);
            let got: Vec<Option<Frame>> = read.frames.into_iter().map(Some).collect();
            self.take_in(file.0, version, fetch.pages.start, 0, &got);
        }
    }

    /// Takes on to read pages from the source, or fewer if another thread is reading some of them.
    /// `None`: another one is reading the first.
    fn fetch(&self, key: FileKey, pages: Range<u64>) -> Option<Fetch<'_>> {
        let mut tables = self.lock();
        let pages = tables.files.entry(key).or_default().begin_fetch(pages)?;
        Some(Fetch { cache: self, key, pages })
    }

    /// Waits while another thread is reading the page. Returns whether one was.
    fn wait_for(&self, key: FileKey, page: u64) -> bool {
        let is_fetched = |tables: &CacheTables| tables.files.get(&key).is_some_and(|entry| entry.is_fetched(page));
        let mut tables = self.lock();
        let was_fetched = is_fetched(&tables);
        while is_fetched(&tables) {
            tables = self.fetched.wait(tables).expect("tables of the cache");
        }
        was_fetched
    }

    /// Takes the found pages that are in memory or in the store below.
    fn gather(&self, found: Vec<CachedPage>) -> Gathered {
        let (mut hits, mut wanted): (u64, Vec<(usize, ObjectId)>) = (0, Vec::new());
        let mut pages = Vec::with_capacity(found.len());
        for (place, page) in found.into_iter().enumerate() {
            pages.push(match page {
                CachedPage::Resident(frame) => {
                    hits += 1;
                    Some(frame)
                }
                CachedPage::Stored(object) => {
                    wanted.push((place, object));
                    None
                }
                CachedPage::Absent => None,
            });
        }
        add(&self.counters.hits, hits);
        let loaded = !wanted.is_empty();
        if loaded {
            self.load(&wanted, &mut pages);
        }
        Gathered { pages, loaded }
    }

    /// Loads objects, of which the caller has references, to their places.
    fn load(&self, wanted: &[(usize, ObjectId)], pages: &mut [Option<Frame>]) {
        let Some(below) = self.below() else { return };
        let mut frames: Vec<NewFrame> = wanted.iter().map_while(|_| self.new_frame()).collect();
        let ids: Vec<ObjectId> = wanted.iter().map(|(_, id)| *id).collect();
        let mut results = Vec::with_capacity(frames.len());
        SCRATCH.with_borrow_mut(|scratch| {
            let scratch = scratch.get_or_insert_with(LoadScratch::default);
            let count = frames.len();
            below.store().load_many_blocking(&ids[..count], &mut frames, &mut results, scratch);
        });
        for (((place, _), frame), result) in wanted.iter().zip(frames).zip(results) {
            match result {
                Ok(()) => {
                    add(&self.counters.store_hits, 1);
                    pages[*place] = Some(frame.share());
                }
                Err(error) => {
                    self.counters.store_errors.fetch_add(1, Relaxed);
                    self.warnings.tell(WarningKind::LostPages, || {
                        format!("{error}; the cache reads from the source what it cannot read there")
                    });
                }
            }
        }
        below.release(&ids);
    }

    /// How many pages from `from` on are to be read: those that are missing for sure, and of the
    /// `wanted` ones all up to the first that is cached or the end of the file.
    fn absent_from(&self, key: FileKey, from: u64, missing: u64, wanted: u64, size: u64) -> u64 {
        let end = (from + wanted).min(size.div_ceil(PAGE));
        let tables = self.lock();
        let range = tables.files.get(&key).and_then(|entry| entry.range);
        let Some(range) = range else { return missing };
        let is_absent = |page: &u64| range.key(*page).is_some_and(|key| !tables.pages.has(key));
        missing + (from + missing..end).take_while(is_absent).count() as u64
    }

    /// Reads pages of a file of `size` bytes from the source.
    fn read_source(
        &self,
        (key, source): (FileKey, &dyn FileSource),
        pages: Range<u64>,
        size: u64,
    ) -> io::Result<ReadRun> {
        let begin = pages.start * PAGE;
        let mut new: Vec<NewFrame> = pages.map_while(|_| self.new_frame()).collect();
        if new.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let wanted = (new.len() as u64 * PAGE).min(size.saturating_sub(begin)) as usize;
        let (mut got, begun) = (0, Instant::now());
        while got < wanted {
            let skip = got / PAGE as usize;
            let mut buffers: Vec<IoSliceMut<'_>> =
                new[skip..].iter_mut().map(|frame| IoSliceMut::new(&mut frame[..])).collect();
            let mut rest = &mut buffers[..];
            IoSliceMut::advance_slices(&mut rest, got % PAGE as usize);
            match source.read_at(rest, begin + got as u64) {
                Ok(0) => break,
                Ok(read) => got += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.paces.note(key.device, begun.elapsed());
        let got = got.min(wanted);
        new.truncate(got.div_ceil(PAGE as usize));
        if let Some(last) = new.last_mut().filter(|_| got % PAGE as usize != 0) {
            last[got % PAGE as usize..].fill(0);
        }
        let end = (got < wanted).then_some(begin + got as u64);
        Ok(ReadRun { frames: new.into_iter().map(NewFrame::share).collect(), end })
    }
}

/// Pages that a thread is reading from the source: others wait for them rather than read them too.
struct Fetch<'a> {
    cache: &'a FileCache,
    key: FileKey,
    pages: Range<u64>,
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        let mut tables = self.cache.lock();
        if let Some(entry) = tables.files.get_mut(&self.key) {
            entry.end_fetch(&self.pages);
        }
        drop(tables);
        self.cache.fetched.notify_all();
    }
}

/// The pages of a request that were found.
struct Gathered {
    pages: Vec<Option<Frame>>,
    /// Some of them came from the store.
    loaded: bool,
}

/// The first pages in a row that are missing.
fn missing_run(pages: &[Option<Frame>]) -> Option<Range<usize>> {
    let start = pages.iter().position(Option::is_none)?;
    let length = pages[start..].iter().position(Option::is_some).unwrap_or(pages.len() - start);
    Some(start..start + length)
}
