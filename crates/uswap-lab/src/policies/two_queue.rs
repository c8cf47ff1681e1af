//! 2Q, the full version (Johnson and Shasha, 2Q: a low overhead high performance buffer management
//! replacement algorithm, VLDB 1994). A page arrives on A1in, a FIFO whose hits do not count; A1out
//! remembers the names of the pages that leave it; a page that returns while it is remembered moves
//! to Am, an LRU list. Sizes as the authors suggest: A1in is a quarter of the memory, and A1out has
//! as many names as half of the memory has pages.

use crate::links::{LinkedPages, PageLinks};
use crate::policy::{AccessOutcome, Policy};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TwoQueuePlace {
    Out,
    A1in,
    A1out,
    Am,
}

/// A1in, A1out and Am.
#[derive(Clone, Debug)]
pub struct TwoQueue {
    places: Vec<TwoQueuePlace>,
    links: PageLinks,
    a1in: LinkedPages,
    a1out: LinkedPages,
    am: LinkedPages,
    activations: u64,
    capacity: usize,
}

impl TwoQueue {
    /// The policy with a memory of `capacity` pages, for a trace of `distinct` pages.
    pub fn new(distinct: usize, capacity: usize) -> Self {
        Self {
            places: vec![TwoQueuePlace::Out; distinct],
            links: PageLinks::new(distinct),
            a1in: LinkedPages::default(),
            a1out: LinkedPages::default(),
            am: LinkedPages::default(),
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
                self.places[page as usize] = TwoQueuePlace::Out;
            }
            return;
        }
        let Some(page) = self.a1in.pop_front(&mut self.links) else { return };
        self.places[page as usize] = TwoQueuePlace::A1out;
        self.a1out.push_back(&mut self.links, page);
        if self.a1out.len() > (self.capacity / 2).max(1)
            && let Some(forgotten) = self.a1out.pop_front(&mut self.links)
        {
            self.places[forgotten as usize] = TwoQueuePlace::Out;
        }
    }
}

impl Policy for TwoQueue {
    fn access(&mut self, page: u32) -> AccessOutcome {
        let place = self.places[page as usize];
        match place {
            TwoQueuePlace::Am => {
                self.am.move_to_back(&mut self.links, page);
                return AccessOutcome::Hit;
            }
            TwoQueuePlace::A1in => return AccessOutcome::Hit,
            TwoQueuePlace::A1out => self.a1out.remove(&mut self.links, page),
            TwoQueuePlace::Out => {}
        }
        if self.is_full() {
            self.reclaim();
        }
        let is_known = place == TwoQueuePlace::A1out;
        let (list, place) =
            if is_known { (&mut self.am, TwoQueuePlace::Am) } else { (&mut self.a1in, TwoQueuePlace::A1in) };
        list.push_back(&mut self.links, page);
        self.places[page as usize] = place;
        self.activations += u64::from(is_known);
        AccessOutcome::Miss
    }

    fn held(&self) -> usize {
        self.a1in.len() + self.am.len()
    }

    fn holds(&self, page: u32) -> bool {
        matches!(self.places[page as usize], TwoQueuePlace::A1in | TwoQueuePlace::Am)
    }

    fn activations(&self) -> u64 {
        self.activations
    }
}
