//! The tree of files: what the kernel asks for is done on the source, and the content of regular
//! files passes the cache.
//!
//! A file is named by a descriptor opened with O_PATH, so that renames, also those behind the back
//! of the mount, do no harm; in a tree of very many files by its name in its folder ([`node`]).
//! The kernel checks permissions by the source's metadata; what is made is made as the user who
//! asks.

mod attributes;
mod content;
pub mod descriptors;
pub mod folder_groups;
mod folders;
mod names;
pub mod node;
pub mod nodes;
#[cfg(test)]
mod nodes_tests;
pub mod open_file;
pub mod read_ahead;
mod xattrs;

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use uswap_sys::fs::credentials::ActingFor;
use uswap_sys::fs::inode::FileStatus;
use uswap_sys::process::user;

use crate::cache::FileCache;
use crate::cache::file::FileKey;
use crate::fuse::reply::FuseAnswer;
use crate::fuse::request::{FuseOperation, FuseRequest};
use crate::fuse::session::{Outcome, Serve};
use crate::tree::folder_groups::FolderGroups;
use crate::tree::folders::OpenFolder;
use crate::tree::node::OpenNode;
use crate::tree::nodes::{FoundFile, Nodes};
use crate::tree::open_file::{Handles, OpenFile};
use crate::tree::read_ahead::Prefetcher;

/// The tree, and what is open in it.
pub struct SourceTree {
    cache: Arc<FileCache>,
    nodes: Nodes,
    files: Handles<OpenFile>,
    folders: Handles<OpenFolder>,
    prefetcher: Prefetcher,
    groups: FolderGroups,
    /// How long the kernel may believe metadata and names.
    valid: Duration,
    /// Regular files may be mapped although the kernel's cache is passed by.
    maps_direct: bool,
    is_root: bool,
}

/// The result of a request: EIO if it was too short.
type RequestResult = io::Result<Outcome>;

fn short() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// A request without an answer's content.
fn done() -> RequestResult {
    Ok(Outcome::Answer(FuseAnswer::default()))
}

impl SourceTree {
    /// The tree of a folder, with at most that number of descriptors for files that nobody has
    /// open.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn new(
        source: OwnedFd,
        descriptors: usize,
        cache: Arc<FileCache>,
        valid: Duration,
        maps_direct: bool,
    ) -> io::Result<Self> {
        let nodes = Nodes::new(source, descriptors)?;
        let prefetcher = Prefetcher::start(Arc::clone(&cache))?;
        let (files, folders, is_root) = (Handles::default(), Handles::default(), user() == 0);
        let groups = FolderGroups::default();
        Ok(Self { cache, nodes, files, folders, prefetcher, groups, valid, maps_direct, is_root })
    }

    /// The cache that reads pass.
    pub fn cache(&self) -> &FileCache {
        &self.cache
    }

    /// Memory in bytes that the files take which the kernel knows.
    pub fn name_bytes(&self) -> u64 {
        self.nodes.bytes()
    }

    fn node(&self, number: u64) -> io::Result<OpenNode> {
        self.nodes.open(number)
    }

    /// This thread acts for whoever asks, until the value is dropped.
    fn acting_for(&self, request: &FuseRequest<'_>) -> Option<ActingFor> {
        self.is_root.then(|| ActingFor::begin(request.user, request.group))
    }

    /// The answer that names a file of a folder, which counts as one more find.
    fn entry(&self, folder: &OpenNode, name: &CStr) -> RequestResult {
        let (number, status) = self.found(folder, FoundFile::look_up(folder, name)?);
        let mut answer = FuseAnswer::default();
        answer.entry(number, &status, self.valid);
        Ok(Outcome::Answer(answer))
    }

    fn found(&self, folder: &OpenNode, found: FoundFile) -> (u64, FileStatus) {
        let status = found.status;
        let group = self.groups.of_child(folder.group(), &FileKey::from(&status));
        (self.nodes.find(found, group), status)
    }

    fn perform(&self, operation: FuseOperation, request: &mut FuseRequest<'_>) -> RequestResult {
        match operation {
            FuseOperation::Lookup => self.look_up(request),
            FuseOperation::Forget | FuseOperation::ForgetMany => self.forget(operation, request),
            FuseOperation::GetAttributes => self.attributes(request),
            FuseOperation::SetAttributes => self.set_attributes(request),
            FuseOperation::ReadLink => self.read_link(request),
            FuseOperation::SymbolicLink => self.make_symlink(request),
            FuseOperation::MakeNode => self.make_node(request),
            FuseOperation::MakeFolder => self.make_folder(request),
            FuseOperation::Unlink => self.remove(request, false),
            FuseOperation::RemoveFolder => self.remove(request, true),
            FuseOperation::Rename => self.rename(request, false),
            FuseOperation::RenameWithFlags => self.rename(request, true),
            FuseOperation::Link => self.link(request),
            FuseOperation::Open => self.open(request),
            FuseOperation::Create => self.create(request),
            FuseOperation::CreateUnnamed => self.create_unnamed(request),
            FuseOperation::Read => self.read(request),
            FuseOperation::Write => self.write(request),
            FuseOperation::Release => self.release(request),
            FuseOperation::Flush => self.flush(request),
            FuseOperation::Sync => self.sync(request),
            FuseOperation::Allocate => self.allocate(request),
            FuseOperation::Seek => self.seek(request),
            FuseOperation::CopyRange => self.copy_range(request),
            FuseOperation::Volume => self.volume(request),
            FuseOperation::SyncVolume => self.sync_volume(request),
            FuseOperation::SetXattr => self.set_xattr(request),
            FuseOperation::GetXattr => self.get_xattr(request),
            FuseOperation::ListXattr => self.list_xattr(request),
            FuseOperation::RemoveXattr => self.remove_xattr(request),
            FuseOperation::OpenFolder => self.open_folder(request),
            FuseOperation::ReadFolder => self.read_folder(request, false),
            FuseOperation::ReadFolderPlus => self.read_folder(request, true),
            FuseOperation::ReleaseFolder => self.release_folder(request),
            FuseOperation::SyncFolder => self.sync_folder(request),
            FuseOperation::Ioctl => Ok(Outcome::Error(libc::ENOTTY)),
            FuseOperation::Destroy => done(),
            FuseOperation::Init | FuseOperation::Interrupt => Ok(Outcome::Error(libc::EIO)),
        }
    }
}

impl Serve for SourceTree {
    fn serve(&self, request: &mut FuseRequest<'_>) -> Outcome {
        let Some(operation) = request.operation else { return Outcome::Error(libc::ENOSYS) };
        self.perform(operation, request)
            .unwrap_or_else(|error| Outcome::Error(error.raw_os_error().unwrap_or(libc::EIO)))
    }
}
