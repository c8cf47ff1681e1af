//! Open files and folders, and the streams in which files are read.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use uswap_core::PAGE;
use uswap_core::readahead::streams::Streams;
use uswap_sys::fs::{inode, open_file};

use crate::cache::file::{FileKey, FileSource, Stamp};
use crate::cache::groups::GroupId;
use crate::tree::node::OpenNode;

/// The most pages that are read with one that is missing.
const MOST_TOGETHER: u32 = 256;

/// Open files and folders, by the numbers that the kernel uses.
#[derive(Debug)]
pub struct Handles<T>(Mutex<(HashMap<u64, Arc<T>>, u64)>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(Mutex::new((HashMap::new(), 0)))
    }
}

impl<T> Handles<T> {
    /// Gives it a number.
    pub fn add(&self, open: T) -> u64 {
        let mut table = self.0.lock().expect("handles");
        table.1 += 1;
        let number = table.1;
        table.0.insert(number, Arc::new(open));
        number
    }

    /// The open file or folder that has the number.
    ///
    /// # Errors
    /// EBADF: nothing has.
    pub fn get(&self, number: u64) -> io::Result<Arc<T>> {
        let table = self.0.lock().expect("handles");
        table.0.get(&number).cloned().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Takes the number back.
    pub fn remove(&self, number: u64) {
        self.0.lock().expect("handles").0.remove(&number);
    }
}

/// An open regular file of the source.
#[derive(Debug)]
pub struct OpenFile {
    /// The file itself.
    pub file: File,
    /// Its descriptor stays: a name may be removed behind the back of the mount.
    node: OpenNode,
    /// All writes go to its end.
    pub appends: bool,
    streams: Mutex<Streams>,
    /// Reads leave nothing in the kernel's cache by a flag; otherwise they are followed by advice.
    passes: AtomicBool,
}

impl OpenFile {
    /// A file that was just opened with these flags.
    pub fn new(file: File, node: OpenNode, flags: i32) -> Self {
        let (appends, streams) = (flags & libc::O_APPEND != 0, Mutex::default());
        Self { file, node, appends, streams, passes: AtomicBool::new(true) }
    }

    /// The file in the cache.
    pub fn key(&self) -> FileKey {
        self.node.key
    }

    /// How many pages are to be read where `missing` ones are, beginning with page `from`.
    pub fn together(&self, from: u64, missing: u64) -> u64 {
        let mut streams = self.streams.lock().expect("streams");
        let window = streams.window(from * PAGE, MOST_TOGETHER);
        let pages = if window.is_run() { u64::from(window.pages).max(missing) } else { missing };
        streams.advance((from + pages) * PAGE);
        pages
    }

    /// The pages to be read now, since this one was reached: the first, and how many. At most
    /// `most` are to be read ahead.
    pub fn lead(&self, reached: u64, most: u64) -> Option<(u64, u64)> {
        let mut streams = self.streams.lock().expect("streams");
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let lead = streams.reached(reached * PAGE, most).filter(|lead| lead.window.is_run())?;
        streams.advance_lead(lead, lead.from + u64::from(lead.window.pages) * PAGE);
        Some((lead.from / PAGE, u64::from(lead.window.pages)))
    }
}

impl FileSource for OpenFile {
    fn stamp(&self) -> io::Result<Stamp> {
        inode::status(self.file.as_fd()).map(|status| Stamp::of(&status))
    }

    fn group(&self) -> Option<GroupId> {
        Some(self.node.group())
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let file = self.file.as_fd();
        if self.passes.load(Relaxed) {
            match open_file::read_at(file, buffers, offset, true) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
                    self.passes.store(false, Relaxed);
                }
                result => return result,
            }
        }
        let read = open_file::read_at(file, buffers, offset, false)?;
        open_file::forget(file, offset, read as u64);
        Ok(read)
    }
}
