//! Linux's two lists for anonymous memory, with refault distance (`mm/vmscan.c`, `mm/workingset.c`;
//! Weiner 2013).
//!
//! A page arrives on the inactive list with its accessed bit set, since the fault maps it young.
//! Reclaim looks at the tail of the inactive list (`folio_check_references`): a page with its
//! accessed bit clear is evicted; one with the bit set is marked *referenced* and goes round once
//! more, and if it had the mark already, it becomes active. When the inactive list is low, the tail
//! of the active list is deactivated, accessed or not; the mark stays, so that one access suffices
//! the next time.
//!
//! An eviction stores the value of a clock that counts evictions and activations. A page that
//! returns after at most as many ticks as there are active pages becomes active at once: this is
//! the anonymous half of the rule, since there are no files here.
//!
//! Left out: batches of 32 pages, the processors' batches of pages on their way to the lists, and
//! priorities.

use crate::links::{LinkedPages, PageLinks};
use crate::policy::{AccessOutcome, Policy};

const PAGE_SHIFT: u32 = 12;
const GIB_SHIFT: u32 = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelPlace {
    Never,
    /// Evicted when the clock had this value.
    Shadow(u64),
    Inactive,
    Active,
}

#[derive(Clone, Copy, Debug)]
struct KernelPage {
    place: KernelPlace,
    /// The accessed bit of the page table entry.
    accessed: bool,
    /// PG_referenced.
    referenced: bool,
}

/// The two lists; reclaim takes from the front, which the kernel calls the tail.
#[derive(Clone, Debug)]
pub struct KernelLists {
    pages: Vec<KernelPage>,
    links: PageLinks,
    inactive: LinkedPages,
    active: LinkedPages,
    nonresident_age: u64,
    activations: u64,
    capacity: usize,
}

impl KernelLists {
    /// The policy with a memory of `capacity` pages, for a trace of `distinct` pages.
    pub fn new(distinct: usize, capacity: usize) -> Self {
        let page = KernelPage { place: KernelPlace::Never, accessed: false, referenced: false };
        Self {
            pages: vec![page; distinct],
            links: PageLinks::new(distinct),
            inactive: LinkedPages::default(),
            active: LinkedPages::default(),
            nonresident_age: 0,
            activations: 0,
            capacity,
        }
    }

    /// `inactive_is_low`: the ratio is 1 below one GiB, and above it the square root of ten times
    /// the size in GiB.
    fn inactive_is_low(&self) -> bool {
        let gib = self.held() >> (GIB_SHIFT - PAGE_SHIFT);
        let ratio = if gib == 0 { 1 } else { (10 * gib).isqrt() };
        self.inactive.len() * ratio < self.active.len()
    }

    fn activate(&mut self, page: u32) {
        self.pages[page as usize].place = KernelPlace::Active;
        self.active.push_back(&mut self.links, page);
        self.nonresident_age += 1;
        self.activations += 1;
    }

    fn deactivate_one(&mut self) {
        if let Some(page) = self.active.pop_front(&mut self.links) {
            let state = &mut self.pages[page as usize];
            (state.place, state.accessed) = (KernelPlace::Inactive, false);
            self.inactive.push_back(&mut self.links, page);
        }
    }

    /// Evicts one page.
    fn reclaim(&mut self) {
        loop {
            while self.inactive_is_low() {
                self.deactivate_one();
            }
            let Some(page) = self.inactive.pop_front(&mut self.links) else { return };
            let state = &mut self.pages[page as usize];
            let (accessed, referenced) = (state.accessed, state.referenced);
            (state.accessed, state.referenced) = (false, accessed);
            match (accessed, referenced) {
                (true, true) => self.activate(page),
                (true, false) => self.inactive.push_back(&mut self.links, page),
                (false, _) => {
                    state.place = KernelPlace::Shadow(self.nonresident_age);
                    self.nonresident_age += 1;
                    return;
                }
            }
        }
    }
}

impl Policy for KernelLists {
    fn access(&mut self, page: u32) -> AccessOutcome {
        let place = self.pages[page as usize].place;
        if matches!(place, KernelPlace::Inactive | KernelPlace::Active) {
            self.pages[page as usize].accessed = true;
            return AccessOutcome::Hit;
        }
        if self.held() == self.capacity {
            self.reclaim();
        }
        self.pages[page as usize] = KernelPage { place: KernelPlace::Inactive, accessed: true, referenced: false };
        match place {
            KernelPlace::Shadow(age) if self.nonresident_age - age <= self.active.len() as u64 => self.activate(page),
            _ => self.inactive.push_back(&mut self.links, page),
        }
        AccessOutcome::Miss
    }

    fn held(&self) -> usize {
        self.inactive.len() + self.active.len()
    }

    fn holds(&self, page: u32) -> bool {
        matches!(self.pages[page as usize].place, KernelPlace::Inactive | KernelPlace::Active)
    }

    fn activations(&self) -> u64 {
        self.activations
    }
}
