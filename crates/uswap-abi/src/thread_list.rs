//! The list in which the engine tells the agent the threads' robust lists, where the agent may not
//! ask the kernel for them.
//!
//! An agent that is a process of its own has the credentials that the program began with, and no
//! capabilities. The kernel refuses its questions about a program that has changed its user or its
//! user namespace (get_robust_list(2) requires the same rights as ptrace). Then the engine asks
//! instead, before each order to fill a tray. A version number, odd while the engine writes the
//! list, keeps the agent from using half a list.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Threads that fit. If the program has more, the agent moves none of its pages.
pub const MAX_HEADS: usize = 1024;

/// Addresses of struct robust_list_head.
#[repr(C)]
#[derive(Debug)]
pub struct ThreadList {
    wanted: AtomicU32,
    version: AtomicU32,
    count: AtomicU32,
    heads: [AtomicU64; MAX_HEADS],
}

impl ThreadList {
    /// One in which nothing was written yet, for tests.
    #[cfg(all(test, not(loom)))]
    pub fn empty() -> Self {
        Self {
            wanted: AtomicU32::new(0),
            version: AtomicU32::new(0),
            count: AtomicU32::new(0),
            heads: [const { AtomicU64::new(0) }; MAX_HEADS],
        }
    }

    /// Agent: from now on the engine is to ask the kernel.
    pub fn want(&self) {
        self.wanted.store(1, Ordering::Relaxed);
    }

    /// Engine: whether the agent wants the list.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Engine: replaces the list. Heads that do not fit are still counted, so that the agent sees
    /// that the list is not complete.
    pub fn write(&self, heads: impl Iterator<Item = u64>) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let mut count = 0;
        for head in heads {
            if let Some(place) = self.heads.get(count) {
                place.store(head, Ordering::Relaxed);
            }
            count += 1;
        }
        self.count.store(count as u32, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Agent: calls `act` with each head. `false`: there is no list yet, the engine was writing it,
    /// or it is too short; then `act` was not called with all heads.
    pub fn read(&self, mut act: impl FnMut(u64)) -> bool {
        let version = self.version.load(Ordering::Acquire);
        let count = self.count.load(Ordering::Relaxed) as usize;
        let is_whole = version != 0 && version.is_multiple_of(2) && count <= MAX_HEADS;
        for place in self.heads.iter().take(if is_whole { count } else { 0 }) {
            act(place.load(Ordering::Relaxed));
        }
        fence(Ordering::Acquire);
        is_whole && self.version.load(Ordering::Relaxed) == version
    }
}
