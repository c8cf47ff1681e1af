//! Repacking: frees thin slots by moving the objects that still live in them together into other
//! slots.
//!
//! Objects that share a slot are freed at different times, and a slot is free only when the last of
//! them has gone. Since packs are never refilled, this could, at worst, leave one small object in
//! each slot. So if slots are short (less than a quarter of them is left, or the disk is full) and
//! less than half of the room of all slots with packs is alive, repacking goes through the table of
//! objects step by step, and writes each object that touches a slot less than half alive into a new
//! pack. Copies that are only cached are given up instead. Each object that moves frees more room
//! than it takes: the slot that it leaves was less than half alive, and the slot that is written is
//! full, or, on devices that read whole pages only, more than half full on average.
//!
//! When few slots are left, a smaller gain is enough ([`crate::background::squeeze`]): an eighth of
//! the room must be lost, and a slot counts as thin if it is no more alive than the mean. Then a
//! round that frees no slot counts as one that moved nothing.
//!
//! The condition is about averages, so as long as it holds there are objects to move. A step is
//! bounded in objects and in entries looked at. The caller waits a while after a round that freed
//! nothing (objects that could not be read stay).

use crate::background::relocate::Mover;
use crate::background::squeeze::Taker;
use crate::stats::add;
use crate::store::Store;

/// Entries that are looked at each time a shard is locked.
const LOOKS: u32 = 2048;

/// The result of one call of [`Store::repack`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepackReport {
    /// Pages that lie elsewhere now.
    pub moved: u32,
    /// Cached copies given up.
    pub given_up: u32,
    /// All objects have been looked at once since the start or since this was last true.
    pub round_done: bool,
    /// A round is done, and no object was moved in it.
    pub round_was_idle: bool,
}

impl RepackReport {
    /// Whether another call now may move objects: not after a round that moved none.
    pub fn may_go_on(&self) -> bool {
        !self.round_was_idle
    }
}

/// The progress of repacking, and its working memory.
pub(crate) struct Repacker {
    /// Objects moved in this round.
    moved: u32,
    /// Slots with packs when the round began; `None` before it begins.
    slots: Option<u64>,
    mover: Mover,
}

impl Repacker {
    pub fn new() -> Self {
        Self { moved: 0, slots: None, mover: Mover::for_whom(Taker::Repacker) }
    }

    /// Begins a round.
    pub fn begin(&mut self) {
        (self.moved, self.slots) = (0, None);
    }
}

impl Store {
    /// Whether slots are short and thin ones hold room: then [`repack`](Self::repack) should be
    /// called until this is false or a round has freed nothing.
    pub fn needs_repack(&self) -> bool {
        self.device_to_repack().is_some()
    }

    fn device_to_repack(&self) -> Option<u8> {
        let eager = self.eager_repack();
        let wanted = |device: &u8| {
            let bay = self.devices.bay(*device);
            let is_nearly_full = !self.squeezes_not() && bay.is_nearly_full() && bay.is_squeezable();
            bay.needs_repack() || is_nearly_full || eager && bay.usable() && bay.has_packs()
        };
        self.devices.open().map(|(device, _)| device).find(wanted)
    }

    /// One step of freeing thin slots. May wait for devices.
    pub fn repack(&self, scratch: &mut crate::WritebackScratch) -> RepackReport {
        match self.device_to_repack() {
            Some(device) => self.repack_on(device, &mut scratch.repacker),
            None => RepackReport::default(),
        }
    }

    /// The same on this device.
    pub(crate) fn repack_on(&self, device: u8, repacker: &mut Repacker) -> RepackReport {
        let mut report = RepackReport::default();
        let (bay, eager) = (self.devices.bay(device), self.eager_repack());
        let squeezed = !bay.needs_repack();
        let slots = *repacker.slots.get_or_insert_with(|| bay.packed_slots());
        let thin = |extent: &_| if eager { bay.is_packed(extent) } else { bay.is_in_thin_slot(extent, squeezed) };
        let next = self.find_next(device, &mut repacker.mover, LOOKS, thin);
        (report.given_up, report.round_done) = (next.given_up, next.round_done);
        if !repacker.mover.pages.is_empty() {
            report.moved = self.move_pages(device, &mut repacker.mover, false).moved;
        }
        let moved = report.moved + report.given_up;
        add(&self.counters.repacked_pages, u64::from(moved));
        repacker.moved += moved;
        if report.round_done {
            let freed_nothing = squeezed && !eager && bay.packed_slots() >= slots;
            report.round_was_idle = repacker.moved == 0 || freed_nothing;
            repacker.begin();
        }
        report
    }
}
