//! Freeing thin slots: what still lives in them moves together into other ones.
//!
//! Objects that share a slot die at different times, and a slot is free only when the last one has
//! gone. With packs that are refilled by nobody this could, at worst, leave one small object in
//! each slot. So when slots are short (less than a quarter of them is left, or the disk is full)
//! and less than half of the room of all slots with packs is alive, the table of objects is gone
//! through step by step, and what touches a slot that is less than half alive is written anew, in
//! packs. Copies that are only cached are given up instead. Each object moved frees more room than
//! it takes: a slot that is left was less than half alive, one that is written is full, or, on
//! devices that read whole pages only, more than half full in the mean.
//!
//! When the last slots are in sight, less is enough ([`crate::background::squeeze`]): an eighth of
//! the room must be lost, and slots that are not more alive than the mean are thin. A round that
//! frees no slot counts as one that moved nothing then.
//!
//! The condition holds for averages, so as long as it holds there is something to move. A step is
//! bounded in objects and in entries looked at; who calls waits a while after a round that freed
//! nothing (what could not be read stays).

use crate::background::relocate::Mover;
use crate::background::squeeze::Taker;
use crate::stats::add;
use crate::store::Store;

/// Entries looked at per lock of a shard.
const LOOKS: u32 = 2048;

/// What one call of [`Store::repack`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RepackReport {
    /// Pages that lie elsewhere now.
    pub moved: u32,
    /// Cached copies given up.
    pub given_up: u32,
    /// All objects have been looked at once since the beginning or since this was said last.
    pub round_done: bool,
    /// A round is done, and nothing was moved in it.
    pub round_was_idle: bool,
}

impl RepackReport {
    /// Whether another call now may move something: not after a round that moved nothing.
    pub fn may_go_on(&self) -> bool {
        !self.round_was_idle
    }
}

/// How far repacking has come, and its working memory.
pub(crate) struct Repacker {
    /// In this round.
    moved: u32,
    /// Slots with packs when it began, if it did.
    slots: Option<u64>,
    mover: Mover,
}

impl Repacker {
    pub fn new() -> Self {
        Self { moved: 0, slots: None, mover: Mover::for_whom(Taker::Repacker) }
    }

    /// A round begins.
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
