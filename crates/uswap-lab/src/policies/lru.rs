//! LRU: the page that was not touched for longest goes.

use crate::links::{Links, List};
use crate::policy::{Outcome, Policy};

/// Pages in the order of their last touch.
#[derive(Clone, Debug)]
pub struct Lru {
    links: Links,
    list: List,
    held: Vec<bool>,
    capacity: usize,
}

impl Lru {
    /// A memory of `capacity` pages for a trace of `distinct` ones.
    pub fn new(distinct: usize, capacity: usize) -> Self {
        Self { links: Links::new(distinct), list: List::default(), held: vec![false; distinct], capacity }
    }
}

impl Policy for Lru {
    fn access(&mut self, page: u32) -> Outcome {
        if self.held[page as usize] {
            self.list.move_to_back(&mut self.links, page);
            return Outcome::Hit;
        }
        if self.list.len() == self.capacity
            && let Some(victim) = self.list.pop_front(&mut self.links)
        {
            self.held[victim as usize] = false;
        }
        self.list.push_back(&mut self.links, page);
        self.held[page as usize] = true;
        Outcome::Miss
    }

    fn held(&self) -> usize {
        self.list.len()
    }

    fn holds(&self, page: u32) -> bool {
        self.held[page as usize]
    }
}
