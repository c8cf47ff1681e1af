//! The files that the kernel knows, by the numbers that it uses for them.
//!
//! A file has one number however many names it has: two descriptors of one file are told by device
//! and inode, which cannot be given to another file while a descriptor is open. The kernel counts
//! how often it was told of a file, and says when it forgets: then the descriptor is closed.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use uswap_sys::fs::inode::{self, FileStatus};

use crate::cache::file::FileKey;
use crate::cache::groups::GroupId;

/// The number of the root.
const ROOT: u64 = 1;

/// A file that the kernel knows.
#[derive(Debug)]
pub struct Node {
    path: OwnedFd,
    /// The file in the cache.
    pub key: FileKey,
    /// Whether it is a regular file.
    pub is_file: bool,
    group: AtomicU8,
}

impl Node {
    /// The group of files that it belongs to.
    pub fn group(&self) -> GroupId {
        GroupId::new(self.group.load(Relaxed))
    }

    /// Puts it into another group.
    pub fn set_group(&self, group: GroupId) {
        self.group.store(group.number(), Relaxed);
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }
}

#[derive(Debug, Default)]
struct NodeTable {
    /// The file, and how often the kernel was told of it.
    nodes: HashMap<u64, (Arc<Node>, u64)>,
    numbers: HashMap<FileKey, u64>,
    last: u64,
}

/// All of them.
#[derive(Debug)]
pub struct Nodes(Mutex<NodeTable>);

impl Nodes {
    /// The root alone.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn new(root: OwnedFd) -> io::Result<Self> {
        let nodes = Self(Mutex::default());
        let status = inode::status(root.as_fd())?;
        // One find that is never forgotten.
        let number = nodes.find(root, &status, GroupId::ROOT);
        debug_assert_eq!(number, ROOT);
        Ok(nodes)
    }

    /// A file by its number.
    pub fn get(&self, number: u64) -> Option<Arc<Node>> {
        let table = self.0.lock().expect("nodes");
        table.nodes.get(&number).map(|(node, _)| Arc::clone(node))
    }

    /// All files.
    pub fn all(&self) -> Vec<Arc<Node>> {
        let table = self.0.lock().expect("nodes");
        table.nodes.values().map(|(node, _)| Arc::clone(node)).collect()
    }

    /// Puts a file into another group, if the kernel knows it.
    pub fn set_group(&self, file: &FileKey, group: GroupId) {
        let table = self.0.lock().expect("nodes");
        let known = table.numbers.get(file).and_then(|number| table.nodes.get(number));
        known.into_iter().for_each(|(node, _)| node.set_group(group));
    }

    /// The root.
    pub fn root(&self) -> Arc<Node> {
        self.get(ROOT).expect("the root is never forgotten")
    }

    /// The number of a file, of which the kernel is told once more, and which is in that group.
    pub fn find(&self, path: OwnedFd, status: &FileStatus, group: GroupId) -> u64 {
        let key = FileKey::from(status);
        let mut table = self.0.lock().expect("nodes");
        if let Some(number) = table.numbers.get(&key).copied()
            && let Some((node, told)) = table.nodes.get_mut(&number)
        {
            *told += 1;
            node.set_group(group);
            return number;
        }
        table.last += 1;
        let number = table.last;
        table.numbers.insert(key, number);
        let group = AtomicU8::new(group.number());
        let node = Node { path, key, is_file: status.is_file(), group };
        table.nodes.insert(number, (Arc::new(node), 1));
        number
    }

    /// The kernel forgets that it was told so often. Returns the file if it knows nothing of it any
    /// more.
    pub fn forget(&self, number: u64, times: u64) -> Option<Arc<Node>> {
        if number == ROOT {
            return None;
        }
        let mut table = self.0.lock().expect("nodes");
        let (node, told) = table.nodes.get_mut(&number)?;
        *told = told.saturating_sub(times);
        if *told > 0 {
            return None;
        }
        let node = Arc::clone(node);
        table.nodes.remove(&number);
        table.numbers.remove(&node.key);
        Some(node)
    }
}
