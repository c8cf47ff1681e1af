//! The cache's knowledge of one file of the source, and when it is still true.
//!
//! The *stamp* (size, times of modification and of change) says which content was cached. A file
//! whose stamp differs at a check was changed by others, and nothing of it is valid any more. The
//! cache's own writes renew the stamp.
//!
//! Times of file systems go in steps: a file that was changed twice within one step shows one
//! stamp. So a stamp that was taken so soon after the change that another one could hide behind it
//! is not *settled*: what was read meanwhile counts as invalid at the next check (git does the same
//! with its index, "racy git").

use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use uswap_sys::fs::inode::FileStatus;

use crate::cache::groups::GroupId;
use crate::cache::keys::KeyRange;

/// The longest step of the times of a file system, apart from FAT: a tick of 100 Hz and some delay.
const STEP: Duration = Duration::from_millis(30);

/// A file of the source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileKey {
    /// The file system that has it.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl From<&FileStatus> for FileKey {
    fn from(status: &FileStatus) -> Self {
        Self { device: status.device, inode: status.inode }
    }
}

/// The mark of a content.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// Size in bytes.
    pub size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
    /// Another change would show.
    settled: bool,
}

impl Stamp {
    /// The stamp of a status that was taken just now.
    pub fn of(status: &FileStatus) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let last = status.changed.max(status.modified);
        let last = Duration::new(u64::try_from(last.0).unwrap_or(0), last.1);
        let settled = now.checked_sub(last).is_some_and(|age| age > STEP);
        Self { size: status.size, modified: status.modified, changed: status.changed, settled }
    }

    /// A settled stamp of earlier: size, times of modification and of change.
    pub fn kept(size: u64, [modified, changed]: [(i64, u32); 2]) -> Self {
        Self { size, modified, changed, settled: true }
    }

    /// Times of modification and of change.
    pub fn times(&self) -> [(i64, u32); 2] {
        [self.modified, self.changed]
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.size, self.modified, self.changed) == (other.size, other.modified, other.changed)
    }
}

/// Where the content of a file comes from.
pub trait FileSource: Send + Sync {
    /// The present stamp.
    ///
    /// # Errors
    /// Those of the source.
    fn stamp(&self) -> io::Result<Stamp>;

    /// The group that the file belongs to now; `None`: it stays in the one that it is in.
    fn group(&self) -> Option<GroupId> {
        None
    }

    /// Reads as much as there is, at most what the buffers take.
    ///
    /// # Errors
    /// Those of the source.
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize>;
}

/// The cached part of a file.
#[derive(Debug)]
pub struct FileEntry {
    /// The keys of its pages; `None`: nothing was cached yet.
    pub range: Option<KeyRange>,
    /// The group that its keys belong to, or will.
    pub group: GroupId,
    /// The stamp of the cached content; `None`: unknown.
    stamp: Option<Stamp>,
    /// When the stamp was last compared with the source's; `None`: not since the mount began.
    checked: Option<Instant>,
    /// Changes with each invalidation, and no other file ever had it: what was read under another
    /// version is not cached, also if the file was forgotten and met again meanwhile.
    version: u64,
    /// Writes under way: what is read meanwhile is not cached.
    writers: u32,
    /// Pages that threads are reading from the source now.
    fetching: Vec<Range<u64>>,
}

fn new_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Relaxed)
}

impl Default for FileEntry {
    fn default() -> Self {
        let (range, group, stamp, checked) = (None, GroupId::ROOT, None, None);
        Self { range, group, stamp, checked, version: new_version(), writers: 0, fetching: Vec::new() }
    }
}

impl FileEntry {
    /// A file of which an earlier mount has kept pages.
    pub fn kept(stamp: Stamp, range: Option<KeyRange>) -> Self {
        Self { range, stamp: Some(stamp), ..Self::default() }
    }

    /// The size, if the stamp is settled and was compared no longer ago than this.
    pub fn fresh_size(&self, within: Duration) -> Option<u64> {
        let is_fresh = self.checked.is_some_and(|checked| checked.elapsed() <= within);
        self.stamp.filter(|stamp| stamp.settled && is_fresh).map(|stamp| stamp.size)
    }

    /// The stamp under which another mount may take the cached content for the file's.
    pub fn kept_stamp(&self) -> Option<Stamp> {
        self.stamp.filter(|stamp| stamp.settled && self.writers == 0)
    }

    /// Whether another stamp than this is known.
    pub fn has_other(&self, stamp: &Stamp) -> bool {
        self.stamp.is_some_and(|known| !known.is_same(stamp))
    }

    /// Takes the present stamp of the source over. Returns whether the cached content is invalid.
    #[must_use]
    pub fn compare(&mut self, stamp: Stamp, now: Instant) -> bool {
        let valid = self.stamp.is_some_and(|known| known.settled && known.is_same(&stamp));
        (self.stamp, self.checked) = (Some(stamp), Some(now));
        if !valid {
            self.version = new_version();
        }
        !valid
    }

    /// A write begins. The pages that it overwrites are to be forgotten now.
    pub fn begin_write(&mut self) {
        self.writers += 1;
        self.version = new_version();
    }

    /// A write has ended, and the file has this stamp now; `None`: it cannot be known, and nothing
    /// that is cached counts as valid any more.
    pub fn end_write(&mut self, stamp: Option<Stamp>, now: Instant) {
        self.writers -= 1;
        (self.stamp, self.checked) = (stamp, Some(now));
    }

    /// Takes on to read these pages, or as many of the first of them as nobody else is reading.
    /// `None`: another thread is reading the first.
    pub fn begin_fetch(&mut self, pages: Range<u64>) -> Option<Range<u64>> {
        if self.fetching.iter().any(|other| other.contains(&pages.start)) {
            return None;
        }
        let others = self.fetching.iter().map(|other| other.start).filter(|start| *start > pages.start);
        let taken = pages.start..others.min().unwrap_or(u64::MAX).min(pages.end);
        self.fetching.push(taken.clone());
        Some(taken)
    }

    /// Whether a thread is reading the page.
    pub fn is_fetched(&self, page: u64) -> bool {
        self.fetching.iter().any(|other| other.contains(&page))
    }

    /// These pages were read, or could not be.
    pub fn end_fetch(&mut self, pages: &Range<u64>) {
        self.fetching.retain(|other| other != pages);
    }

    /// Whether anything is under way for which the entry must stay.
    pub fn is_busy(&self) -> bool {
        self.writers > 0 || !self.fetching.is_empty()
    }

    /// Whether writes are under way.
    pub fn is_written(&self) -> bool {
        self.writers > 0
    }

    /// The version under which pages that are read from now on may be cached; `None`: they may not.
    pub fn version(&self) -> Option<u64> {
        (self.writers == 0).then_some(self.version)
    }
}
