//! Names: finding, making, renaming and removing files.

use std::io;
use std::os::fd::AsFd;

use uswap_sys::fs::{inode, xattr};

use crate::cache::file::FileKey;
use crate::fuse::reply::FuseAnswer;
use crate::fuse::request::{FuseOperation, FuseRequest};
use crate::fuse::session::Outcome;
use crate::tree::node::{OpenNode, Reach};
use crate::tree::nodes::FoundFile;
use crate::tree::{RequestResult, SourceTree, done, short};

/// The mode of a new file in a folder. Where the folder has an ACL for what is made in it, that
/// takes the place of the mask (acl(5)); the source applies it.
pub(super) fn masked(folder: &OpenNode, mode: u32, mask: u32) -> u32 {
    let has_default = xattr::get(folder.as_fd(), c"system.posix_acl_default", &mut []).is_ok_and(|length| length > 0);
    if has_default { mode } else { mode & !mask }
}

impl SourceTree {
    pub(super) fn look_up(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let name = request.body.name().ok_or_else(short)?;
        let folder = self.node(request.node)?;
        self.entry(&folder, name)
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
        let Some(node) = self.nodes.forget(number, times).filter(|node| node.is_file()) else { return };
        // A file that was removed through the mount has a descriptor.
        let Reach::Descriptor(file) = node.reach() else { return };
        if inode::status(file.as_fd()).is_ok_and(|status| status.links == 0) {
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
        self.entry(&folder, name)
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
        self.entry(&folder, name)
    }

    pub(super) fn make_folder(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let (mode, mask) = (request.body.u32().ok_or_else(short)?, request.body.u32().ok_or_else(short)?);
        let name = request.body.name().ok_or_else(short)?;
        let folder = self.node(request.node)?;
        let acting = self.acting_for(request);
        inode::make_folder(folder.as_fd(), name, masked(&folder, mode, mask))?;
        drop(acting);
        self.groups.doubt();
        self.entry(&folder, name)
    }

    pub(super) fn remove(&self, request: &mut FuseRequest<'_>, is_folder: bool) -> RequestResult {
        let name = request.body.name().ok_or_else(short)?;
        let folder = self.node(request.node)?;
        let file = FoundFile::look_up(&folder, name).ok();
        let remove = || inode::remove(folder.as_fd(), name, is_folder);
        self.nodes.removing(file.as_ref(), || self.keeping_content(file.as_ref(), remove))?;
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
        let (file, displaced) = (FoundFile::look_up(&from, old).ok(), FoundFile::look_up(&to, new).ok());
        let exchanged = flags & libc::RENAME_EXCHANGE != 0;
        let rename = || inode::rename((from.as_fd(), old), (to.as_fd(), new), flags);
        self.nodes.renaming(file.as_ref(), (displaced.as_ref(), to.with(new)), exchanged, || {
            self.keeping_content(file.as_ref(), rename)
        })?;
        // The kernel does not look for what has moved.
        match file.filter(|file| file.status.is_file() && flags == 0) {
            Some(file) => self.nodes.set_group(&FileKey::from(&file.status), to.group()),
            None => self.groups.doubt(),
        }
        done()
    }

    pub(super) fn link(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let file = self.node(request.body.u64().ok_or_else(short)?)?;
        let name = request.body.name().ok_or_else(short)?;
        let folder = self.node(request.node)?;
        let status = inode::status(file.as_fd())?;
        self.with_new_stamp(file.as_fd(), &status, || inode::link(file.as_fd(), folder.as_fd(), name))?;
        self.entry(&folder, name)
    }

    /// Changes the names of a file. Its time of change moves with that, and what is cached of it
    /// stays valid.
    fn keeping_content(&self, file: Option<&FoundFile>, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match file {
            Some(file) => self.with_new_stamp(file.file.as_fd(), &file.status, change),
            None => change(),
        }
    }
}
