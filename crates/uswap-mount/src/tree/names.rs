//! Names: finding, making, renaming and removing files.

use std::io;
use std::os::fd::AsFd;

use uswap_sys::fs::{inode, xattr};

use crate::cache::file::FileKey;
use crate::fuse::reply::FuseAnswer;
use crate::fuse::request::{FuseOperation, FuseRequest};
use crate::fuse::session::Outcome;
use crate::tree::nodes::Node;
use crate::tree::{RequestResult, SourceTree, done, short};

/// The mode of a new file in a folder. Where the folder has an ACL for what is made in it, that
/// takes the place of the mask (acl(5)); the source applies it.
pub(super) fn masked(folder: &Node, mode: u32, mask: u32) -> u32 {
    let has_default = xattr::get(folder.as_fd(), c"system.posix_acl_default", &mut []).is_ok_and(|length| length > 0);
    if has_default { mode } else { mode & !mask }
}

impl SourceTree {
    pub(super) fn look_up(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let name = request.body.name().ok_or_else(short)?;
        let folder = self.node(request.node)?;
        self.entry(&folder, inode::look_up(folder.as_fd(), name)?)
    }

    pub(super) fn forget(&self, operation: FuseOperation, request: &mut FuseRequest<'_>) -> RequestResult {
        if operation == FuseOperation::Forget {
            let times = request.body.u64().ok_or_else(short)?;
            self.forget_one(request.node, times);
            return done();
        }
        let count = request.body.u32().ok_or_else(short)?;
        request.body.u32().ok_or_else(short)?;
        for _ in 0..count {
            let (node, times) = (request.body.u64().ok_or_else(short)?, request.body.u64().ok_or_else(short)?);
            self.forget_one(node, times);
        }
        done()
    }

    /// Of a file without names nothing is to be kept.
    fn forget_one(&self, number: u64, times: u64) {
        let Some(node) = self.nodes.forget(number, times).filter(|node| node.is_file) else { return };
        if inode::status(node.as_fd()).is_ok_and(|status| status.links == 0) {
            self.cache.remove(node.key);
        }
    }

    pub(super) fn read_link(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let target = inode::read_link(self.node(request.node)?.as_fd())?;
        Ok(Outcome::Answer(FuseAnswer(target)))
    }

    pub(super) fn make_symlink(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let name = request.body.name().ok_or_else(short)?;
        let target = request.body.name().ok_or_else(short)?;
        let folder = self.node(request.node)?;
        let acting = self.acting_for(request);
        inode::make_symlink(folder.as_fd(), name, target)?;
        drop(acting);
        self.entry(&folder, inode::look_up(folder.as_fd(), name)?)
    }

    pub(super) fn make_node(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let body = &mut request.body;
        let (mode, special) = (body.u32().ok_or_else(short)?, body.u32().ok_or_else(short)?);
        let mask = body.u32().ok_or_else(short)?;
        body.u32().ok_or_else(short)?;
        let name = body.name().ok_or_else(short)?;
        let folder = self.node(request.node)?;
        // Device files need root; the kernel has checked that whoever asks may make them.
        let is_device = matches!(mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK);
        let acting = if is_device { None } else { self.acting_for(request) };
        inode::make_node(folder.as_fd(), name, masked(&folder, mode, mask), special)?;
        drop(acting);
        self.entry(&folder, inode::look_up(folder.as_fd(), name)?)
    }

    pub(super) fn make_folder(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let (mode, mask) = (request.body.u32().ok_or_else(short)?, request.body.u32().ok_or_else(short)?);
        let name = request.body.name().ok_or_else(short)?;
        let folder = self.node(request.node)?;
        let acting = self.acting_for(request);
        inode::make_folder(folder.as_fd(), name, masked(&folder, mode, mask))?;
        drop(acting);
        self.groups.doubt();
        self.entry(&folder, inode::look_up(folder.as_fd(), name)?)
    }

    pub(super) fn remove(&self, request: &mut FuseRequest<'_>, is_folder: bool) -> RequestResult {
        let name = request.body.name().ok_or_else(short)?;
        let folder = self.node(request.node)?;
        let file = inode::look_up(folder.as_fd(), name).ok();
        self.keeping_content(file.as_ref(), || inode::remove(folder.as_fd(), name, is_folder))?;
        if is_folder {
            self.groups.doubt();
        }
        done()
    }

    pub(super) fn rename(&self, request: &mut FuseRequest<'_>, has_flags: bool) -> RequestResult {
        let to = request.body.u64().ok_or_else(short)?;
        let mut flags = 0;
        if has_flags {
            flags = request.body.u32().ok_or_else(short)?;
            request.body.u32().ok_or_else(short)?;
        }
        let (old, new) = (request.body.name().ok_or_else(short)?, request.body.name().ok_or_else(short)?);
        let (from, to) = (self.node(request.node)?, self.node(to)?);
        let file = inode::look_up(from.as_fd(), old).ok();
        let status = file.as_ref().and_then(|file| inode::status(file.as_fd()).ok());
        self.keeping_content(file.as_ref(), || inode::rename((from.as_fd(), old), (to.as_fd(), new), flags))?;
        // The kernel does not look for what has moved.
        match status.filter(|status| status.is_file() && flags == 0) {
            Some(status) => self.nodes.set_group(&FileKey::from(&status), to.group()),
            None => self.groups.doubt(),
        }
        done()
    }

    pub(super) fn link(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let file = self.node(request.body.u64().ok_or_else(short)?)?;
        let name = request.body.name().ok_or_else(short)?;
        let folder = self.node(request.node)?;
        self.keeping_content(Some(&file), || inode::link(file.as_fd(), folder.as_fd(), name))?;
        self.entry(&folder, inode::look_up(folder.as_fd(), name)?)
    }

    /// Changes the names of a file. Its time of change moves with that, and what is cached of it
    /// stays valid.
    fn keeping_content(&self, file: Option<&impl AsFd>, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let status = file.and_then(|file| inode::status(file.as_fd()).ok()).filter(inode::FileStatus::is_file);
        match (file, status) {
            (Some(file), Some(status)) => self.with_new_stamp(file.as_fd(), &status, change),
            _ => change(),
        }
    }
}
