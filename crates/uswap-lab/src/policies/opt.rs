//! OPT: the page that is used again last goes (Belady, A study of replacement algorithms, 1966). No
//! policy that brings in what it misses can miss less; it is the floor of every comparison and
//! cannot be built.
//!
//! Held pages lie in a heap by their next use. A page that is touched gets a new entry; its old one
//! names a moment that has passed and sinks to the bottom, where it is dropped when such entries
//! make up half of the heap.

use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::policy::{AccessOutcome, Policy};

/// The next use of a page that is not used again.
pub const NEVER: u32 = u32::MAX;

/// Knows the future: for each access, the index of the next one of the same page.
#[derive(Clone, Debug)]
pub struct Opt {
    next_uses: Arc<Vec<u32>>,
    time: usize,
    heap: BinaryHeap<(u32, u32)>,
    /// Of each held page, the entry that counts.
    uses: Vec<Option<u32>>,
    held: usize,
    capacity: usize,
}

impl Opt {
    /// A memory of `capacity` pages for a trace of `distinct` ones. `next_uses[i]` is the index of
    /// the next access of the page that access `i` touches, or [`NEVER`].
    pub fn new(distinct: usize, capacity: usize, next_uses: Arc<Vec<u32>>) -> Self {
        Self { next_uses, time: 0, heap: BinaryHeap::new(), uses: vec![None; distinct], held: 0, capacity }
    }

    /// The first of the heap is the entry of a held page: all that do not count any more name
    /// moments that have passed.
    fn evict(&mut self) {
        if let Some((_, page)) = self.heap.pop() {
            self.uses[page as usize] = None;
            self.held -= 1;
        }
    }

    fn push(&mut self, page: u32, next: u32) {
        self.uses[page as usize] = Some(next);
        self.heap.push((next, page));
        if self.heap.len() > 2 * self.held + 64 {
            let uses = &self.uses;
            self.heap.retain(|(next, page)| uses[*page as usize] == Some(*next));
        }
    }
}

impl Policy for Opt {
    fn access(&mut self, page: u32) -> AccessOutcome {
        let next = self.next_uses[self.time];
        self.time += 1;
        if self.uses[page as usize].is_some() {
            self.push(page, next);
            return AccessOutcome::Hit;
        }
        if self.held == self.capacity {
            self.evict();
        }
        self.held += 1;
        self.push(page, next);
        AccessOutcome::Miss
    }

    fn held(&self) -> usize {
        self.held
    }

    fn holds(&self, page: u32) -> bool {
        self.uses[page as usize].is_some()
    }
}
