//! Squeezing: before a page is refused because all devices are full, room is made out of slots with
//! packs.
//!
//! Repacking ([`crate::background::repack`]) begins while there is time and looks at slots that are
//! less than half alive. A device can be full though all its slots are two thirds alive: a third of
//! it is lost. So who finds no room squeezes: objects in slots that are not more alive than the
//! mean are written anew, until there is room for a batch, an eighth of the packs' room or less is
//! lost, or a bound is reached. The same is done ahead of time, by whoever repacks, when less than
//! a sixteenth of the slots is left.
//!
//! **The reserve.** What moves needs a place before it gives up its own. So the last slots of a
//! device that holds packs are handed out to who repacks only ([`Taker::Repacker`]); of a device
//! without packs everybody has the last slot.
//!
//! One thread squeezes at a time: it takes the working memory, and who finds none does not wait. No
//! lock is held meanwhile.

use crate::background::repack::Repacker;
use crate::path::put::IO_PAGES;
use crate::store::Store;

/// Steps of one squeeze, at most. Each moves up to 60 objects or looks at 2048 entries.
const MAX_STEPS: u32 = 256;
/// Slots that are freed at least if they can be: room for a batch.
const ENOUGH: u64 = IO_PAGES as u64;

/// Who takes slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taker {
    /// Anybody: not the reserve.
    Anybody,
    /// Who repacks.
    Repacker,
}

impl Store {
    /// Makes room on devices; `false`: there is none to be made, or somebody else is at it. May
    /// wait for devices.
    pub(crate) fn squeeze(&self) -> bool {
        if self.squeezes_not() {
            return false;
        }
        let taken = self.squeezer.lock().expect("no panic under this lock").take();
        let Some(mut repacker) = taken else { return false };
        let freed = self.squeeze_with(&mut repacker);
        *self.squeezer.lock().expect("no panic under this lock") = Some(repacker);
        freed > 0
    }

    fn squeeze_with(&self, repacker: &mut Repacker) -> u64 {
        let used = || self.devices.open().map(|(_, bay)| u64::from(bay.slots_used())).sum::<u64>();
        let (before, mut freed) = (used(), 0);
        repacker.begin();
        for _ in 0..MAX_STEPS {
            let squeezable = |device: &u8| self.devices.bay(*device).is_squeezable();
            let Some(device) = self.devices.open().map(|(device, _)| device).find(squeezable) else { break };
            let report = self.repack_on(device, repacker);
            freed = before.saturating_sub(used());
            if freed >= ENOUGH || !report.may_go_on() {
                break;
            }
        }
        freed
    }
}
