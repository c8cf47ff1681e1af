//! A cache that outlives its mount (`--keep FILE`): what lies on the devices is found again by the
//! next mount of the same source.
//!
//! The file says which page of which file lies where (`kept_index.rs`). It is written every half
//! minute, and when the mount ends, after all pages in memory have gone to the devices as far as
//! there is room and time. Three things stand between what it says and a reader:
//!
//! 1. A page is noted only under a settled stamp of its file, while no write is under way, and it
//!    counts only as long as the source's file has that stamp: the first read compares them.
//! 2. A page has a checksum of 64 bits with a key of the mount's own. After a kill the file is some
//!    time old, and other pages may lie where it points: these are read from the source.
//! 3. The file has a checksum, and counts as a whole or not at all.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_store::{Scratch, WritebackScratch};

use crate::cache::file::{FileEntry, FileKey, Stamp};
use crate::cache::groups::GroupId;
use crate::cache::kept_index::{self, IndexWriter, KeptHead, KeptPart, MOST_PAGES};
use crate::cache::pages::Displaced;
use crate::cache::store_below::StoreBelow;
use crate::cache::{CacheTables, FileCache};

/// Interval at which the file is written, and its least multiple of the time that this takes.
const INTERVAL: Duration = Duration::from_secs(30);
const INTERVAL_IN_SAVES: u32 = 20;
/// Time in which pages go to the devices at the end.
const END: Duration = Duration::from_secs(5);
/// Page words looked at under one lock.
const LOOKS: usize = 4096;
/// Pages that leave memory together at the end.
const LEAVE_TOGETHER: usize = 64;

/// The file of a mount.
#[derive(Debug)]
pub struct CacheKeeper {
    path: PathBuf,
    source: Vec<u8>,
    /// The file system of the source. Files of what is mounted below it are not kept: their numbers
    /// may be those of other files next time.
    device: u64,
    found: Option<KeptHead>,
    next: Instant,
}

impl CacheKeeper {
    /// Looks at the file. `source`: the folder whose files are cached, on this file system.
    ///
    /// # Errors
    /// For the user: it is a file of another kind or of another source, or cannot be read.
    pub fn open(path: &Path, source: &[u8], device: u64) -> Result<Self, String> {
        let named = |error: &dyn std::fmt::Display| format!("--keep {}: {error}", path.display());
        let found = match File::open(path).and_then(|file| kept_index::read(BufReader::new(file), |_, _| {})) {
            Ok(head) if head.source != source => {
                let other = String::from_utf8_lossy(&head.source).into_owned();
                return Err(named(&format!("it is of {other}; give each source a file of its own")));
            }
            Ok(head) => Some(head),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
                eprintln!("uswap: {}; the cache begins empty", named(&format!("it is not whole ({error})")));
                None
            }
            Err(error) => return Err(named(&error)),
        };
        let (path, source, next) = (path.to_path_buf(), source.to_vec(), Instant::now() + INTERVAL);
        let keeper = Self { path, source, device, found, next };
        // A mount that could not write it is refused now, and not after its first half minute.
        let made = keeper.make().and_then(|_| fs::remove_file(keeper.new_path()));
        made.map_err(|error| format!("--keep {}: {error}", keeper.new_path().display()))?;
        Ok(keeper)
    }

    /// The seed of the checksums that were found.
    pub fn seed(&self) -> Option<u64> {
        self.found.as_ref().map(|head| head.seed)
    }

    /// Takes into an empty cache what the devices hold. Beyond a quarter of the memory for tables
    /// the rest is left out.
    ///
    /// # Errors
    /// For the user: the content of a device goes with the mount; the file could not be read a
    /// second time.
    pub fn restore(&mut self, cache: &FileCache) -> Result<(), String> {
        let with_devices = cache.below().filter(|below| !below.store().device_names().is_empty());
        let below = with_devices.ok_or("--keep needs --swap: only what lies on a file or device is kept")?;
        let passing = below.store().keep_devices();
        if let Some(name) = passing.first() {
            return Err(format!(
                "--keep: what lies on {name} goes with the mount; give a file, block device or NBD server"
            ));
        }
        let names = below.store().device_names();
        if self.found.take().is_none() {
            return Ok(());
        }
        let place = |head: &KeptHead, device: u8| {
            let name = head.devices.get(usize::from(device))?;
            names.iter().find(|(_, its)| its == name).map(|(number, _)| *number)
        };
        let (device, mut found) = (self.device, 0);
        let take = |head: &KeptHead, part: KeptPart| {
            if below.has_table_room(cache.ram()) {
                found += cache.take_kept(device, below, part, |device| place(head, device));
            }
        };
        File::open(&self.path)
            .and_then(|file| kept_index::read(BufReader::new(file), take))
            .map_err(|error| format!("--keep {}: {error}", self.path.display()))?;
        [&cache.counters.found, &cache.counters.kept].iter().for_each(|counter| counter.store(found, Relaxed));
        // The tables have grown, and pages in memory get what they leave.
        cache.balance();
        Ok(())
    }

    /// Writes the file, if it is time to. Returns whether it was.
    ///
    /// # Errors
    /// Of the file system: the file is as it was.
    pub fn save_now_and_then(&mut self, cache: &FileCache) -> io::Result<bool> {
        let begun = Instant::now();
        if begun < self.next {
            return Ok(false);
        }
        let saved = self.save(cache);
        self.next = Instant::now() + INTERVAL.max(begun.elapsed() * INTERVAL_IN_SAVES);
        saved.map(|()| true)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Of the file system: the file is as it was.
    pub fn save(&mut self, cache: &FileCache) -> io::Result<()> {
        let Some(below) = cache.below() else { return Ok(()) };
        // Devices that were added meanwhile.
        let passing = below.store().keep_devices();
        let lasting = below.store().device_names().into_iter().filter(|(_, name)| !passing.contains(name));
        let (numbers, devices): (Vec<u8>, Vec<String>) = lasting.unzip();
        let places: HashMap<u8, u8> = numbers.into_iter().zip(0..).collect();
        let head = KeptHead { seed: below.seed(), source: self.source.clone(), devices };
        let mut kept = 0;
        let mut writer = IndexWriter::new(BufWriter::new(self.make()?), &head)?;
        for file in cache.kept_files(self.device) {
            let mut from = Some(0);
            while let Some(page) = from {
                let (part, next) = cache.part_to_keep(file, page, |device| places.get(&device).copied());
                if !part.pages.is_empty() {
                    writer.part(&part)?;
                    kept += part.pages.len() as u64;
                }
                from = next;
            }
        }
        let file = writer.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        fs::rename(self.new_path(), &self.path)?;
        cache.counters.kept.store(kept, Relaxed);
        Ok(())
    }

    /// The end of the mount: what is in memory goes to the devices, and the file is written.
    ///
    /// # Errors
    /// Of the file system: the file is as it was.
    pub fn close(&mut self, cache: &FileCache) -> io::Result<()> {
        if let Some(below) = cache.below() {
            cache.leave_memory(below, Instant::now() + END);
        }
        self.save(cache)
    }

    fn new_path(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".new");
        name.into()
    }

    fn make(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(self.new_path())
    }
}

impl FileCache {
    /// Files of a file system.
    fn kept_files(&self, device: u64) -> Vec<FileKey> {
        self.lock().files.keys().filter(|file| file.device == device).copied().collect()
    }

    /// Stored pages of a file from `page` on that may be kept, and the page at which to go on.
    /// `place`: the device's place in the file.
    fn part_to_keep(&self, file: FileKey, page: u64, place: impl Fn(u8) -> Option<u8>) -> (KeptPart, Option<u64>) {
        let mut part = KeptPart { inode: file.inode, size: 0, times: Default::default(), pages: Vec::new() };
        let tables = self.lock();
        let Some(entry) = tables.files.get(&file) else { return (part, None) };
        let (Some(below), Some(stamp), Some(range)) = (self.below(), entry.kept_stamp(), entry.range) else {
            return (part, None);
        };
        (part.size, part.times) = (stamp.size, stamp.times());
        for (looks, (key, object)) in tables.pages.words_in(range.keys_from(page)).enumerate() {
            let number = range.page(key);
            if looks == LOOKS || part.pages.len() == MOST_PAGES {
                return (part, Some(number));
            }
            let Some(kept) = object.and_then(|object| below.store().kept(object)) else { continue };
            let Some(place) = place(kept.device()) else { continue };
            part.pages.push((number, kept.on_device(place)));
        }
        (part, None)
    }

    /// Takes in pages that were kept; returns how many. `place`: the number of a device.
    fn take_kept(&self, device: u64, below: &StoreBelow, part: KeptPart, place: impl Fn(u8) -> Option<u8>) -> u64 {
        let stamp = Stamp::kept(part.size, part.times);
        let file = FileKey { device, inode: part.inode };
        let (mut displaced, mut stored) = (Displaced::default(), Vec::new());
        let mut tables = self.lock();
        let CacheTables { files, pages } = &mut *tables;
        if let Some(range) = files.get(&file).filter(|entry| entry.has_other(&stamp)).and_then(|entry| entry.range) {
            // The file was changed while its parts were written: the later ones count.
            pages.give_range_back(range, &mut displaced.released);
            files.remove(&file);
        }
        let whole = part.size.div_ceil(uswap_core::PAGE);
        let entry = files.entry(file).or_insert_with(|| FileEntry::kept(stamp, pages.take_range(whole, GroupId::ROOT)));
        for (page, object) in part.pages {
            let Some(key) = entry.range.and_then(|range| range.key(page)).filter(|_| page < whole) else { continue };
            let object = place(object.device()).map(|number| object.on_device(number));
            if pages.has(key) {
                continue;
            }
            if let Some(object) = object.and_then(|object| below.store().adopt(object)) {
                pages.note_kept(key, object);
                stored.push((key, object));
            }
        }
        drop(tables);
        self.settle(displaced);
        below.note_order(&stored);
        stored.len() as u64
    }

    /// All pages leave memory and the pool, as far as there is room and time.
    fn leave_memory(&self, below: &StoreBelow, deadline: Instant) {
        let (mut scratch, mut working) = (Scratch::new(), WritebackScratch::new());
        // Pages that are stored from now on go to the devices, and those in the pool must leave it.
        below.store().set_pool_limit(0);
        while Instant::now() < deadline {
            let mut displaced = Displaced::default();
            let mut tables = self.lock();
            tables.pages.store_some(LEAVE_TOGETHER, &mut displaced);
            drop(tables);
            below.release(&displaced.released);
            if displaced.leaving.is_empty() {
                break;
            }
            below.put(self, &mut displaced.leaving, &mut scratch);
        }
        while Instant::now() < deadline && below.store().needs_writeback() {
            if !below.store().writeback(&mut working).progressed() {
                break;
            }
        }
    }
}
