//! LRU: evicts the page with the oldest last access.

use crate::links::{LinkedPages, PageLinks};
use crate::policy::{AccessOutcome, Policy};

/// Pages in the order of their last access.
#[derive(Clone, Debug)]
pub struct Lru {
    links: PageLinks,
    list: LinkedPages,
    held: Vec<bool>,
    capacity: usize,
}

impl Lru {
    /// The policy with a memory of `capacity` pages, for a trace of `distinct` pages.
    pub fn new(distinct: usize, capacity: usize) -> Self {
        Self { links: PageLinks::new(distinct), list: LinkedPages::default(), held: vec![false; distinct], capacity }
    }
}

impl Policy for Lru {
    fn access(&mut self, page: u32) -> AccessOutcome {
        if self.held[page as usize] {
            self.list.move_to_back(&mut self.links, page);
            return AccessOutcome::Hit;
        }
        if self.list.len() == self.capacity
            && let Some(victim) = self.list.pop_front(&mut self.links)
        {
            self.held[victim as usize] = false;
        }
        self.list.push_back(&mut self.links, page);
        self.held[page as usize] = true;
        AccessOutcome::Miss
    }

    fn held(&self) -> usize {
        self.list.len()
    }

    fn holds(&self, page: u32) -> bool {
        self.held[page as usize]
    }
}
