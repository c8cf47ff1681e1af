//! Reading folders.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use uswap_sys::fs::directory::{self, FolderEntry};
use uswap_sys::fs::inode;

use crate::fuse::reply::{ENTRY, FuseAnswer, folder_entry_length};
use crate::fuse::request::FuseRequest;
use crate::fuse::session::Outcome;
use crate::tree::node::OpenNode;
use crate::tree::nodes::FoundFile;
use crate::tree::{RequestResult, SourceTree, done, short};

/// An open folder of the source.
#[derive(Debug)]
pub struct OpenFolder {
    /// With the position that was read last.
    file: Mutex<OwnedFd>,
    /// Its descriptor stays, as that of an open file does.
    node: OpenNode,
}

impl SourceTree {
    pub(super) fn open_folder(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let node = self.node(request.node)?;
        let file = Mutex::new(inode::open(node.as_fd(), libc::O_RDONLY | libc::O_DIRECTORY)?);
        let mut answer = FuseAnswer::default();
        answer.opened(self.folders.add(OpenFolder { file, node }), 0);
        Ok(Outcome::Answer(answer))
    }

    /// Reads entries from a position on. `plus`: each with its metadata, and it counts as found.
    pub(super) fn read_folder(&self, request: &mut FuseRequest<'_>, plus: bool) -> RequestResult {
        let body = &mut request.body;
        let (handle, position) = (body.u64().ok_or_else(short)?, body.u64().ok_or_else(short)?);
        let most = body.u32().ok_or_else(short)? as usize;
        let open = self.folders.get(handle)?;
        let folder = open.file.lock().expect("folder");
        let mut answer = FuseAnswer::default();
        directory::read(folder.as_fd(), position, |entry| {
            let length = folder_entry_length(entry.name) + if plus { ENTRY } else { 0 };
            let fits = answer.0.len() + length <= most;
            if fits {
                if plus {
                    self.add_found(&mut answer, &open.node, &entry);
                }
                answer.folder_entry(entry.inode, entry.next, entry.kind, entry.name);
            }
            fits
        })?;
        Ok(Outcome::Answer(answer))
    }

    /// Adds the metadata of an entry, or zeros: then the kernel looks it up itself.
    fn add_found(&self, answer: &mut FuseAnswer, folder: &OpenNode, entry: &FolderEntry<'_>) {
        let is_real = entry.name != b"." && entry.name != b"..";
        let look = || {
            let name = CString::new(entry.name).map_err(|_| io::ErrorKind::InvalidData)?;
            io::Result::Ok(self.found(folder, FoundFile::look_up(folder, &name)?))
        };
        match is_real.then(look) {
            Some(Ok((number, status))) => {
                answer.entry(number, &status, self.valid);
            }
            _ => answer.0.resize(answer.0.len() + ENTRY, 0),
        }
    }

    pub(super) fn release_folder(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        self.folders.remove(request.body.u64().ok_or_else(short)?);
        done()
    }

    pub(super) fn sync_folder(&self, request: &mut FuseRequest<'_>) -> RequestResult {
        let open = self.folders.get(request.body.u64().ok_or_else(short)?)?;
        let folder = open.file.lock().expect("folder").try_clone()?;
        std::fs::File::from(folder).sync_all()?;
        done()
    }
}
