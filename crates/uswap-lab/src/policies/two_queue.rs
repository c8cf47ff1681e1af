//! 2Q, the full version (Johnson and Shasha, 2Q: a low overhead high performance buffer management replacement algorithm,
//! VLDB 1994). A page arrives on A1in, a FIFO whose hits count for nothing; of what leaves it the name is remembered in
//! A1out; a page that returns while it is remembered goes to Am, an LRU list. Sizes as the authors suggest: A1in a quarter of the
//! memory, A1out as many names as half of the memory has pages.

use crate::links::{Links, List};
use crate::policy::{Outcome, Policy};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Out,
    A1in,
    A1out,
    Am,
}

/// A1in, A1out and Am.
#[derive(Clone, Debug)]
pub struct TwoQueue {
    places: Vec<Place>,
    links: Links,
    a1in: List,
    a1out: List,
    am: List,
    activations: u64,
    capacity: usize,
}

impl TwoQueue {
    /// A memory of `capacity` pages for a trace of `distinct` ones.
    pub fn new(distinct: usize, capacity: usize) -> Self {
        Self {
            places: vec![Place::Out; distinct],
            links: Links::new(distinct),
            a1in: List::default(),
            a1out: List::default(),
            am: List::default(),
            activations: 0,
            capacity,
        }
    }

    fn is_full(&self) -> bool {
        self.a1in.len() + self.am.len() == self.capacity
    }

    /// The paper's `reclaimfor`.
    fn reclaim(&mut self) {
        if self.a1in.len() <= self.capacity / 4 {
            if let Some(page) = self.am.pop_front(&mut self.links) {
                self.places[page as usize] = Place::Out;
            }
            return;
        }
        let Some(page) = self.a1in.pop_front(&mut self.links) else { return };
        self.places[page as usize] = Place::A1out;
        self.a1out.push_back(&mut self.links, page);
        if self.a1out.len() > (self.capacity / 2).max(1)
            && let Some(forgotten) = self.a1out.pop_front(&mut self.links)
        {
            self.places[forgotten as usize] = Place::Out;
        }
    }
}

impl Policy for TwoQueue {
    fn access(&mut self, page: u32) -> Outcome {
        let place = self.places[page as usize];
        match place {
            Place::Am => {
                self.am.move_to_back(&mut self.links, page);
                return Outcome::Hit;
            }
            Place::A1in => return Outcome::Hit,
            Place::A1out => self.a1out.remove(&mut self.links, page),
            Place::Out => {}
        }
        if self.is_full() {
            self.reclaim();
        }
        let is_known = place == Place::A1out;
        let (list, place) = if is_known { (&mut self.am, Place::Am) } else { (&mut self.a1in, Place::A1in) };
        list.push_back(&mut self.links, page);
        self.places[page as usize] = place;
        self.activations += u64::from(is_known);
        Outcome::Miss
    }

    fn held(&self) -> usize {
        self.a1in.len() + self.am.len()
    }

    fn holds(&self, page: u32) -> bool {
        matches!(self.places[page as usize], Place::A1in | Place::Am)
    }

    fn activations(&self) -> u64 {
        self.activations
    }
}
