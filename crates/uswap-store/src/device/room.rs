//! The room of a device: which threads may take which slots, and when the slots with packs are to
//! be made fewer ([`crate::background::repack`], [`crate::background::squeeze`]).

use std::sync::atomic::Ordering::Relaxed;

use uswap_core::{SlotRun, worker_number};

use super::SwapDevice;
use crate::background::squeeze::Taker;

/// The most slots that a device with packs reserves for repacking: two batches.
const RESERVE: u32 = 128;
/// The most room that may be lost in packs, in slots, however large the device is: a GiB.
const MAX_LOST: u64 = 1 << 18;

impl SwapDevice {
    /// Whether slots are short and the packs would fit into half of their slots. Slots are short if
    /// less than a quarter of them is left, or if more than `MAX_LOST` is lost.
    pub fn needs_repack(&self) -> bool {
        let packed = self.packs.figures();
        let is_short = self.slots.is_frozen() || self.slots_free() < self.slots.total() / 4;
        (is_short || packed.lost_slots() > MAX_LOST) && self.usable() && packed.is_thin()
    }

    /// Whether squeezing the packs would free slots, although not half of them, and there are slots
    /// for the objects that move.
    pub fn is_squeezable(&self) -> bool {
        self.usable() && self.packs.figures().is_loose() && self.slots.has_room()
    }

    /// Whether few slots are left.
    pub fn is_nearly_full(&self) -> bool {
        self.slots.is_frozen() || self.slots_free().saturating_sub(self.reserve()) < self.slots.total() / 16
    }

    /// Slots with packs.
    pub fn packed_slots(&self) -> u64 {
        self.packs.figures().slots
    }

    /// Slots that are reserved for repacking: none if the device has no packs.
    fn reserve(&self) -> u32 {
        let keeps = self.has_packs() && !self.rules.no_reserve.load(Relaxed);
        if keeps { RESERVE.min(self.slots.total() / 16) } else { 0 }
    }

    /// Slots that this kind of thread may still take; `None` if only the number of free slots
    /// limits it.
    fn room_of(&self, taker: Taker) -> Option<u32> {
        let reserve = if taker == Taker::Repacker { 0 } else { self.reserve() };
        let free = self.slots.total().saturating_sub(self.slots.used());
        (reserve > 0).then(|| free.saturating_sub(reserve))
    }

    /// Whether a page might be taken.
    pub fn has_room(&self) -> bool {
        self.usable() && self.slots.has_room() && self.room_of(Taker::Anybody) != Some(0)
    }

    /// Takes slots. Other threads may at the same moment have taken the last slots before the
    /// reserve: then all are given back.
    pub(super) fn take_slots(&self, count: u32, runs: &mut Vec<SlotRun>, taker: Taker) {
        runs.clear();
        let count = self.room_of(taker).map_or(count, |room| count.min(room));
        if count == 0 || !self.usable() {
            return;
        }
        self.slots.allocate(worker_number(), count, runs);
        let is_over = taker == Taker::Anybody && self.slots.used() > self.slots.total() - self.reserve();
        if is_over {
            runs.drain(..).for_each(|run| self.slots.free(worker_number(), run));
        }
    }
}
