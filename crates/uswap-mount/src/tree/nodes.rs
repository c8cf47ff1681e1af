//! The files that the kernel knows, by the numbers that it uses for them.
//!
//! A file has one number however many names it has: it is told by device and inode. While it has a
//! descriptor they cannot be given to another file; a closed one ([`crate::tree::node`]) may have
//! been removed behind the back of the mount, and is told by its type besides. The kernel counts
//! how often it was told of a file, and says when it forgets.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use uswap_sys::fs::inode::{self, FileStatus};

use crate::cache::file::FileKey;
use crate::cache::groups::GroupId;
use crate::tree::descriptors::PathDescriptors;
use crate::tree::node::{Name, Node, OpenNode, Unnamed, stale};

/// The number of the root.
const ROOT: u64 = 1;
/// Bytes that a name and the two allocations of a file take besides.
const ALLOCATIONS: usize = 80;
/// How many more forgotten files than known ones there may be before they are looked through.
const SLACK: usize = 64;

#[derive(Debug, Default)]
struct NodeTable {
    /// The file, and how often the kernel was told of it.
    nodes: HashMap<u64, (Arc<Node>, u64)>,
    numbers: HashMap<FileKey, u64>,
    /// Folders of which the kernel knows nothing any more, though closed files are reached through
    /// them: their names change as well.
    forgotten: HashMap<FileKey, Weak<Node>>,
    last: u64,
}

impl NodeTable {
    fn known(&mut self, key: &FileKey) -> Option<(u64, &mut (Arc<Node>, u64))> {
        let number = *self.numbers.get(key)?;
        self.nodes.get_mut(&number).map(|known| (number, known))
    }

    /// The file of that status, known or forgotten.
    fn node_of(&self, status: &FileStatus) -> Option<Arc<Node>> {
        let key = FileKey::from(status);
        let known = self.numbers.get(&key).and_then(|number| self.nodes.get(number)).map(|(node, _)| Arc::clone(node));
        known.or_else(|| self.forgotten.get(&key)?.upgrade()).filter(|node| node.is(status))
    }

    fn add(&mut self, node: Arc<Node>) -> u64 {
        self.last += 1;
        self.numbers.insert(node.key, self.last);
        self.forgotten.remove(&node.key);
        self.nodes.insert(self.last, (node, 1));
        self.last
    }

    fn forget(&mut self, number: u64) -> Option<Arc<Node>> {
        let (node, _) = self.nodes.remove(&number)?;
        if self.numbers.get(&node.key) == Some(&number) {
            self.numbers.remove(&node.key);
            if Arc::strong_count(&node) > 1 {
                self.forgotten.insert(node.key, Arc::downgrade(&node));
            }
        }
        if self.forgotten.len() > self.nodes.len() + SLACK {
            self.forgotten.retain(|_, node| node.strong_count() > 0);
        }
        Some(node)
    }
}

/// A file of a folder, as it was looked up just now.
#[derive(Debug)]
pub struct FoundFile {
    /// Opened with O_PATH.
    pub file: OwnedFd,
    /// Its metadata.
    pub status: FileStatus,
    /// `None`: a file without a name.
    pub name: Option<Name>,
}

impl FoundFile {
    /// Looks up a name in a folder.
    ///
    /// # Errors
    /// As openat(2).
    pub fn look_up(folder: &OpenNode, name: &CStr) -> io::Result<Self> {
        let file = inode::look_up(folder.as_fd(), name)?;
        Ok(Self { status: inode::status(file.as_fd())?, file, name: Some(folder.with(name)) })
    }

    /// A file without a name.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn unnamed(file: OwnedFd) -> io::Result<Self> {
        Ok(Self { status: inode::status(file.as_fd())?, file, name: None })
    }
}

/// All of them.
#[derive(Debug)]
pub struct Nodes {
    table: Mutex<NodeTable>,
    descriptors: PathDescriptors,
}

impl Nodes {
    /// The root alone, and at most that number of descriptors for files that nobody has open.
    ///
    /// # Errors
    /// The root cannot be read.
    pub fn new(root: OwnedFd, descriptors: usize) -> io::Result<Self> {
        let nodes = Self { table: Mutex::default(), descriptors: PathDescriptors::new(descriptors) };
        // One find that is never forgotten.
        let number = nodes.find(FoundFile::unnamed(root)?, GroupId::ROOT);
        debug_assert_eq!(number, ROOT);
        Ok(nodes)
    }

    /// A file by its number, with a descriptor.
    ///
    /// # Errors
    /// ESTALE: there is no such file any more. Else as openat(2).
    pub fn open(&self, number: u64) -> io::Result<OpenNode> {
        let node = self.table.lock().expect("nodes").nodes.get(&number).map(|(node, _)| Arc::clone(node));
        let open = node.ok_or_else(stale)?.open(&self.descriptors);
        self.descriptors.make_room();
        open
    }

    /// Memory in bytes that the known files take: themselves, their names, and their places in the
    /// tables, which are half empty.
    pub fn bytes(&self) -> u64 {
        let tables = 2 * (size_of::<(u64, (Arc<Node>, u64))>() + size_of::<(FileKey, u64)>());
        let each = size_of::<Node>() + ALLOCATIONS + tables;
        (self.table.lock().expect("nodes").nodes.len() * each) as u64
    }

    /// All files.
    pub fn all(&self) -> Vec<Arc<Node>> {
        let table = self.table.lock().expect("nodes");
        table.nodes.values().map(|(node, _)| Arc::clone(node)).collect()
    }

    /// Puts a file into another group, if the kernel knows it.
    pub fn set_group(&self, file: &FileKey, group: GroupId) {
        let mut table = self.table.lock().expect("nodes");
        table.known(file).into_iter().for_each(|(_, (node, _))| node.set_group(group));
    }

    /// The root.
    pub fn root(&self) -> OpenNode {
        self.open(ROOT).expect("the root is never forgotten, and has no name to lose")
    }

    /// The number of a file, of which the kernel is told once more, and which is in that group.
    pub fn find(&self, found: FoundFile, group: GroupId) -> u64 {
        let FoundFile { file, status, name } = found;
        let number = {
            let mut table = self.table.lock().expect("nodes");
            let node = match table.node_of(&status) {
                Some(node) => {
                    node.set_group(group);
                    node.found(file, name, &self.descriptors);
                    node
                }
                None => {
                    let node = Arc::new(Node::new(&status, group, self.descriptors.count(file), name));
                    self.descriptors.enqueue(&node);
                    node
                }
            };
            match table.known(&node.key).filter(|(_, (known, _))| Arc::ptr_eq(known, &node)) {
                Some((number, (_, told))) => {
                    *told += 1;
                    number
                }
                None => table.add(node),
            }
        };
        self.descriptors.make_room();
        number
    }

    /// Takes a name away from a file, if the kernel knows the file.
    ///
    /// # Errors
    /// Of the change. EMFILE: there are no more descriptors.
    pub fn removing(&self, file: Option<&FoundFile>, remove: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let unnamed = self.unname(file)?;
        let removed = remove();
        if removed.is_err() {
            unnamed.into_iter().for_each(Unnamed::put_back);
        }
        removed
    }

    /// Gives a file the name `new`. The displaced file loses that name, or gets the other one if
    /// they are `exchanged`.
    ///
    /// # Errors
    /// As [`Nodes::removing`].
    pub fn renaming(
        &self,
        file: Option<&FoundFile>,
        (displaced, new): (Option<&FoundFile>, Name),
        exchanged: bool,
        rename: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let (unnamed, lost) = (self.unname(file)?, self.unname(displaced)?);
        let renamed = rename();
        if renamed.is_err() {
            unnamed.into_iter().chain(lost).for_each(Unnamed::put_back);
            return renamed;
        }
        unnamed.into_iter().for_each(|file| file.renamed(new.clone()));
        let old = file.and_then(|file| file.name.clone()).filter(|_| exchanged);
        lost.zip(old).into_iter().for_each(|(displaced, old)| displaced.renamed(old));
        renamed
    }

    /// `None`: the kernel does not know the file.
    fn unname(&self, found: Option<&FoundFile>) -> io::Result<Option<Unnamed>> {
        let Some(found) = found else { return Ok(None) };
        let node = self.table.lock().expect("nodes").node_of(&found.status);
        node.zip(found.name.clone())
            .map(|(node, name)| node.unname(name, found.file.as_fd(), &self.descriptors))
            .transpose()
    }

    /// How many descriptors there are.
    #[cfg(test)]
    pub fn descriptors_open(&self) -> usize {
        self.descriptors.open()
    }

    /// The kernel forgets that it was told so often. Returns the file if it knows nothing of it any
    /// more.
    pub fn forget(&self, number: u64, times: u64) -> Option<Arc<Node>> {
        if number == ROOT {
            return None;
        }
        let mut table = self.table.lock().expect("nodes");
        let (_, told) = table.nodes.get_mut(&number)?;
        *told = told.saturating_sub(times);
        if *told > 0 { None } else { table.forget(number) }
    }
}
