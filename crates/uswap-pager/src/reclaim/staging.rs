//! Trays as the pager sees them: which page lies in which staging slot, and how far each order has
//! come.
//!
//! ```text
//! free -> filling -> staged -> storing -> dropping -> free
//!            ^         |  ^------- store full
//!            |         +-> dropping (all taken back)
//! unclean ---+   a fork child's tray: what the parent left in it is dropped before its first use
//! ```

use std::collections::VecDeque;

use uswap_abi::layout::{TRAY_PAGES, TRAYS};
use uswap_abi::ring::OrderRun;
use uswap_core::util::growth::{Growth, during};

/// The phase of a tray.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Empty.
    Free,
    /// The agent moves pages into it.
    Filling,
    /// Its pages lie uncompressed in RAM and come back when they are touched.
    Staged,
    /// A worker reads and stores its pages.
    Storing,
    /// The agent gives its memory back.
    Dropping,
}

/// Neighbouring pages in neighbouring slots.
#[derive(Clone, Copy, Debug)]
pub struct PageRun {
    /// First page.
    pub address: u64,
    /// Number of pages.
    pub pages: u32,
    /// First slot in the tray.
    pub slot: u32,
    /// Whether fork sharing must be broken first.
    pub unshare: bool,
}

impl PageRun {
    /// The run as a word for the ring.
    pub fn packed(&self) -> u64 {
        OrderRun::pack(self.address, self.pages, self.unshare)
    }

    /// The run's slots as bits.
    pub fn slots(&self) -> u64 {
        mask(self.slot, self.pages)
    }

    /// Whether the run has a page in the range.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        self.address < end && start < self.address + u64::from(self.pages) * 4096
    }
}

/// Bits `first .. first + count`.
pub fn mask(first: u32, count: u32) -> u64 {
    let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    ones << first
}

/// The numbers of the set bits.
pub fn bits(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| set.trailing_zeros())?;
        set &= set - 1;
        Some(bit)
    })
}

/// One tray.
#[derive(Clone, Debug)]
pub struct StagingBatch {
    /// Its phase.
    pub phase: Phase,
    /// The address of the page of each slot.
    pub addresses: [u64; TRAY_PAGES as usize],
    /// Slots that were ordered and whose outcome is not known yet.
    pub ordered: u64,
    /// Slots whose page word says that the page is here.
    pub live: u64,
    /// Slots that hold memory, live or not.
    pub filled: u64,
    /// Slots whose page the kernel may have taken, because the program had freed it
    /// (`lazyfree_staged.rs`).
    pub clean: u64,
    /// The runs of the order.
    pub runs: Vec<PageRun>,
    /// Number of orders ever sent for this tray.
    pub pushed: u32,
    /// Whether the parent of a fork left pages here, in either half of a slot: each slot must be
    /// examined before it is read, and both halves dropped.
    pub inherited: bool,
    /// Pages the budget counts as under way because of this tray.
    pub charged: u32,
    /// A worker's answer concerns the tray only if it carries this number.
    pub generation: u32,
}

impl StagingBatch {
    fn new(inherited: bool) -> Self {
        Self {
            phase: Phase::Free,
            addresses: [0; TRAY_PAGES as usize],
            ordered: 0,
            live: 0,
            filled: 0,
            clean: 0,
            runs: Vec::with_capacity(TRAY_PAGES as usize),
            pushed: 0,
            inherited,
            charged: 0,
            generation: 0,
        }
    }
}

/// All trays of a space.
#[derive(Clone, Debug, Default)]
pub struct Trays {
    trays: Vec<StagingBatch>,
    free: VecDeque<u32>,
    /// Staged trays, oldest first.
    pub staged: VecDeque<u32>,
    /// Trays being filled.
    pub filling: Vec<u32>,
    /// Trays being dropped.
    pub dropping: Vec<u32>,
    born_inherited: bool,
}

impl Trays {
    /// Takes a free tray. Returns its number.
    pub fn take_free(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop_front() {
            return Some(number);
        }
        let number = self.trays.len() as u32;
        (number < TRAYS).then(|| {
            during(Growth::AddressSpaces, || self.add());
            number
        })
    }

    /// Adds a tray, and makes room for it in each list of trays.
    fn add(&mut self) {
        self.trays.push(StagingBatch::new(self.born_inherited));
        self.make_room();
    }

    fn make_room(&mut self) {
        let most = self.trays.len();
        for list in [&mut self.free, &mut self.staged] {
            list.reserve(most - list.len());
        }
        for list in [&mut self.filling, &mut self.dropping] {
            list.reserve(most - list.len());
        }
    }

    /// Gives a tray back.
    pub fn put_free(&mut self, number: u32) {
        let tray = self.get_mut(number);
        tray.phase = Phase::Free;
        (tray.live, tray.filled, tray.clean, tray.ordered) = (0, 0, 0, 0);
        (tray.inherited, tray.charged) = (false, 0);
        tray.runs.clear();
        self.free.push_back(number);
    }

    /// Gives a tray back of which it is unknown whether its memory was given back: it is treated as
    /// inherited.
    pub fn put_free_unclean(&mut self, number: u32) {
        self.put_free(number);
        self.get_mut(number).inherited = true;
    }

    /// A tray.
    pub fn get(&self, number: u32) -> &StagingBatch {
        &self.trays[number as usize]
    }

    /// A tray, mutable.
    pub fn get_mut(&mut self, number: u32) -> &mut StagingBatch {
        &mut self.trays[number as usize]
    }

    /// Every tray that was ever used, with the number of its first slot.
    pub fn with_first_slots(&self) -> impl Iterator<Item = (u32, &StagingBatch)> {
        self.trays.iter().enumerate().map(|(number, tray)| (number as u32 * TRAY_PAGES, tray))
    }

    /// Tray and bit of a slot.
    pub fn of_slot(&mut self, slot: u16) -> (&mut StagingBatch, u32) {
        let slot = u32::from(slot);
        (self.get_mut(slot / TRAY_PAGES), slot % TRAY_PAGES)
    }

    /// Pages that lie staged and could still come back.
    pub fn staged_pages(&self) -> u64 {
        self.staged.iter().map(|number| u64::from(self.get(*number).live.count_ones())).sum()
    }

    /// Pages that lie in trays.
    pub fn pages_held(&self) -> u64 {
        self.trays.iter().filter(|tray| tray.phase != Phase::Free).map(|tray| u64::from(tray.filled.count_ones())).sum()
    }

    /// Pages that were chosen for eviction and are neither stored nor back.
    pub fn leaving_pages(&self) -> u64 {
        let leaving = |tray: &&StagingBatch| matches!(tray.phase, Phase::Filling | Phase::Staged | Phase::Storing);
        self.trays.iter().filter(leaving).map(|tray| u64::from(tray.live.count_ones())).sum()
    }

    /// Makes the budget stop counting on trays that wait to be dropped. Returns the number of pages
    /// that it counted there.
    pub fn forgo_drops(&mut self) -> u32 {
        let (trays, dropping) = (&mut self.trays, &self.dropping);
        dropping.iter().map(|number| std::mem::take(&mut trays[*number as usize].charged)).sum()
    }

    /// Pages that the budget counts as under way: ordered, staged or being stored or dropped.
    pub fn pages_under_way(&self) -> u64 {
        self.trays.iter().filter(|t| t.phase != Phase::Free).map(|t| u64::from(t.charged)).sum()
    }

    /// The trays of a fork child: pages that were staged in the parent are staged in the child too,
    /// in memory of its own, which may be in either half. All other trays may hold leftovers.
    pub fn inherited(&self) -> Self {
        let mut child = Self { trays: self.trays.clone(), born_inherited: true, ..Self::default() };
        for (number, tray) in child.trays.iter_mut().enumerate() {
            tray.inherited = true;
            tray.runs = Vec::with_capacity(TRAY_PAGES as usize);
            (tray.pushed, tray.ordered, tray.filled, tray.charged) = (0, 0, tray.live, 0);
            if tray.live == 0 {
                tray.phase = Phase::Free;
                child.free.push_back(number as u32);
            } else {
                tray.phase = Phase::Staged;
                child.staged.push_back(number as u32);
            }
        }
        child.make_room();
        child
    }
}
