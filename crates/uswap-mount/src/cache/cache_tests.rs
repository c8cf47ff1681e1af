//! The cache on sources that are made up: no reader sees stale bytes, and the document's
//! `wschange` and `wsprotect` in numbers of pages.

use std::io::IoSliceMut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use uswap_core::PAGE_SIZE;
use uswap_device::{Device, RamDevice};
use uswap_store::Tier;
use uswap_sys::fs::inode::FileStatus;

use super::*;
use crate::cache::groups::GroupId;

/// A file in memory. Each change moves its times on by one second, from long ago on.
#[derive(Default)]
pub(super) struct MadeFile {
    pub(super) bytes: Mutex<Vec<u8>>,
    changes: AtomicU64,
    pub(super) pages_read: AtomicU64,
}

impl MadeFile {
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self { bytes: Mutex::new(bytes), ..Self::default() }
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.bytes.lock().unwrap();
        change(&mut bytes);
        self.changes.fetch_add(1, SeqCst);
    }
}

impl FileSource for MadeFile {
    fn stamp(&self) -> io::Result<Stamp> {
        let bytes = self.bytes.lock().unwrap();
        let changed = (self.changes.load(SeqCst) as i64, 0);
        Ok(Stamp::of(&FileStatus { size: bytes.len() as u64, changed, modified: changed, ..FileStatus::default() }))
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes.lock().unwrap();
        let mut rest = bytes.get(offset as usize..).unwrap_or_default();
        let mut read = 0;
        for buffer in buffers {
            let length = buffer.len().min(rest.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            rest = &rest[length..];
            read += length;
        }
        self.pages_read.fetch_add(read.div_ceil(PAGE_SIZE) as u64, SeqCst);
        Ok(read)
    }
}

pub(super) fn key(number: u64) -> FileKey {
    FileKey { device: 1, inode: number }
}

pub(super) fn all(content: &FileContent) -> Vec<u8> {
    content.pieces().flatten().copied().collect()
}

pub(super) fn cache(pages: u64, below: Option<StoreBelow>) -> FileCache {
    FileCache::new(OVERHEAD + pages * PAGE, 0, Duration::ZERO, below).expect("a cache")
}

pub(super) fn store(pool: u64, device: u64) -> StoreBelow {
    let device: Box<dyn Device> = Box::new(RamDevice::new("ram", device as u32));
    StoreBelow::new(pool * PAGE, vec![(device, 0)], Tier::default(), 7).expect("a store")
}

#[derive(Clone, Debug)]
enum CacheStep {
    Read(u64, u64, usize),
    Write(u64, u64, usize, u8),
    Truncate(u64, u64),
    ChangedByOthers(u64, u64, u8),
    Remove(u64),
    Limit(u64),
    Sweep,
    /// Makes the group of that number, or gives it another limit.
    Group(u8, u64),
    /// Puts a file into the group of that number, or into the root.
    Regroup(u64, u8),
    RemoveGroup(u8),
}

fn step() -> impl Strategy<Value = CacheStep> {
    let (file, offset) = (0u64..3, 0u64..200_000);
    prop_oneof![
        8 => (file.clone(), offset.clone(), 1usize..60_000).prop_map(|(f, o, l)| CacheStep::Read(f, o, l)),
        3 => (file.clone(), offset.clone(), 1usize..20_000, any::<u8>()).prop_map(|(f, o, l, b)| CacheStep::Write(f, o, l, b)),
        1 => (file.clone(), offset.clone()).prop_map(|(f, o)| CacheStep::Truncate(f, o)),
        1 => (file.clone(), offset, any::<u8>()).prop_map(|(f, o, b)| CacheStep::ChangedByOthers(f, o, b)),
        1 => file.prop_map(CacheStep::Remove),
        1 => (1u64..60).prop_map(CacheStep::Limit),
        1 => Just(CacheStep::Sweep),
        1 => (1u8..4, 1u64..40).prop_map(|(g, pages)| CacheStep::Group(g, pages)),
        2 => (0u64..3, 0u8..4).prop_map(|(f, g)| CacheStep::Regroup(f, g)),
        1 => (1u8..4).prop_map(CacheStep::RemoveGroup),
    ]
}

fn put(bytes: &mut Vec<u8>, offset: u64, with: &[u8]) {
    let end = offset as usize + with.len();
    bytes.resize(bytes.len().max(end), 0);
    bytes[offset as usize..end].copy_from_slice(with);
}

fn perform(step: &CacheStep, cache: &FileCache, files: &[MadeFile; 3]) {
    let has = |id: GroupId| cache.lock().pages.groups().has(id);
    match step {
        CacheStep::Read(file, offset, length) => {
            let source = &files[*file as usize];
            let expected: Vec<u8> =
                source.bytes.lock().unwrap().iter().skip(*offset as usize).take(*length).copied().collect();
            let got = cache.read((key(*file), source), *offset, *length, |_, count| count * 2).expect("a read");
            assert!(all(&got) == expected, "{step:?} differs");
        }
        CacheStep::Write(file, offset, length, byte) => {
            let source = &files[*file as usize];
            let write = || {
                source.change(|bytes| put(bytes, *offset, &vec![*byte; *length]));
                Ok(())
            };
            cache.write((key(*file), source), *offset, *length as u64, write).expect("a write");
        }
        CacheStep::Truncate(file, size) => {
            let source = &files[*file as usize];
            let cut = || {
                source.change(|bytes| bytes.resize(*size as usize, 0));
                Ok(())
            };
            cache.write((key(*file), source), *size, u64::MAX, cut).expect("a write");
        }
        CacheStep::ChangedByOthers(file, offset, byte) => {
            files[*file as usize].change(|bytes| put(bytes, *offset, &[*byte; 5000]));
        }
        CacheStep::Remove(file) => cache.remove(key(*file)),
        CacheStep::Limit(pages) => cache.set_ram(OVERHEAD + pages * PAGE + (1 << 20)),
        CacheStep::Sweep => cache.sweep(),
        CacheStep::Group(number, pages) => {
            let id = GroupId::new(*number);
            let above = GroupId::new(number / 2);
            if !has(id) && has(above) {
                cache.add_group(above, None).expect("a group");
            }
            if has(id) {
                cache.limit_group(id, (pages % 5 > 0).then_some(*pages));
            }
        }
        CacheStep::Regroup(file, number) => {
            if has(GroupId::new(*number)) {
                cache.change_groups(&[(key(*file), GroupId::new(*number))]);
            }
        }
        CacheStep::RemoveGroup(number) => {
            if has(GroupId::new(*number)) {
                cache.remove_group(GroupId::new(*number), GroupId::ROOT);
            }
        }
    }
    cache.lock().pages.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A read gives the bytes of the source, after all that is done through the cache and behind
    /// its back.
    #[test]
    fn a_read_gives_what_the_source_has(steps in prop::collection::vec(step(), 1..120)) {
        let cache = cache(20, Some(store(8, 600)));
        let files = [vec![1; 100_000], vec![2; 4096], vec![]].map(MadeFile::of);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| StoreBelow::store_offered(&cache, &stop));
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                steps.iter().for_each(|step| perform(step, &cache, &files));
            }));
            stop.store(true, SeqCst);
            done.expect("each step");
        });
    }
}

/// The content of a page that was written `version` times: it compresses, and says what it is.
fn page_of(number: u64, version: u64) -> Vec<u8> {
    let word = number << 32 | version;
    word.to_le_bytes().repeat(PAGE_SIZE / 8)
}

/// Threads read, write and crowd the cache; a read that begins after a write has ended sees that
/// write or a later one. Pages go to pool and device and come back meanwhile.
#[test]
fn no_read_is_older_than_the_last_write() {
    const PAGES: u64 = 300;
    let cache = cache(60, Some(store(20, 2000)));
    let file = MadeFile::of((0..PAGES).flat_map(|page| page_of(page, 0)).collect());
    let written: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| StoreBelow::store_offered(&cache, &stop));
        scope.spawn(|| {
            let mut random = 1u64;
            let mut round = 0;
            let begun = Instant::now();
            // A reader that has failed reads no more.
            while (round < 3000 || reads.load(SeqCst) < 3000) && begun.elapsed() < Duration::from_secs(20) {
                round += 1;
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let page = (random >> 33) % PAGES;
                let write = || {
                    // Bytes that are read now are old in a moment.
                    std::thread::sleep(Duration::from_micros(50));
                    file.change(|bytes| put(bytes, page * PAGE, &page_of(page, round)));
                    std::thread::sleep(Duration::from_micros(50));
                    Ok(())
                };
                cache.write((key(1), &file), page * PAGE, PAGE, write).expect("a write");
                written[page as usize].store(round, SeqCst);
                // Else nothing would stay valid for as long as it takes to be read.
                std::thread::sleep(Duration::from_micros(50));
            }
            stop.store(true, SeqCst);
        });
        for seed in 0..2u64 {
            let (cache, file, written, stop, reads) = (&cache, &file, &written, &stop, &reads);
            scope.spawn(move || {
                let mut random = seed + 77;
                while !stop.load(SeqCst) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // Some pages are read much more often than others.
                    let first = ((random >> 40) % PAGES) * ((random >> 20) % 4) / 3 % PAGES;
                    let least: Vec<u64> = written.iter().map(|version| version.load(SeqCst)).collect();
                    let got = cache.read((key(1), file), first * PAGE, 4 * PAGE_SIZE, |_, count| count + 3).unwrap();
                    for (page, bytes) in (first..).zip(all(&got).chunks(PAGE_SIZE)) {
                        let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                        assert_eq!(word >> 32, page);
                        assert!(word & 0xffff_ffff >= least[page as usize], "page {page} is stale");
                        assert!(bytes.chunks(8).all(|other| other == &bytes[..8]), "page {page} is torn");
                    }
                    reads.fetch_add(1, SeqCst);
                }
            });
        }
    });
    assert!(reads.load(SeqCst) > 100);
    let counts = &cache.counters;
    assert!(counts.store_hits.load(SeqCst) > 0 && counts.hits.load(SeqCst) > 0);
    assert_eq!(counts.store_errors.load(SeqCst), 0);
}

/// Reads the whole file; returns the pages that came from the source.
pub(super) fn pass(cache: &FileCache, number: u64, file: &MadeFile) -> u64 {
    let before = file.pages_read.load(SeqCst);
    let size = file.bytes.lock().unwrap().len() as u64;
    let mut offset = 0;
    while offset < size {
        offset += cache.read((key(number), file), offset, 16 * PAGE_SIZE, |_, count| count).unwrap().length() as u64;
    }
    file.pages_read.load(SeqCst) - before
}

/// The document's `wschange`: files of three quarters of the cache, each read until nothing of it
/// is missing. The document's kernel needs 5 to 8 reads.
#[test]
fn a_new_working_set_is_cached_after_four_reads() {
    const PAGES: usize = 8192;
    let cache = cache(PAGES as u64, None);
    for number in 1..6 {
        let file = MadeFile::of(vec![number as u8; PAGES * 3 / 4 * PAGE_SIZE]);
        let mut reads = 1;
        while pass(&cache, number, &file) > 0 {
            reads += 1;
            assert!(reads <= 5, "file {number} is not cached after {reads} reads");
        }
        // The last pass only found that all is there.
        println!("file {number}: {} reads", reads - 1);
        assert!(reads - 1 <= 4);
    }
}

/// The document's `wsprotect`: a file of a quarter of the cache is read twice, then one that is
/// larger than the cache streams, again and again.
#[test]
fn a_stream_takes_nothing_from_the_working_set() {
    const PAGES: usize = 8192;
    let cache = cache(PAGES as u64, None);
    let (set, stream) =
        (MadeFile::of(vec![1; PAGES / 4 * PAGE_SIZE]), MadeFile::of(vec![2; PAGES * 17 / 16 * PAGE_SIZE]));
    pass(&cache, 1, &set);
    pass(&cache, 1, &set);
    let mut lost = Vec::new();
    for _ in 0..6 {
        pass(&cache, 2, &stream);
        lost.push(pass(&cache, 1, &set));
    }
    println!("lost of {}: {lost:?}", PAGES / 4);
    // It must be read once more after the first stream to be told from it.
    assert!(lost[1..].iter().all(|lost| *lost <= PAGES as u64 / 400), "{lost:?}");
}

/// Names of files that the kernel knows take memory from the pages, a quarter of all at most.
#[test]
fn names_of_known_files_take_memory_from_pages() {
    const PAGES: u64 = 8192;
    let cache = cache(PAGES, None);
    let file = MadeFile::of(vec![7; 2 * PAGES as usize * PAGE_SIZE]);
    let resident = |names: u64| {
        cache.set_names(names);
        cache.balance();
        for page in 0..2 * PAGES {
            cache.read((key(1), &file), page * PAGE, PAGE_SIZE, |_, missing| missing).expect("a page");
        }
        cache.page_figures().resident
    };
    let (none, some, many) = (resident(0), resident(PAGES / 8 * PAGE), resident(u64::MAX / 2));
    // A sixteenth is left to what is in flight.
    let is_near = |taken: u64, names: u64| taken.abs_diff(names - names / 16) < PAGES / 64;
    assert!(is_near(none - some, PAGES / 8), "{none} pages, {some} beside names");
    assert!(is_near(none - many, cache.ram() / 4 / PAGE), "{none} pages, {many} beside many names");
    assert!(resident(0).abs_diff(none) < PAGES / 64);
}

/// A source that fails: its error comes through, and what was cached stays right.
#[test]
fn errors_of_the_source_are_passed_on() {
    struct BrokenFile(MadeFile, AtomicBool);
    impl FileSource for BrokenFile {
        fn stamp(&self) -> io::Result<Stamp> {
            self.0.stamp()
        }
        fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
            if self.1.load(SeqCst) {
                Err(io::Error::from_raw_os_error(libc::EIO))
            } else {
                self.0.read_at(buffers, offset)
            }
        }
    }
    let cache = cache(100, None);
    let file = BrokenFile(MadeFile::of(vec![9; 40 * PAGE_SIZE]), AtomicBool::new(false));
    let read = |page: u64| cache.read((key(1), &file), page * PAGE, PAGE_SIZE, |_, count| count);
    assert_eq!(all(&read(3).unwrap()), vec![9; PAGE_SIZE]);
    file.1.store(true, SeqCst);
    assert_eq!(read(4).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(all(&read(3).unwrap()), vec![9; PAGE_SIZE]);
    let failed: io::Result<()> =
        cache.write((key(1), &file), 0, 10, || Err(io::Error::from_raw_os_error(libc::ENOSPC)));
    assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    file.1.store(false, SeqCst);
    assert_eq!(all(&read(0).unwrap()), vec![9; PAGE_SIZE]);
}

/// A stamp that was taken within a step of the file system's clock proves nothing at the next
/// check.
#[test]
fn a_change_within_a_step_of_the_clock_is_seen() {
    struct Recent(MadeFile);
    impl FileSource for Recent {
        fn stamp(&self) -> io::Result<Stamp> {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            // The times stand still: a file system with long steps.
            let changed = ((now.as_secs() / 1000 * 1000) as i64, 0);
            let status =
                FileStatus { size: 4096, changed, modified: (now.as_secs() as i64 + 1000, 0), ..Default::default() };
            Ok(Stamp::of(&FileStatus { modified: (status.modified.0 / 1000 * 1000, 0), ..status }))
        }
        fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
            self.0.read_at(buffers, offset)
        }
    }
    let cache = cache(100, None);
    let file = Recent(MadeFile::of(vec![1; PAGE_SIZE]));
    let read = || all(&cache.read((key(1), &file), 0, PAGE_SIZE, |_, count| count).unwrap());
    assert_eq!(read(), vec![1; PAGE_SIZE]);
    file.0.change(|bytes| bytes.fill(2));
    assert_eq!(read(), vec![2; PAGE_SIZE]);
}

/// Pages that were used more than once come back from pool and device, and not from the source.
#[test]
fn what_was_used_twice_is_stored_and_a_stream_is_not() {
    let cache = Arc::new(cache(1024, Some(store(200, 8000))));
    let stop = Arc::new(AtomicBool::new(false));
    let storing = std::thread::spawn({
        let (cache, stop) = (cache.clone(), stop.clone());
        move || StoreBelow::store_offered(&cache, &stop)
    });
    let text = |number: u64| (0..2000).flat_map(|page| page_of(page, number)).collect();
    let stream = MadeFile::of(text(9));
    pass(&cache, 9, &stream);
    assert_eq!(cache.lock().pages.stored(), 0, "a stream");
    let file = MadeFile::of(text(1));
    for _ in 0..6 {
        pass(&cache, 1, &file);
        // The thread that stores keeps up, as it need not do otherwise.
        std::thread::sleep(Duration::from_millis(50));
    }
    let stored = cache.lock().pages.stored();
    assert!(stored > 0, "nothing is stored");
    let before = cache.counters.store_hits.load(SeqCst);
    pass(&cache, 1, &file);
    assert!(cache.counters.store_hits.load(SeqCst) > before);
    stop.store(true, SeqCst);
    storing.join().expect("the thread that stores");
}
