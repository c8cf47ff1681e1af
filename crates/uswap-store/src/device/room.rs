//! Which slots of a device are for whom, and when those with packs are to be made fewer
//! ([`crate::background::repack`], [`crate::background::squeeze`]).

use std::sync::atomic::Ordering::Relaxed;

use uswap_core::{SlotRun, worker_number};

use super::SwapDevice;
use crate::background::squeeze::Taker;

/// Slots of a device with packs that are for who repacks, at most: two batches.
const RESERVE: u32 = 128;
/// Slots that may be lost beside what lives in packs, however large the device is: a GiB.
const MAX_LOST: u64 = 1 << 18;

impl SwapDevice {
    /// Whether slots are short and those with packs could do with half as many. Begins when less
    /// than a quarter of the slots is left, or when so much is lost that the disk should not bear
    /// it.
    pub fn needs_repack(&self) -> bool {
        let packed = self.packs.figures();
        let is_short = self.slots.is_frozen() || self.slots_free() < self.slots.total() / 4;
        (is_short || packed.lost_slots() > MAX_LOST) && self.usable() && packed.is_thin()
    }

    /// Whether slots can be had from those with packs, though not by half, and there is a place for
    /// what moves.
    pub fn is_squeezable(&self) -> bool {
        self.usable() && self.packs.figures().is_loose() && self.slots.has_room()
    }

    /// Whether the last slots are in sight.
    pub fn is_nearly_full(&self) -> bool {
        self.slots.is_frozen() || self.slots_free().saturating_sub(self.reserve()) < self.slots.total() / 16
    }

    /// Slots with packs.
    pub fn packed_slots(&self) -> u64 {
        self.packs.figures().slots
    }

    /// Slots that are for who repacks: none where nothing is packed.
    fn reserve(&self) -> u32 {
        let keeps = self.has_packs() && !self.rules.no_reserve.load(Relaxed);
        if keeps { RESERVE.min(self.slots.total() / 16) } else { 0 }
    }

    /// Slots that this one may still take, if that is limited by more than by what there is.
    fn room_of(&self, taker: Taker) -> Option<u32> {
        let reserve = if taker == Taker::Repacker { 0 } else { self.reserve() };
        let free = self.slots.total().saturating_sub(self.slots.used());
        (reserve > 0).then(|| free.saturating_sub(reserve))
    }

    /// Whether a page might be taken.
    pub fn has_room(&self) -> bool {
        self.usable() && self.slots.has_room() && self.room_of(Taker::Anybody) != Some(0)
    }

    /// Takes slots. What others took at the same moment may have been the last before the reserve:
    /// then all are given back.
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
