//! OPT: evicts the page whose next use is the latest (Belady, A study of replacement algorithms,
//! 1966). No policy that loads every missing page can have fewer misses; OPT is the lower bound of
//! every comparison and cannot be built.
//!
//! Held pages are in a heap ordered by their next use. A page that is accessed gets a new entry;
//! its old entry names a past moment and sinks to the bottom. Old entries are dropped when they
//! make up half of the heap.

use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::policy::{AccessOutcome, Policy};

/// Next use of a page that is not used again.
pub const NEVER: u32 = u32::MAX;

/// The policy that knows the future: for each access, the index of the next access to the same
/// page.
#[derive(Clone, Debug)]
pub struct Opt {
    next_uses: Arc<Vec<u32>>,
    time: usize,
    heap: BinaryHeap<(u32, u32)>,
    /// For each held page, its valid entry.
    uses: Vec<Option<u32>>,
    held: usize,
    capacity: usize,
}

impl Opt {
    /// The policy with a memory of `capacity` pages, for a trace of `distinct` pages.
    /// `next_uses[i]` is the index of the next access to the page that access `i` is to, or
    /// [`NEVER`].
    pub fn new(distinct: usize, capacity: usize, next_uses: Arc<Vec<u32>>) -> Self {
        Self { next_uses, time: 0, heap: BinaryHeap::new(), uses: vec![None; distinct], held: 0, capacity }
    }

    /// The first entry of the heap belongs to a held page: all entries that are no longer valid
    /// name past moments.
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
