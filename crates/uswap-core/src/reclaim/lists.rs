//! The inactive and the active list of a space, first in first out.
//!
//! An entry takes 4 bytes: it names a page by its place in the table ([`PageIndex`]). Entries are
//! not removed when a page leaves: an entry counts only if the page's word says that it is queued
//! on this list. So a page leaves a list at no cost; the price is stale entries, which are skipped,
//! and which are dropped before they are half as many as the others. The number of entries that
//! count is kept separately, so a caller that overwrites the word of a queued page must report it
//! (`leave`).
//!
//! Entries lie in blocks, so that a growing list is not copied. Blocks that become empty are used
//! again, since pages that come and go must not need memory; [`Lists::trim`] gives back the blocks
//! that a peak has left.

use std::collections::VecDeque;

use crate::page::table::PageIndex;
use crate::util::growth::{Growth, during};

/// Entries of a block: one KiB.
const BLOCK: usize = 256;
/// This many stale entries are always allowed, however few others there are.
const STALE: u64 = 1024;

type ListBlock = Box<[PageIndex; BLOCK]>;

/// The two lists of a space. The caller's page words decide whether an entry is valid.
#[derive(Default, Debug)]
pub struct Lists {
    queues: [PageFifo; 2],
    valid: [u64; 2],
    spare: Spare,
}

/// Blocks that are in no list. The vector always has room for all blocks, so that giving one back
/// needs no memory.
#[derive(Default, Debug)]
struct Spare {
    blocks: Vec<ListBlock>,
    /// Number of blocks in lists and here.
    all: usize,
}

impl Clone for Lists {
    fn clone(&self) -> Self {
        let all = self.queues.iter().map(|queue| queue.blocks.len()).sum();
        let spare = Spare { blocks: Vec::with_capacity(all), all };
        Self { queues: self.queues.clone(), valid: self.valid, spare }
    }
}

impl Spare {
    fn take(&mut self) -> ListBlock {
        self.blocks.pop().unwrap_or_else(|| {
            self.all += 1;
            self.blocks.reserve(self.all);
            Box::new([PageIndex::default(); BLOCK])
        })
    }
}

/// Entries in blocks: the first begins at `head` of the first block.
#[derive(Clone, Default, Debug)]
struct PageFifo {
    blocks: VecDeque<ListBlock>,
    head: usize,
    length: usize,
}

impl PageFifo {
    fn place(&self, index: usize) -> (usize, usize) {
        ((self.head + index) / BLOCK, (self.head + index) % BLOCK)
    }

    fn get(&self, index: usize) -> PageIndex {
        let (block, at) = self.place(index);
        self.blocks[block][at]
    }

    fn set(&mut self, index: usize, entry: PageIndex) {
        let (block, at) = self.place(index);
        self.blocks[block][at] = entry;
    }

    fn push_back(&mut self, entry: PageIndex, spare: &mut Spare) {
        if self.place(self.length).0 == self.blocks.len() {
            during(Growth::Lists, || self.blocks.push_back(spare.take()));
        }
        self.length += 1;
        self.set(self.length - 1, entry);
    }

    fn push_front(&mut self, entry: PageIndex, spare: &mut Spare) {
        if self.head == 0 {
            during(Growth::Lists, || self.blocks.push_front(spare.take()));
            self.head = BLOCK;
        }
        self.head -= 1;
        self.length += 1;
        self.set(0, entry);
    }

    fn pop_front(&mut self, spare: &mut Spare) -> Option<PageIndex> {
        let entry = (self.length > 0).then(|| self.get(0))?;
        self.head += 1;
        self.length -= 1;
        if self.head == BLOCK {
            spare.blocks.extend(self.blocks.pop_front());
            self.head = 0;
        }
        Some(entry)
    }

    fn pop_back(&mut self, spare: &mut Spare) -> Option<PageIndex> {
        let last = self.length.checked_sub(1)?;
        let entry = self.get(last);
        self.truncate(last, spare);
        Some(entry)
    }

    fn truncate(&mut self, length: usize, spare: &mut Spare) {
        self.length = length;
        let blocks = (self.head + length).div_ceil(BLOCK);
        while self.blocks.len() > blocks {
            spare.blocks.extend(self.blocks.pop_back());
        }
    }

    /// As [`VecDeque::retain`].
    fn retain(&mut self, spare: &mut Spare, mut wanted: impl FnMut(PageIndex) -> bool) {
        let mut kept = 0;
        for index in 0..self.length {
            let entry = self.get(index);
            if wanted(entry) {
                self.set(kept, entry);
                kept += 1;
            }
        }
        self.truncate(kept, spare);
    }
}

impl Lists {
    /// Puts a page at the tail of the inactive list or of the active one.
    pub fn push(&mut self, entry: PageIndex, active: bool) {
        self.queues[usize::from(active)].push_back(entry, &mut self.spare);
        self.valid[usize::from(active)] += 1;
    }

    /// Puts a page at the head of a list.
    pub fn push_first(&mut self, entry: PageIndex, active: bool) {
        self.queues[usize::from(active)].push_front(entry, &mut self.spare);
        self.valid[usize::from(active)] += 1;
    }

    /// Takes the entry at the head of a list, which may be stale: if it counts, call
    /// [`leave`](Self::leave).
    pub fn pop(&mut self, active: bool) -> Option<PageIndex> {
        self.queues[usize::from(active)].pop_front(&mut self.spare)
    }

    /// Takes the entry at the tail of a list.
    pub fn pop_last(&mut self, active: bool) -> Option<PageIndex> {
        self.queues[usize::from(active)].pop_back(&mut self.spare)
    }

    /// Takes the entry at `index` of the active list; the one at its head takes its place.
    pub fn pop_at(&mut self, index: usize) -> Option<PageIndex> {
        let queue = &mut self.queues[1];
        let entry = (index < queue.length).then(|| queue.get(index))?;
        let head = queue.get(0);
        queue.set(index, head);
        queue.pop_front(&mut self.spare);
        Some(entry)
    }

    /// Reports that a page that was on a list is on none any more.
    pub fn leave(&mut self, active: bool) {
        let valid = &mut self.valid[usize::from(active)];
        *valid = valid.saturating_sub(1);
    }

    /// Pages on a list.
    pub fn count(&self, active: bool) -> u64 {
        self.valid[usize::from(active)]
    }

    /// Entries of a list, stale ones included.
    pub fn entries(&self, active: bool) -> usize {
        self.queues[usize::from(active)].length
    }

    /// Entries of both, stale ones included.
    pub fn len(&self) -> usize {
        self.entries(false) + self.entries(true)
    }

    /// No entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All entries, stale ones included; `true` for those of the active list.
    pub fn iter(&self) -> impl Iterator<Item = (PageIndex, bool)> + '_ {
        let of = |active: bool| {
            let queue = &self.queues[usize::from(active)];
            (0..queue.length).map(move |index| (queue.get(index), active))
        };
        of(false).chain(of(true))
    }

    /// The most entries that are allowed for the entries that count.
    fn most(&self) -> u64 {
        let valid = self.valid[0] + self.valid[1];
        valid + valid / 2 + STALE
    }

    /// Whether there are too many stale entries: [`purge`](Self::purge) is to be called.
    pub fn is_stale(&self) -> bool {
        self.len() as u64 > self.most()
    }

    /// Drops the entries that `valid` refuses.
    pub fn purge(&mut self, mut valid: impl FnMut(PageIndex, bool) -> bool) {
        for active in [false, true] {
            let queue = &mut self.queues[usize::from(active)];
            queue.retain(&mut self.spare, |entry| valid(entry, active));
            self.valid[usize::from(active)] = queue.length as u64;
        }
    }

    /// Gives back the blocks that the present entries cannot fill before the next purge.
    pub fn trim(&mut self) {
        // Each list has two blocks that may be only partly filled.
        let most = self.most() as usize / BLOCK + 4;
        let surplus = self.spare.all.saturating_sub(most).min(self.spare.blocks.len());
        if surplus > 0 {
            self.spare.all -= surplus;
            self.spare.blocks.truncate(self.spare.blocks.len() - surplus);
            during(Growth::Lists, || self.spare.blocks.shrink_to(self.spare.all));
        }
    }

    /// Memory of both lists in bytes.
    pub fn bytes(&self) -> usize {
        let pointers = self.queues.iter().map(|queue| queue.blocks.capacity()).sum::<usize>();
        self.spare.all * size_of::<[PageIndex; BLOCK]>()
            + (pointers + self.spare.blocks.capacity()) * size_of::<ListBlock>()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn is_roomy(lists: &Lists) -> bool {
        let used: usize = lists.queues.iter().map(|queue| queue.blocks.len()).sum();
        let spare = &lists.spare;
        used + spare.blocks.len() == spare.all && spare.blocks.capacity() >= spare.all
    }

    /// Taking pages from a list needs no memory, also in a fork child, and after memory was given
    /// back.
    #[test]
    fn what_becomes_empty_has_a_place_to_go() {
        let mut lists = Lists::default();
        (0..100_000).for_each(|n| lists.push(PageIndex::default(), n % 3 == 0));
        assert!(is_roomy(&lists));
        for _ in 0..60_000 {
            assert!(lists.pop(false).is_some());
            lists.leave(false);
        }
        assert!(is_roomy(&lists) && lists.spare.blocks.len() > 200);
        let mut child = lists.clone();
        assert!(is_roomy(&child) && child.len() == lists.len() && child.spare.blocks.is_empty());
        let before = lists.bytes();
        lists.trim();
        assert!(is_roomy(&lists) && lists.bytes() < before * 3 / 4, "{} of {before}", lists.bytes());
        for lists in [&mut lists, &mut child] {
            let capacity = lists.spare.blocks.capacity();
            while lists.pop(true).or_else(|| lists.pop_last(false)).is_some() {}
            assert!(is_roomy(lists) && lists.spare.blocks.capacity() == capacity, "nothing was asked for");
        }
    }
}
