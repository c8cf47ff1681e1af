//! Metadata of files and of the file system.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

use uswap_sys::fs::inode::{self, FileStatus, NewTime};
use uswap_sys::fs::open_file;

use crate::cache::file::{FileKey, FileSource, Stamp};
use crate::fuse::reply::FuseAnswer;
use crate::fuse::request::FuseRequest;
use crate::fuse::session::Outcome;
use crate::tree::node::OpenNode;
use crate::tree::{RequestResult, SourceTree, short};

/// The fields that are to be changed (`FATTR_` of the kernel).
mod valid {
    pub const MODE: u32 = 1;
    pub const USER: u32 = 1 << 1;
    pub const GROUP: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ACCESSED: u32 = 1 << 4;
    pub const MODIFIED: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ACCESSED_NOW: u32 = 1 << 7;
    pub const MODIFIED_NOW: u32 = 1 << 8;
}

/// The changes that a request asks for.
struct Changes {
    valid: u32,
    handle: u64,
    size: u64,
    accessed: (i64, u32),
    modified: (i64, u32),
    mode: u32,
    user: u32,
    group: u32,
}

impl Changes {
    /// Reads a `struct fuse_setattr_in`.
    fn read(request: &mut FuseRequest<'_>) -> Option<Self> {
        let body = &mut request.body;
        let valid = body.u32()?;
        body.u32()?;
        let (handle, size) = (body.u64()?, body.u64()?);
        body.u64()?;
        let seconds = [body.u64()?, body.u64()?, body.u64()?];
        let nanoseconds = [body.u32()?, body.u32()?, body.u32()?];
        let mode = body.u32()?;
        body.u32()?;
        let (user, group) = (body.u32()?, body.u32()?);
        let time = |which: usize| (seconds[which] as i64, nanoseconds[which]);
        Some(Self { valid, handle, size, accessed: time(0), modified: time(1), mode, user, group })
    }

    fn has(&self, what: u32) -> bool {
        self.valid & what != 0
    }

    fn time(&self, set: u32, now: u32, time: (i64, u32)) -> NewTime {
        match (self.has(now), self.has(set)) {
            (true, _) => NewTime::Now,
            (false, true) => NewTime::At(time.0, time.1),
            (false, false) => NewTime::Keep,
        }
    }
}

/// A file that is not open, for its stamp.
struct Unopened<'a>(BorrowedFd<'a>);

impl FileSource for Unopened<'_> {
    fn stamp(&self) -> io::Result<Stamp> {
        inode::status(self.0).map(|status| Stamp::of(&status))
    }

    fn read_at(&self, _: &mut [IoSliceMut<'_>], _: u64) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EBADF))
    }
}

impl SourceTree {
    pub(super) fn attributes(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        self.told_attributes(&self.node(request.node)?)
    }

    fn told_attributes(&self, node: &OpenNode) -> RequestResult {
        let status = inode::status(node.as_fd())?;
        let mut answer = FuseAnswer::default();
        answer.attributes(&status, self.valid);
        Ok(Outcome::Answer(answer))
    }

    pub(super) fn set_attributes(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let changes = Changes::read(request).ok_or_else(short)?;
        let node = self.node(request.node)?;
        if changes.has(valid::MODE | valid::USER | valid::GROUP) {
            let status = inode::status(node.as_fd())?;
            self.with_new_stamp(node.as_fd(), &status, || set_permissions(&node, &changes))?;
        }
        if changes.has(valid::SIZE) {
            self.set_size(&node, &changes)?;
        }
        let accessed = changes.time(valid::ACCESSED, valid::ACCESSED_NOW, changes.accessed);
        let modified = changes.time(valid::MODIFIED, valid::MODIFIED_NOW, changes.modified);
        if (accessed, modified) != (NewTime::Keep, NewTime::Keep) {
            let status = inode::status(node.as_fd())?;
            self.with_new_stamp(node.as_fd(), &status, || inode::set_times(node.as_fd(), accessed, modified))?;
        }
        self.told_attributes(&node)
    }

    fn set_size(&self, node: &OpenNode, changes: &Changes) -> io::Result<()> {
        let handle = changes.has(valid::HANDLE).then(|| self.files.get(changes.handle)).transpose()?;
        let cut = || match &handle {
            Some(open) => open.file.set_len(changes.size),
            None => inode::set_size(node.as_fd(), changes.size),
        };
        self.cache.write((node.key, &Unopened(node.as_fd())), changes.size, u64::MAX, cut)
    }

    /// Changes a file's metadata, which moves its time of change. The cached pages of a regular
    /// file stay valid.
    pub(super) fn with_new_stamp<T>(
        &self,
        file: BorrowedFd<'_>,
        status: &FileStatus,
        change: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if !status.is_file() {
            return change();
        }
        // A write of no bytes.
        self.cache.write((FileKey::from(status), &Unopened(file)), 0, 0, change)
    }

    /// Opens a file so that it is empty afterwards.
    pub(super) fn with_cut<T>(
        &self,
        file: BorrowedFd<'_>,
        status: &FileStatus,
        open: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.cache.write((FileKey::from(status), &Unopened(file)), 0, u64::MAX, open)
    }

    pub(super) fn volume(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let mut answer = FuseAnswer::default();
        answer.volume(&inode::volume(self.node(request.node)?.as_fd())?);
        Ok(Outcome::Answer(answer))
    }

    pub(super) fn sync_volume(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let file = inode::open(self.node(request.node)?.as_fd(), libc::O_RDONLY)?;
        open_file::sync_volume(file.as_fd())?;
        super::done()
    }
}

/// The owner first: the change of owner clears bits of the mode.
fn set_permissions(node: &OpenNode, changes: &Changes) -> io::Result<()> {
    if changes.has(valid::USER | valid::GROUP) {
        let user = changes.has(valid::USER).then_some(changes.user);
        let group = changes.has(valid::GROUP).then_some(changes.group);
        inode::set_owner(node.as_fd(), user, group)?;
    }
    if changes.has(valid::MODE) {
        inode::set_mode(node.as_fd(), changes.mode & 0o7777)?;
    }
    Ok(())
}
