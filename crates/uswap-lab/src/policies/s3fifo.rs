//! S3-FIFO (Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023, algorithm 1).
//! A page arrives on a small FIFO, a tenth of the memory. If it is accessed twice there, it moves
//! on to the main FIFO; otherwise it is evicted and its name is remembered, at most as many names
//! as the main queue can hold pages. A page that returns while it is remembered arrives on the main
//! queue. There each access, up to three, keeps the page for one more round.

use crate::links::{LinkedPages, PageLinks};
use crate::policy::{AccessOutcome, Policy};

/// Maximum number of accesses that count: two bits.
const MAX_TOUCHES: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum S3Place {
    Out,
    Small,
    Main,
    Ghost,
}

/// The small, the main and the ghost queue.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    /// The queue that each page is on, and its accesses since it came there.
    pages: Vec<(S3Place, u8)>,
    links: PageLinks,
    small: LinkedPages,
    main: LinkedPages,
    ghost: LinkedPages,
    small_share: usize,
    activations: u64,
    capacity: usize,
}

impl S3Fifo {
    /// The policy with a memory of `capacity` pages, for a trace of `distinct` pages.
    pub fn new(distinct: usize, capacity: usize) -> Self {
        Self {
            pages: vec![(S3Place::Out, 0); distinct],
            links: PageLinks::new(distinct),
            small: LinkedPages::default(),
            main: LinkedPages::default(),
            ghost: LinkedPages::default(),
            small_share: (capacity / 10).max(1),
            activations: 0,
            capacity,
        }
    }

    fn put_on_main(&mut self, page: u32) {
        self.pages[page as usize] = (S3Place::Main, 0);
        self.main.push_back(&mut self.links, page);
        self.activations += 1;
    }

    /// Goes through the small queue until a page is evicted or the queue is empty.
    fn evict_from_small(&mut self) {
        while let Some(page) = self.small.pop_front(&mut self.links) {
            if self.pages[page as usize].1 > 1 {
                self.put_on_main(page);
                continue;
            }
            self.pages[page as usize].0 = S3Place::Ghost;
            self.ghost.push_back(&mut self.links, page);
            if self.ghost.len() > self.capacity - self.small_share
                && let Some(forgotten) = self.ghost.pop_front(&mut self.links)
            {
                self.pages[forgotten as usize].0 = S3Place::Out;
            }
            return;
        }
    }

    fn evict_from_main(&mut self) {
        while let Some(page) = self.main.pop_front(&mut self.links) {
            let (place, touches) = &mut self.pages[page as usize];
            if *touches == 0 {
                *place = S3Place::Out;
                return;
            }
            *touches -= 1;
            self.main.push_back(&mut self.links, page);
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, page: u32) -> AccessOutcome {
        let (place, touches) = &mut self.pages[page as usize];
        let place = *place;
        if matches!(place, S3Place::Small | S3Place::Main) {
            *touches = (*touches + 1).min(MAX_TOUCHES);
            return AccessOutcome::Hit;
        }
        if place == S3Place::Ghost {
            self.ghost.remove(&mut self.links, page);
        }
        while self.held() == self.capacity {
            if self.small.len() >= self.small_share { self.evict_from_small() } else { self.evict_from_main() }
        }
        if place == S3Place::Ghost {
            self.put_on_main(page);
        } else {
            self.pages[page as usize] = (S3Place::Small, 0);
            self.small.push_back(&mut self.links, page);
        }
        AccessOutcome::Miss
    }

    fn held(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn holds(&self, page: u32) -> bool {
        matches!(self.pages[page as usize].0, S3Place::Small | S3Place::Main)
    }

    fn activations(&self) -> u64 {
        self.activations
    }
}
