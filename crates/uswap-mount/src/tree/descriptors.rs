//! How many files have a descriptor, and which one is closed when there are too many.
//!
//! All files that have one stand in a queue. The first that was not used since it came to the front
//! the last time is closed (second chance), if its name leads to it ([`Node::close`]); else it
//! goes to the end.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use crate::tree::node::Node;

/// The most files that get a second chance, and that are tried, for one descriptor.
const SECOND_CHANCES: usize = 64;
const TRIES: usize = 16;
/// How many more files the queue may have than twice those that are open: forgotten ones.
const SLACK: usize = 64;

/// A descriptor opened with O_PATH, which is counted.
#[derive(Debug)]
pub struct Descriptor {
    file: OwnedFd,
    open: Arc<AtomicUsize>,
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Relaxed);
    }
}

/// The descriptors of a mount's files.
#[derive(Debug)]
pub struct PathDescriptors {
    open: Arc<AtomicUsize>,
    most: usize,
    queue: Mutex<VecDeque<Weak<Node>>>,
}

impl PathDescriptors {
    /// None yet, and `most` later, unless more are in use at once.
    pub fn new(most: usize) -> Self {
        Self { open: Arc::default(), most, queue: Mutex::default() }
    }

    /// A descriptor that is counted from now on.
    pub fn count(&self, file: OwnedFd) -> Arc<Descriptor> {
        self.open.fetch_add(1, Relaxed);
        Arc::new(Descriptor { file, open: Arc::clone(&self.open) })
    }

    /// Puts a file that got a descriptor at the end of the queue.
    pub fn enqueue(&self, node: &Arc<Node>) {
        let mut queue = self.queue.lock().expect("queue");
        queue.push_back(Arc::downgrade(node));
        if queue.len() > 2 * self.open.load(Relaxed) + SLACK {
            queue.retain(|node| node.strong_count() > 0);
        }
    }

    /// Closes descriptors until there are no more than the most, as far as that can be.
    pub fn make_room(&self) {
        for _ in 0..TRIES {
            if self.open.load(Relaxed) <= self.most {
                return;
            }
            let Some(node) = self.next() else { return };
            if !node.close(self) {
                self.enqueue(&node);
            }
        }
    }

    fn next(&self) -> Option<Arc<Node>> {
        let mut queue = self.queue.lock().expect("queue");
        for turn in 0..queue.len() {
            let Some(node) = queue.pop_front()?.upgrade() else { continue };
            if turn < SECOND_CHANCES && node.was_used() {
                queue.push_back(Arc::downgrade(&node));
                continue;
            }
            return Some(node);
        }
        None
    }

    /// How many there are.
    #[cfg(test)]
    pub fn open(&self) -> usize {
        self.open.load(Relaxed)
    }
}
