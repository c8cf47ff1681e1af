//! A queue of pages, first in first out, in which neighbours that follow one another take no extra
//! room.
//!
//! After a fork all pages of a process are set aside, in the order of their addresses. Stored one
//! by one they would take as much memory as the page table itself, in each relative.

use std::collections::VecDeque;
use uswap_core::PAGE;

/// Runs in which a page is searched that is not the first one.
const SEARCHED: usize = 64;

/// The queue, as runs of neighbours: each from its first byte to the byte behind its last page.
#[derive(Clone, Debug, Default)]
pub struct PageQueue {
    runs: VecDeque<(u64, u64)>,
    pages: usize,
}

impl PageQueue {
    /// Number of pages in the queue.
    pub fn len(&self) -> usize {
        self.pages
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Appends a page.
    pub fn push_back(&mut self, address: u64) {
        self.pages += 1;
        match self.runs.back_mut() {
            Some((_, end)) if *end == address => *end += PAGE,
            _ => self.runs.push_back((address, address + PAGE)),
        }
    }

    /// The first page.
    pub fn first(&self) -> Option<u64> {
        self.runs.front().map(|(start, _)| *start)
    }

    /// Takes the first page.
    pub fn pop_front(&mut self) -> Option<u64> {
        let (start, end) = self.runs.front_mut()?;
        let address = *start;
        *start += PAGE;
        if start == end {
            self.runs.pop_front();
        }
        self.pages -= 1;
        Some(address)
    }

    /// Takes a page out of the queue, if it lies among the first [`SEARCHED`] runs.
    pub fn remove(&mut self, address: u64) {
        let is_in = |(start, end): &(u64, u64)| (*start..*end).contains(&address);
        let Some(index) = self.runs.iter().take(SEARCHED).position(is_in) else { return };
        let (start, end) = self.runs[index];
        self.pages -= 1;
        match (start == address, end == address + PAGE) {
            (true, true) => drop(self.runs.remove(index)),
            (true, false) => self.runs[index].0 += PAGE,
            (false, true) => self.runs[index].1 -= PAGE,
            (false, false) => {
                self.runs[index].1 = address;
                self.runs.insert(index + 1, (address + PAGE, end));
            }
        }
    }

    /// All pages, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.runs.iter().flat_map(|(start, end)| (*start..*end).step_by(PAGE as usize))
    }

    /// Keeps only the pages that satisfy `is_kept`.
    pub fn retain(&mut self, mut is_kept: impl FnMut(u64) -> bool) {
        let all = std::mem::take(self);
        all.iter().filter(|address| is_kept(*address)).for_each(|address| self.push_back(address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_queue(steps in prop::collection::vec((0u8..4, 0u64..12), 0..60), kept in 0u64..12) {
            let (mut queue, mut model) = (PageQueue::default(), VecDeque::new());
            for (step, page) in steps {
                let address = page * PAGE;
                match step {
                    0 | 1 => {
                        queue.push_back(address);
                        model.push_back(address);
                    }
                    2 => prop_assert_eq!(queue.pop_front(), model.pop_front()),
                    _ => {
                        let place = model.iter().position(|known| *known == address);
                        place.map(|place| model.remove(place));
                        queue.remove(address);
                    }
                }
                prop_assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
                prop_assert!(queue.iter().eq(model.iter().copied()));
            }
            queue.retain(|page| page / PAGE <= kept);
            model.retain(|page| page / PAGE <= kept);
            prop_assert_eq!(queue.len(), model.len());
            prop_assert!(queue.iter().eq(model.iter().copied()));
        }
    }

    #[test]
    fn neighbours_take_no_room() {
        let mut queue = PageQueue::default();
        (1..1001).for_each(|page| queue.push_back(page * PAGE));
        assert_eq!((queue.len(), queue.runs.len()), (1000, 1));
    }
}
