//! CLOCK (Corbató, A paging experiment with the Multics system, 1968): pages in a ring, evicted in
//! the order in which they arrived. The hand skips a page once if the page was accessed since the
//! hand was last there.
//!
//! A page arrives with its bit clear: the access that brings it in does not count.

use crate::policy::{AccessOutcome, Policy};

const OUT: u8 = 0;
const HELD: u8 = 1;
const TOUCHED: u8 = 2;

/// A ring of pages; without `SECOND_CHANCE` it is a plain FIFO.
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
    /// The policy with a memory of `capacity` pages, for a trace of `distinct` pages.
    pub fn new(distinct: usize, capacity: usize) -> Self {
        let ring = Vec::with_capacity(capacity.min(distinct));
        Self { states: vec![OUT; distinct], ring, hand: 0, capacity }
    }

    fn advance(&mut self) {
        self.hand = if self.hand + 1 == self.capacity { 0 } else { self.hand + 1 };
    }

    /// Advances the hand to a page that can be evicted, and puts `page` in its place.
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
