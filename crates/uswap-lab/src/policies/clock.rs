//! CLOCK (Corbató, A paging experiment with the Multics system, 1968): pages in a ring, evicted in
//! the order in which they came. It passes over a page that was touched since the hand was there
//! last, once.
//!
//! A page arrives with its bit clear: the touch that brings it in does not count.

use crate::policy::{AccessOutcome, Policy};

const OUT: u8 = 0;
const HELD: u8 = 1;
const TOUCHED: u8 = 2;

/// A ring of pages; without `SECOND_CHANCE` a plain FIFO.
#[derive(Clone, Debug)]
pub struct ClockRing<const SECOND_CHANCE: bool> {
    states: Vec<u8>,
    ring: Vec<u32>,
    hand: usize,
    capacity: usize,
}

/// First in, first out, with a second chance.
pub type Clock = ClockRing<true>;

impl<const SECOND_CHANCE: bool> ClockRing<SECOND_CHANCE> {
    /// A memory of `capacity` pages for a trace of `distinct` ones.
    pub fn new(distinct: usize, capacity: usize) -> Self {
        let ring = Vec::with_capacity(capacity.min(distinct));
        Self { states: vec![OUT; distinct], ring, hand: 0, capacity }
    }

    fn advance(&mut self) {
        self.hand = if self.hand + 1 == self.capacity { 0 } else { self.hand + 1 };
    }

    /// Puts `page` where the hand finds a page to evict.
    fn replace(&mut self, page: u32) {
        loop {
            let victim = self.ring[self.hand] as usize;
            if self.states[victim] == TOUCHED {
                self.states[victim] = HELD;
                self.advance();
                continue;
            }
            self.states[victim] = OUT;
            self.ring[self.hand] = page;
            return self.advance();
        }
    }
}

impl<const SECOND_CHANCE: bool> Policy for ClockRing<SECOND_CHANCE> {
    fn access(&mut self, page: u32) -> AccessOutcome {
        let state = &mut self.states[page as usize];
        if *state != OUT {
            if SECOND_CHANCE {
                *state = TOUCHED;
            }
            return AccessOutcome::Hit;
        }
        *state = HELD;
        if self.ring.len() < self.capacity {
            self.ring.push(page)
        } else {
            self.replace(page)
        }
        AccessOutcome::Miss
    }

    fn held(&self) -> usize {
        self.ring.len()
    }

    fn holds(&self, page: u32) -> bool {
        self.states[page as usize] != OUT
    }
}
