//! Packs: how much of each slot of a device is alive, if several objects share the slot.
//!
//! Writeback writes compressed objects packed together ([`Extent`]); one object may touch two
//! slots. For each slot a byte counts the units that living objects have in it. A thread that frees
//! an object subtracts its units; when none is left the slot is free. Pages that fill a slot are
//! not counted here: they own it.
//!
//! A slot's byte belongs to the thread that took the slot until entries name the objects in it, and
//! from then on it only falls. It reaches zero once, so exactly one thread frees the slot
//! ([`Living`]), without a lock. The bytes lie in one table for each cluster (512 bytes), made when
//! the first pack is written there.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use uswap_core::util::growth::{Growth, during};
use uswap_core::{Blocks, Living};

use crate::device::extent::{Extent, SLOT_UNITS};

const CLUSTER: usize = 512;

type PackCluster = Box<[Living; CLUSTER]>;

/// Living units of the slots of one device.
pub(crate) struct Packs {
    clusters: Blocks<OnceLock<PackCluster>>,
    objects: AtomicU64,
    units: AtomicU64,
    slots: AtomicU64,
}

/// The figures of all packs of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Packed {
    pub objects: u64,
    pub units: u64,
    pub slots: u64,
}

impl Packed {
    /// Whether less than half of the slots' room is alive.
    pub fn is_thin(&self) -> bool {
        self.units * 2 < self.slots * SLOT_UNITS as u64
    }

    /// The lost room, in slots.
    pub fn lost_slots(&self) -> u64 {
        self.slots.saturating_sub(self.units / SLOT_UNITS as u64)
    }

    /// Whether more than an eighth of the slots' room is lost.
    pub fn is_loose(&self) -> bool {
        self.units * 8 < self.slots * (7 * SLOT_UNITS as u64)
    }
}

impl Packs {
    pub fn new(slots: u32) -> Self {
        let clusters = (slots as usize).div_ceil(CLUSTER);
        Self {
            clusters: Blocks::new(clusters, OnceLock::new),
            objects: AtomicU64::new(0),
            units: AtomicU64::new(0),
            slots: AtomicU64::new(0),
        }
    }

    fn slot(&self, slot: u32) -> &Living {
        let make = || during(Growth::Devices, || Box::new(std::array::from_fn(|_| Living::default())));
        let cluster = self.clusters.get(slot as usize / CLUSTER).get_or_init(make);
        &cluster[slot as usize % CLUSTER]
    }

    /// Counts an object that was written, in slots that the caller has taken.
    pub fn add(&self, extent: &Extent) {
        for (slot, units) in extent.parts() {
            let before = self.slot(slot).add(units);
            debug_assert!((before + units) as usize <= SLOT_UNITS, "slot {slot} holds more than it can");
            if before == 0 {
                self.slots.fetch_add(1, Relaxed);
            }
        }
        self.objects.fetch_add(1, Relaxed);
        self.units.fetch_add(u64::from(extent.units), Relaxed);
    }

    /// Units of living objects in a slot.
    pub fn living(&self, slot: u32) -> u8 {
        self.slot(slot).get()
    }

    /// Subtracts a freed object; calls `free` for each slot in which no object is left.
    pub fn remove(&self, extent: &Extent, mut free: impl FnMut(u32)) {
        self.objects.fetch_sub(1, Relaxed);
        self.units.fetch_sub(u64::from(extent.units), Relaxed);
        for (slot, units) in extent.parts() {
            if self.slot(slot).remove(units) {
                self.slots.fetch_sub(1, Relaxed);
                free(slot);
            }
        }
    }

    /// Whether a slot that the object touches is less than half alive.
    pub fn is_in_thin_slot(&self, extent: &Extent) -> bool {
        extent.parts().any(|(slot, _)| usize::from(self.slot(slot).get()) < SLOT_UNITS / 2)
    }

    /// Whether a slot that the object touches is no more alive than the mean.
    pub fn is_in_mean_slot(&self, extent: &Extent) -> bool {
        let Packed { units, slots, .. } = self.figures();
        extent.parts().any(|(slot, _)| u64::from(self.slot(slot).get()) * slots <= units)
    }

    pub fn figures(&self) -> Packed {
        Packed { objects: self.objects.load(Relaxed), units: self.units.load(Relaxed), slots: self.slots.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(slot: u32, offset: u8, units: u8) -> Extent {
        Extent { device: 0, slot, offset, units }
    }

    #[test]
    fn a_slot_is_free_when_its_last_object_has_gone() {
        let packs = Packs::new(1024);
        let objects = [extent(510, 0, 40), extent(510, 40, 49), extent(511, 25, 39), extent(512, 0, 1)];
        objects.iter().for_each(|object| packs.add(object));
        assert_eq!(packs.figures(), Packed { objects: 4, units: 129, slots: 3 });
        assert!(!packs.is_in_thin_slot(&objects[1]) && packs.is_in_thin_slot(&objects[3]));
        let freed = |object: &Extent| {
            let mut slots = Vec::new();
            packs.remove(object, |slot| slots.push(slot));
            slots
        };
        assert_eq!(freed(&objects[0]), []);
        assert!(packs.is_in_thin_slot(&objects[1]), "its first slot has 24 units left");
        assert_eq!(freed(&objects[1]), [510]);
        assert_eq!(freed(&objects[3]), [512]);
        assert_eq!(freed(&objects[2]), [511]);
        assert_eq!(packs.figures(), Packed::default());
    }

    /// Each slot is freed exactly once, by the thread that frees its last object.
    #[test]
    fn threads_free_each_slot_once() {
        let packs = Packs::new(512);
        let objects: Vec<Extent> = (0..400u32).map(|i| extent(i * 20 / 64, (i * 20 % 64) as u8, 20)).collect();
        objects.iter().for_each(|object| packs.add(object));
        let freed: Vec<u32> = std::thread::scope(|scope| {
            let packs = &packs;
            let free = |part: usize| {
                let mine: Vec<Extent> = objects.iter().skip(part).step_by(4).copied().collect();
                move || {
                    let mut slots = Vec::new();
                    mine.iter().for_each(|object| packs.remove(object, |slot| slots.push(slot)));
                    slots
                }
            };
            let threads: Vec<_> = (0..4).map(|part| scope.spawn(free(part))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
        });
        let mut sorted = freed.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!((sorted.len(), freed.len(), packs.figures()), (125, 125, Packed::default()));
    }
}
