//! FileContent of regular files: opening, reading, writing.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use uswap_core::PAGE;
use uswap_sys::fs::{inode, open_file};

use crate::cache::add;
use crate::cache::file::FileKey;
use crate::fuse::reply::FuseAnswer;
use crate::fuse::request::FuseRequest;
use crate::fuse::session::{MOST_PAGES, Outcome};
use crate::tree::names::masked;
use crate::tree::node::OpenNode;
use crate::tree::nodes::FoundFile;
use crate::tree::open_file::OpenFile;
use crate::tree::{RequestResult, SourceTree, done, short};

/// How the kernel is to treat an open file (`FOPEN_` of the kernel).
const DIRECT_IO: u32 = 1;
const NO_FLUSH: u32 = 1 << 5;

impl SourceTree {
    /// Flags for the source. Direct I/O there would need aligned buffers.
    fn flags(asked: i32) -> i32 {
        asked & !(libc::O_DIRECT | libc::O_NOFOLLOW | libc::O_NONBLOCK)
    }

    fn told_open(&self, open: OpenFile, flags: i32) -> (u64, u32) {
        let direct = if self.maps_direct { DIRECT_IO } else { 0 };
        let no_flush = if flags & libc::O_ACCMODE == libc::O_RDONLY { NO_FLUSH } else { 0 };
        (self.files.add(open), direct | no_flush)
    }

    pub(super) fn open(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let flags = Self::flags(request.body.u32().ok_or_else(short)? as i32);
        let node = self.node(request.node)?;
        let open = || inode::open(node.as_fd(), flags).map(File::from);
        let file = if flags & libc::O_TRUNC != 0 {
            let status = inode::status(node.as_fd())?;
            self.with_cut(node.as_fd(), &status, open)?
        } else {
            open()?
        };
        let open = OpenFile::new(file, node, flags);
        // Changes behind the back of the mount are seen at open.
        self.cache.check(open.key(), &open, Duration::ZERO)?;
        let (handle, how) = self.told_open(open, flags);
        let mut answer = FuseAnswer::default();
        answer.opened(handle, how);
        Ok(Outcome::Answer(answer))
    }

    pub(super) fn create(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let body = &mut request.body;
        let flags = Self::flags(body.u32().ok_or_else(short)? as i32);
        let (mode, mask) = (body.u32().ok_or_else(short)?, body.u32().ok_or_else(short)?);
        body.u32().ok_or_else(short)?;
        let name = body.name().ok_or_else(short)?;
        let folder = self.node(request.node)?;
        let acting = self.acting_for(request);
        let file = inode::create(folder.as_fd(), name, flags, masked(&folder, mode, mask))?;
        drop(acting);
        let found = FoundFile::look_up(&folder, name)?;
        if FileKey::from(&found.status) != FileKey::from(&inode::status(file.as_fd())?) {
            return Ok(Outcome::Error(libc::ESTALE));
        }
        self.made(&folder, found, file.into(), flags)
    }

    pub(super) fn create_unnamed(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let body = &mut request.body;
        let flags = Self::flags(body.u32().ok_or_else(short)? as i32);
        let (mode, mask) = (body.u32().ok_or_else(short)?, body.u32().ok_or_else(short)?);
        let folder = self.node(request.node)?;
        let acting = self.acting_for(request);
        let file = inode::create_unnamed(folder.as_fd(), flags, masked(&folder, mode, mask))?;
        drop(acting);
        let found = FoundFile::unnamed(inode::open(file.as_fd(), libc::O_PATH)?)?;
        self.made(&folder, found, file.into(), flags)
    }

    /// The answer for a file that was made, or was there already, and is open now.
    fn made(&self, folder: &OpenNode, found: FoundFile, file: File, flags: i32) -> RequestResult {
        let (number, status) = self.found(folder, found);
        // It may have been there, and O_TRUNC has emptied it.
        let open = OpenFile::new(file, self.node(number)?, flags);
        self.cache.check(open.key(), &open, Duration::ZERO)?;
        let (handle, how) = self.told_open(open, flags);
        let mut answer = FuseAnswer::default();
        answer.entry(number, &status, self.valid).opened(handle, how);
        Ok(Outcome::Answer(answer))
    }

    pub(super) fn read(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let body = &mut request.body;
        let (handle, offset) = (body.u64().ok_or_else(short)?, body.u64().ok_or_else(short)?);
        let length = (body.u32().ok_or_else(short)? as usize).min(MOST_PAGES * PAGE as usize);
        let open = self.files.get(handle)?;
        let content =
            self.cache.read((open.key(), &*open), offset, length, |from, count| open.together(from, count))?;
        if content.length() > 0 {
            let reached = (offset + content.length() as u64 - 1) / PAGE;
            if let Some((first, count)) = open.lead(reached, self.prefetcher.most(open.key().device)) {
                self.prefetcher.read((open.key(), open), first, count);
            }
        }
        Ok(Outcome::Content(content))
    }

    pub(super) fn write(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let body = &mut request.body;
        let (handle, offset) = (body.u64().ok_or_else(short)?, body.u64().ok_or_else(short)?);
        let length = body.u32().ok_or_else(short)? as usize;
        body.bytes(20).ok_or_else(short)?;
        let data = body.bytes(length).ok_or_else(short)?;
        let open = self.files.get(handle)?;
        // An appending write goes wherever the file ends.
        let (from, reach) = match open.appends {
            true => (self.cache.check(open.key(), &*open, Duration::ZERO)?, u64::MAX),
            false => (offset, length as u64),
        };
        let write = || write_all(&open.file, data, offset);
        let written = self.cache.write((open.key(), &*open), from, reach, write)?;
        add(&self.cache.counters.written, (written as u64).div_ceil(PAGE));
        let mut answer = FuseAnswer::default();
        answer.u32(written as u32).u32(0);
        Ok(Outcome::Answer(answer))
    }

    pub(super) fn release(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        self.files.remove(request.body.u64().ok_or_else(short)?);
        done()
    }

    /// Closes a copy of the descriptor: some file systems report errors of writes then.
    pub(super) fn flush(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let open = self.files.get(request.body.u64().ok_or_else(short)?)?;
        inode::close(open.file.as_fd().try_clone_to_owned()?)?;
        done()
    }

    pub(super) fn sync(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let open = self.files.get(request.body.u64().ok_or_else(short)?)?;
        let data_only = request.body.u32().ok_or_else(short)? & 1 != 0;
        if data_only {
            open.file.sync_data()?
        } else {
            open.file.sync_all()?
        }
        done()
    }

    pub(super) fn allocate(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let body = &mut request.body;
        let (handle, offset) = (body.u64().ok_or_else(short)?, body.u64().ok_or_else(short)?);
        let (length, mode) = (body.u64().ok_or_else(short)?, body.u32().ok_or_else(short)?);
        let open = self.files.get(handle)?;
        let change = || open_file::allocate(open.file.as_fd(), mode, offset, length);
        // Some modes move all that follows.
        self.cache.write((open.key(), &*open), offset, u64::MAX, change)?;
        done()
    }

    pub(super) fn seek(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let body = &mut request.body;
        let (handle, offset) = (body.u64().ok_or_else(short)?, body.u64().ok_or_else(short)?);
        let whence = body.u32().ok_or_else(short)?;
        let found = open_file::seek(self.files.get(handle)?.file.as_fd(), offset, whence)?;
        let mut answer = FuseAnswer::default();
        answer.u64(found);
        Ok(Outcome::Answer(answer))
    }

    pub(super) fn copy_range(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let body = &mut request.body;
        let (from, from_at) = (body.u64().ok_or_else(short)?, body.u64().ok_or_else(short)?);
        body.u64().ok_or_else(short)?;
        let (to, to_at) = (body.u64().ok_or_else(short)?, body.u64().ok_or_else(short)?);
        let length = body.u64().ok_or_else(short)?;
        let (from, to): (Arc<OpenFile>, Arc<OpenFile>) = (self.files.get(from)?, self.files.get(to)?);
        let copy = || open_file::copy_range((from.file.as_fd(), from_at), (to.file.as_fd(), to_at), length);
        let copied = self.cache.write((to.key(), &*to), to_at, length, copy)?;
        let mut answer = FuseAnswer::default();
        answer.u32(copied as u32).u32(0);
        Ok(Outcome::Answer(answer))
    }
}

/// Writes as much as can be written. An error after some bytes is found again by the next write.
fn write_all(file: &File, data: &[u8], offset: u64) -> io::Result<usize> {
    let mut written = 0;
    while written < data.len() {
        match file.write_at(&data[written..], offset + written as u64) {
            Ok(0) => break,
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if written == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(written)
}
