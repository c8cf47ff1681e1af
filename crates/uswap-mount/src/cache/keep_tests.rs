//! `--keep` on sources that are made up: what the next mount finds, and what it must not trust.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use uswap_device::{Device, RamDevice};
use uswap_store::Tier;

use super::tests::{MadeFile, all, cache, key, store};
use super::*;
use crate::cache::keep::CacheKeeper;

/// A cache over a device that outlives it, and its keeper.
struct KeptCache {
    cache: FileCache,
    keeper: CacheKeeper,
}

impl KeptCache {
    fn open(index: &Path, device: &Arc<RamDevice>, pages: u64) -> Result<Self, String> {
        let mut keeper = CacheKeeper::open(index, b"/source", 1)?;
        let devices: Vec<(Box<dyn Device>, i32)> = vec![(Box::new(Lasting(Arc::clone(device))), 0)];
        let below = StoreBelow::new(64 * PAGE, devices, Tier::default(), keeper.seed().unwrap_or(7)).expect("a store");
        let cache = cache(pages, Some(below));
        keeper.restore(&cache)?;
        Ok(Self { cache, keeper })
    }

    fn kept(&self) -> u64 {
        self.cache.counters.kept.load(SeqCst)
    }

    fn found(&self) -> u64 {
        self.cache.counters.found.load(SeqCst)
    }

    /// The whole file, and how many pages of it came from the source.
    fn read(&self, number: u64, file: &MadeFile) -> (Vec<u8>, u64) {
        let before = file.pages_read.load(SeqCst);
        let length = file.bytes.lock().unwrap().len();
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let content = self.cache.read((key(number), file), bytes.len() as u64, 1 << 16, |_, count| count);
            bytes.extend(all(&content.expect("a read")));
        }
        (bytes, file.pages_read.load(SeqCst) - before)
    }
}

/// A device in memory whose content is said to stay.
struct Lasting(Arc<RamDevice>);

impl Device for Lasting {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn slots(&self) -> u32 {
        self.0.slots()
    }
    fn class(&self) -> uswap_device::DeviceClass {
        self.0.class()
    }
    fn write(&self, first: u32, bytes: &[u8]) -> Result<(), uswap_device::Errno> {
        self.0.write(first, bytes)
    }
    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), uswap_device::Errno> {
        self.0.read(first, bytes)
    }
    fn keep(&self) -> bool {
        true
    }
}

/// The file of a keeper, in a folder that goes with the test.
struct IndexFile(PathBuf);

impl IndexFile {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("uswap-keep-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder.join("index"))
    }
}

impl Drop for IndexFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().expect("a folder"));
    }
}

/// Pages that do not compress.
fn pages_of(number: u64, count: u64) -> Vec<u8> {
    let next = |word: &u64| Some(word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(number * 2 + 1));
    let words = std::iter::successors(Some(number), next).map(|word| word ^ word >> 29);
    words.take((count * PAGE / 8) as usize).flat_map(u64::to_le_bytes).collect()
}

#[test]
fn what_was_cached_is_found_by_the_next_mount() {
    let (index, device) = (IndexFile::new("found"), Arc::new(RamDevice::new("disk", 4096)));
    let files = [1, 2, 3].map(|number| MadeFile::of(pages_of(number, 500)));
    let mut first = KeptCache::open(&index.0, &device, 2048).expect("a cache");
    for (number, file) in (1..).zip(&files) {
        first.read(number, file);
    }
    first.keeper.close(&first.cache).expect("a file");
    assert!(first.kept() >= 1400, "{}", first.kept());
    drop(first);
    // Meanwhile one page of the second file is changed, and the third file is another one.
    files[1].change(|bytes| bytes[5000] ^= 1);
    let second = KeptCache::open(&index.0, &device, 2048).expect("a cache");
    assert!(second.found() >= 1400);
    let (bytes, from_source) = second.read(1, &files[0]);
    assert!(bytes == pages_of(1, 500) && from_source < 40, "{from_source} pages from the source");
    let (bytes, from_source) = second.read(2, &files[1]);
    assert!(bytes == *files[1].bytes.lock().unwrap() && from_source >= 500, "{from_source} pages from the source");
    let (bytes, from_source) = second.read(9, &files[2]);
    assert!(bytes == pages_of(3, 500) && from_source >= 500, "a file of another number");
}

/// The process was killed: the file is older than what lies on the device.
#[test]
fn what_was_overwritten_after_the_last_save_comes_from_the_source() {
    let (index, device) = (IndexFile::new("overwritten"), Arc::new(RamDevice::new("disk", 1024)));
    let files = [1, 2].map(|number| MadeFile::of(pages_of(number, 900)));
    let mut first = KeptCache::open(&index.0, &device, 1024).expect("a cache");
    first.read(1, &files[0]);
    first.keeper.close(&first.cache).expect("a file");
    let noted = std::fs::read(&index.0).expect("a file");
    first.cache.remove(key(1));
    first.read(2, &files[1]);
    first.keeper.close(&first.cache).expect("a file");
    drop(first);
    std::fs::write(&index.0, noted).expect("a file");
    let second = KeptCache::open(&index.0, &device, 1024).expect("a cache");
    assert!(second.found() > 500);
    assert!(second.read(1, &files[0]).0 == pages_of(1, 900));
    assert!(second.cache.counters.store_errors.load(SeqCst) > 100, "nothing was overwritten");
    assert!(second.read(2, &files[1]).0 == pages_of(2, 900));
}

#[test]
fn a_file_of_something_else_is_refused_and_a_broken_one_counts_as_none() {
    let (file, device) = (IndexFile::new("refused"), Arc::new(RamDevice::new("disk", 1024)));
    let index = file.0.clone();
    let refusal = |result: Result<KeptCache, String>| result.err().expect("a refusal");
    std::fs::write(&index, "a letter to a friend").expect("a file");
    assert!(refusal(KeptCache::open(&index, &device, 64)).ends_with("index: it holds something else"));
    assert_eq!(std::fs::read(&index).expect("a file"), b"a letter to a friend", "it is left as it was");
    std::fs::remove_file(&index).expect("a file");
    let mut cache = KeptCache::open(&index, &device, 64).expect("a cache");
    cache.keeper.close(&cache.cache).expect("a file");
    let other = CacheKeeper::open(&index, b"/other", 1).expect_err("a refusal");
    assert!(other.ends_with("it is of /source; give each source a file of its own"), "{other}");
    let bytes = std::fs::read(&index).expect("a file");
    std::fs::write(&index, &bytes[..bytes.len() - 3]).expect("a file");
    assert_eq!(KeptCache::open(&index, &device, 64).expect("a cache").found(), 0);
    // A device that goes with its mount keeps nothing.
    let mut keeper = CacheKeeper::open(&index, b"/source", 1).expect("a keeper");
    let passing = FileCache::new(OVERHEAD + 64 * PAGE, 0, Duration::ZERO, Some(store(1, 1024))).expect("a cache");
    assert!(keeper.restore(&passing).is_err_and(|error| error.contains("what lies on ram goes with the mount")));
}
