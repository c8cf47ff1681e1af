//! Squeezing: before the store refuses a page because all devices are full, it makes room in slots
//! with packs.
//!
//! Repacking ([`crate::background::repack`]) begins while there is time and looks at slots that are
//! less than half alive. A device can be full although all its slots are only two thirds alive:
//! then a third of it is lost. So a thread that finds no room squeezes: it writes objects in slots
//! that are no more alive than the mean into new packs, until there is room for a batch, an eighth
//! of the packs' room or less is lost, or a bound is reached. The repacking thread does the same
//! ahead of time, when less than a sixteenth of the slots is left.
//!
//! **The reserve.** An object that moves needs a new place before it gives up its old one. So the
//! last slots of a device that holds packs are handed out only for repacking ([`Taker::Repacker`]);
//! on a device without packs any thread may take the last slot.
//!
//! One thread squeezes at a time: it takes the working memory, and another thread that finds it
//! taken does not wait. No lock is held meanwhile.

use crate::background::repack::Repacker;
use crate::path::put::IO_PAGES;
use crate::store::Store;

/// Steps of one squeeze, at most. Each moves up to 60 objects or looks at 2048 entries.
const MAX_STEPS: u32 = 256;
/// Squeezing goes on until this many slots are free, if possible: room for a batch.
const ENOUGH: u64 = IO_PAGES as u64;

/// The kinds of thread that take slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taker {
    /// Any thread: it may not take the reserve.
    Anybody,
    /// A thread that repacks.
    Repacker,
}

impl Store {
    /// Makes room on devices; `false`: no room can be made, or another thread is squeezing. May
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
