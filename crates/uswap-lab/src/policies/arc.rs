//! ARC (Megiddo and Modha, ARC: a self-tuning, low overhead replacement cache, FAST 2003, figure
//! 4). T1 holds the pages that were accessed once, T2 those that were accessed more often, both
//! ordered by their last access; B1 and B2 remember the names of the pages that left T1 and T2.
//! When a remembered page returns, `target`, the size that T1 should have, changes: it grows for B1
//! and shrinks for B2.

use crate::links::{LinkedPages, PageLinks};
use crate::policy::{AccessOutcome, Policy};

const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;
const NOWHERE: u8 = 4;

/// T1 and T2, and the names of the pages that left them.
#[derive(Clone, Debug)]
pub struct AdaptiveReplacement {
    /// Index of the list that each page is on.
    places: Vec<u8>,
    links: PageLinks,
    lists: [LinkedPages; 4],
    /// The paper's p.
    target: f64,
    activations: u64,
    capacity: usize,
}

impl AdaptiveReplacement {
    /// The policy with a memory of `capacity` pages, for a trace of `distinct` pages.
    pub fn new(distinct: usize, capacity: usize) -> Self {
        Self {
            places: vec![NOWHERE; distinct],
            links: PageLinks::new(distinct),
            lists: [LinkedPages::default(); 4],
            target: 0.0,
            activations: 0,
            capacity,
        }
    }

    fn len(&self, list: usize) -> usize {
        self.lists[list].len()
    }

    fn put(&mut self, page: u32, list: usize) {
        self.lists[list].push_back(&mut self.links, page);
        self.places[page as usize] = list as u8;
    }

    fn take(&mut self, page: u32, list: usize) {
        self.lists[list].remove(&mut self.links, page);
    }

    fn forget_first(&mut self, list: usize) {
        if let Some(page) = self.lists[list].pop_front(&mut self.links) {
            self.places[page as usize] = NOWHERE;
        }
    }

    /// The paper's REPLACE: the first page of T1 or T2 is evicted, and its name is remembered.
    fn replace(&mut self, returns_to_t2: bool) {
        let length = self.len(T1) as f64;
        let from_t1 = length >= 1.0 && (length > self.target || (returns_to_t2 && length == self.target));
        let (from, to) = if from_t1 { (T1, B1) } else { (T2, B2) };
        if let Some(page) = self.lists[from].pop_front(&mut self.links) {
            self.put(page, to);
        }
    }

    /// Cases II and III: the name of the page was remembered.
    fn bring_back(&mut self, page: u32, ghost: usize) {
        let (b1, b2) = (self.len(B1) as f64, self.len(B2) as f64);
        if ghost == B1 {
            self.target = (self.target + (b2 / b1).max(1.0)).min(self.capacity as f64);
        } else {
            self.target = (self.target - (b1 / b2).max(1.0)).max(0.0);
        }
        self.replace(ghost == B2);
        self.take(page, ghost);
        self.put(page, T2);
        self.activations += 1;
    }

    /// Case IV: the page is unknown.
    fn bring_in(&mut self, page: u32) {
        let first = self.len(T1) + self.len(B1);
        let all = first + self.len(T2) + self.len(B2);
        if first == self.capacity {
            if self.len(T1) < self.capacity {
                self.forget_first(B1);
                self.replace(false);
            } else {
                self.forget_first(T1);
            }
        } else if all >= self.capacity {
            if all == 2 * self.capacity {
                self.forget_first(B2);
            }
            self.replace(false);
        }
        self.put(page, T1);
    }
}

impl Policy for AdaptiveReplacement {
    fn access(&mut self, page: u32) -> AccessOutcome {
        match self.places[page as usize] as usize {
            T1 => {
                self.take(page, T1);
                self.put(page, T2);
                self.activations += 1;
                AccessOutcome::Hit
            }
            T2 => {
                self.lists[T2].move_to_back(&mut self.links, page);
                AccessOutcome::Hit
            }
            ghost @ (B1 | B2) => {
                self.bring_back(page, ghost);
                AccessOutcome::Miss
            }
            _ => {
                self.bring_in(page);
                AccessOutcome::Miss
            }
        }
    }

    fn held(&self) -> usize {
        self.len(T1) + self.len(T2)
    }

    fn holds(&self, page: u32) -> bool {
        usize::from(self.places[page as usize]) <= T2
    }

    fn activations(&self) -> u64 {
        self.activations
    }
}
