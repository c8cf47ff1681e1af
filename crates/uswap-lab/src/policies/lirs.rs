//! LIRS (Jiang and Zhang, LIRS: an efficient low inter-reference recency set replacement policy,
//! SIGMETRICS 2002). Pages are ranked by their *reuse distance*: the number of pages accessed
//! between their last two accesses. Those with low distances (LIR) have 99 % of the memory; the
//! others (HIR) pass through the rest, a queue.
//!
//! The stack holds pages by their last access, down to the LIR page with the oldest last access: a
//! HIR page that is accessed while it is on the stack, in memory or not, has a lower reuse distance
//! than that LIR page's recency and takes its place. HIR pages below the last LIR page carry no
//! more information and are removed (*pruning*). The paper does not limit the number of HIR pages
//! on the stack that are out of memory, and neither does this code: there are no more of them than
//! distinct pages.

use crate::links::{LinkedPages, PageLinks};
use crate::policy::{AccessOutcome, Policy};

#[derive(Clone, Copy, Debug, Default)]
struct LirsPage {
    is_low: bool,
    on_stack: bool,
    on_queue: bool,
}

/// The stack and the queue.
#[derive(Clone, Debug)]
pub struct Lirs {
    pages: Vec<LirsPage>,
    stack_links: PageLinks,
    /// The stack; its front is the bottom.
    stack: LinkedPages,
    queue_links: PageLinks,
    /// Resident HIR pages; the front is evicted next.
    queue: LinkedPages,
    low: usize,
    most_low: usize,
    activations: u64,
    capacity: usize,
}

impl Lirs {
    /// The policy with a memory of `capacity` pages, for a trace of `distinct` pages.
    pub fn new(distinct: usize, capacity: usize) -> Self {
        let most_high = (capacity / 100).max(1);
        Self {
            pages: vec![LirsPage::default(); distinct],
            stack_links: PageLinks::new(distinct),
            stack: LinkedPages::default(),
            queue_links: PageLinks::new(distinct),
            queue: LinkedPages::default(),
            low: 0,
            most_low: capacity - most_high,
            activations: 0,
            capacity,
        }
    }

    fn put_on_stack(&mut self, page: u32) {
        if self.pages[page as usize].on_stack {
            self.stack.move_to_back(&mut self.stack_links, page);
        } else {
            self.stack.push_back(&mut self.stack_links, page);
            self.pages[page as usize].on_stack = true;
        }
    }

    fn put_on_queue(&mut self, page: u32) {
        if self.pages[page as usize].on_queue {
            self.queue.move_to_back(&mut self.queue_links, page);
        } else {
            self.queue.push_back(&mut self.queue_links, page);
            self.pages[page as usize].on_queue = true;
        }
    }

    fn take_off_queue(&mut self, page: u32) {
        if std::mem::take(&mut self.pages[page as usize].on_queue) {
            self.queue.remove(&mut self.queue_links, page);
        }
    }

    /// Removes HIR pages from the bottom until the bottom is a LIR page.
    fn prune(&mut self) {
        while let Some(bottom) = self.stack.front()
            && !self.pages[bottom as usize].is_low
        {
            self.stack.pop_front(&mut self.stack_links);
            self.pages[bottom as usize].on_stack = false;
        }
    }

    /// The LIR page at the bottom becomes a resident HIR page and leaves the stack.
    fn demote_bottom(&mut self) {
        if let Some(bottom) = self.stack.pop_front(&mut self.stack_links) {
            self.pages[bottom as usize] = LirsPage::default();
            self.low -= 1;
            self.put_on_queue(bottom);
        }
    }

    /// A HIR page was accessed while it was on the stack: it becomes LIR in place of the bottom
    /// page.
    fn promote(&mut self, page: u32) {
        self.put_on_stack(page);
        self.take_off_queue(page);
        self.pages[page as usize].is_low = true;
        self.low += 1;
        self.activations += 1;
        if self.low > self.most_low {
            self.demote_bottom();
        }
        self.prune();
    }

    /// A HIR page was accessed that is not on the stack.
    fn keep_high(&mut self, page: u32) {
        self.put_on_stack(page);
        self.put_on_queue(page);
        self.prune();
    }

    fn evict(&mut self) {
        if let Some(page) = self.queue.pop_front(&mut self.queue_links) {
            self.pages[page as usize].on_queue = false;
        }
    }
}

impl Policy for Lirs {
    fn access(&mut self, page: u32) -> AccessOutcome {
        let LirsPage { is_low, on_stack, on_queue } = self.pages[page as usize];
        if is_low {
            self.put_on_stack(page);
            self.prune();
            return AccessOutcome::Hit;
        }
        if !on_queue && self.held() == self.capacity {
            self.evict();
        }
        // Until there are enough LIR pages, each page becomes one.
        if on_stack || (!on_queue && self.low < self.most_low) {
            self.promote(page)
        } else {
            self.keep_high(page)
        }
        if on_queue { AccessOutcome::Hit } else { AccessOutcome::Miss }
    }

    fn held(&self) -> usize {
        self.low + self.queue.len()
    }

    fn holds(&self, page: u32) -> bool {
        let LirsPage { is_low, on_queue, .. } = self.pages[page as usize];
        is_low || on_queue
    }

    fn activations(&self) -> u64 {
        self.activations
    }
}
