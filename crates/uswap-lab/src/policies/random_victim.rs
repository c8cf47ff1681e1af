//! A policy for tests only, which evicts a random page. It shows what a new policy needs, and
//! passes the tests that hold for all policies.

use crate::policy::{AccessOutcome, Policy};

/// Random replacement.
#[derive(Clone, Debug)]
pub struct RandomVictim {
    held: Vec<u32>,
    is_held: Vec<bool>,
    capacity: usize,
    random: u64,
}

impl RandomVictim {
    /// The policy with a memory of `capacity` pages, for a trace of `distinct` pages.
    pub fn new(distinct: usize, capacity: usize) -> Self {
        Self { held: Vec::new(), is_held: vec![false; distinct], capacity, random: 1 }
    }

    fn evict(&mut self) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let victim = self.held.swap_remove((self.random >> 33) as usize % self.held.len());
        self.is_held[victim as usize] = false;
    }
}

impl Policy for RandomVictim {
    fn access(&mut self, page: u32) -> AccessOutcome {
        if self.is_held[page as usize] {
            return AccessOutcome::Hit;
        }
        if self.held.len() == self.capacity {
            self.evict();
        }
        self.held.push(page);
        self.is_held[page as usize] = true;
        AccessOutcome::Miss
    }

    fn held(&self) -> usize {
        self.held.len()
    }

    fn holds(&self, page: u32) -> bool {
        self.is_held[page as usize]
    }
}
