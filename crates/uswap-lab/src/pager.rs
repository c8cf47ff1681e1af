//! The page table of a simulated pager, for policies that see faults and soft faults only.
//!
//! A page is *mapped* (an access costs nothing and is seen by no policy), *staged* (not mapped by
//! the program but still in RAM: an access is a soft fault) or *out*. The table changes when the
//! policy says so and when a fault is served; a hit is handled in this file alone.

use crate::policy::{AccessOutcome, Policy};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimulatedPlace {
    Out,
    Mapped,
    Staged,
}

/// The state of each page, and the number of pages in each state.
#[derive(Clone, Debug)]
pub struct SimulatedPages {
    places: Vec<SimulatedPlace>,
    mapped: usize,
    staged: usize,
    capacity: usize,
}

impl SimulatedPages {
    /// Maximum number of pages in memory.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of mapped pages.
    pub fn mapped(&self) -> usize {
        self.mapped
    }

    /// Number of staged pages.
    pub fn staged(&self) -> usize {
        self.staged
    }

    /// Whether memory has no room for another page.
    pub fn is_full(&self) -> bool {
        self.mapped + self.staged >= self.capacity
    }

    /// Unmaps a page from the program; it stays in RAM.
    ///
    /// # Panics
    /// If the page is not mapped.
    pub fn stage(&mut self, page: u32) {
        let place = &mut self.places[page as usize];
        assert_eq!(*place, SimulatedPlace::Mapped, "only a mapped page can be staged");
        *place = SimulatedPlace::Staged;
        self.mapped -= 1;
        self.staged += 1;
    }

    /// Frees the memory of a staged page.
    ///
    /// # Panics
    /// If the page is not staged.
    pub fn evict(&mut self, page: u32) {
        let place = &mut self.places[page as usize];
        assert_eq!(*place, SimulatedPlace::Staged, "only a staged page can be evicted");
        *place = SimulatedPlace::Out;
        self.staged -= 1;
    }

    /// Whether the page is staged now.
    pub fn is_staged(&self, page: u32) -> bool {
        self.places[page as usize] == SimulatedPlace::Staged
    }
}

/// An eviction policy that a real pager could use.
pub trait FaultPolicy {
    /// A page that is out was accessed. When this returns, memory must have room for one more page;
    /// the page is then mapped.
    fn fault(&mut self, page: u32, pages: &mut SimulatedPages);

    /// A staged page was accessed; it is mapped now.
    fn soft_fault(&mut self, page: u32, pages: &mut SimulatedPages);

    /// Whether the hardware records accesses to a staged page, which then stays mapped: no thread
    /// waits for it.
    fn notes_touches(&self) -> bool {
        false
    }

    /// How often the policy has put a page on the active list.
    fn activations(&self) -> u64;
}

/// A policy with the pages that it manages.
#[derive(Clone, Debug)]
pub struct SimulatedPager<P> {
    pages: SimulatedPages,
    policy: P,
}

impl<P: FaultPolicy> SimulatedPager<P> {
    /// The policy with a memory of `capacity` pages, for a trace of `distinct` pages.
    pub fn new(policy: P, distinct: usize, capacity: usize) -> Self {
        let pages = SimulatedPages { places: vec![SimulatedPlace::Out; distinct], mapped: 0, staged: 0, capacity };
        Self { pages, policy }
    }
}

impl<P: FaultPolicy> Policy for SimulatedPager<P> {
    fn access(&mut self, page: u32) -> AccessOutcome {
        match self.pages.places[page as usize] {
            SimulatedPlace::Mapped => AccessOutcome::Hit,
            SimulatedPlace::Staged => {
                self.pages.places[page as usize] = SimulatedPlace::Mapped;
                self.pages.staged -= 1;
                self.pages.mapped += 1;
                self.policy.soft_fault(page, &mut self.pages);
                if self.policy.notes_touches() { AccessOutcome::Hit } else { AccessOutcome::Soft }
            }
            SimulatedPlace::Out => {
                self.policy.fault(page, &mut self.pages);
                assert!(!self.pages.is_full(), "the policy made no room");
                self.pages.places[page as usize] = SimulatedPlace::Mapped;
                self.pages.mapped += 1;
                AccessOutcome::Miss
            }
        }
    }

    fn held(&self) -> usize {
        self.pages.mapped + self.pages.staged
    }

    fn holds(&self, page: u32) -> bool {
        self.pages.places[page as usize] != SimulatedPlace::Out
    }

    fn activations(&self) -> u64 {
        self.policy.activations()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A FIFO with one staged page; it records the calls that it gets.
    #[derive(Default)]
    struct Diary {
        told: Vec<(u32, AccessOutcome)>,
        queue: std::collections::VecDeque<u32>,
    }

    impl FaultPolicy for Diary {
        fn fault(&mut self, page: u32, pages: &mut SimulatedPages) {
            self.told.push((page, AccessOutcome::Miss));
            self.queue.push_back(page);
            if pages.is_full() {
                let staged = self.queue.iter().position(|page| pages.is_staged(*page));
                let oldest = self.queue.remove(staged.unwrap_or(0)).expect("a page");
                if staged.is_none() {
                    pages.stage(oldest);
                }
                pages.evict(oldest);
                pages.stage(self.queue[0]);
            }
        }

        fn soft_fault(&mut self, page: u32, pages: &mut SimulatedPages) {
            assert!(!pages.is_staged(page), "it is mapped by now");
            self.told.push((page, AccessOutcome::Soft));
        }

        fn activations(&self) -> u64 {
            0
        }
    }

    #[test]
    fn hits_are_told_to_nobody() {
        let mut pager = SimulatedPager::new(Diary::default(), 8, 3);
        let pages = [0, 1, 0, 0, 2, 1, 3, 1, 1, 2, 4, 4, 3, 0, 7, 7, 2];
        let met: Vec<_> = pages.iter().map(|page| (*page, pager.access(*page))).collect();
        assert!(
            [AccessOutcome::Hit, AccessOutcome::Soft, AccessOutcome::Miss]
                .iter()
                .all(|kind| met.iter().any(|(_, met)| met == kind))
        );
        let not_hit: Vec<_> = met.into_iter().filter(|(_, outcome)| *outcome != AccessOutcome::Hit).collect();
        assert_eq!(pager.policy.told, not_hit);
    }

    struct Idle;

    impl FaultPolicy for Idle {
        fn fault(&mut self, _page: u32, _pages: &mut SimulatedPages) {}
        fn soft_fault(&mut self, _page: u32, _pages: &mut SimulatedPages) {}
        fn activations(&self) -> u64 {
            0
        }
    }

    #[test]
    #[should_panic(expected = "made no room")]
    fn a_policy_that_makes_no_room_is_found_out() {
        let mut pager = SimulatedPager::new(Idle, 2, 1);
        pager.access(0);
        pager.access(1);
    }
}
