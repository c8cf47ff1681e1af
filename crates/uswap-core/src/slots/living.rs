//! A count of living units, for a slot on which several objects lie.
//!
//! The thread that took the slot owns the count until it publishes the objects in the slot; from
//! then on the count only falls. It reaches zero once, and only the thread that brings it to zero
//! learns so and may free the slot. That needs no lock: the answer is part of the subtraction
//! (`living_models.rs` tries it under loom, and also the mistake of reading the count afterwards).

use crate::util::sync::{AtomicU8, Ordering::AcqRel, Ordering::Acquire};

/// Living units.
#[derive(Default, Debug)]
pub struct Living {
    units: AtomicU8,
    #[cfg(all(test, loom))]
    mistake: bool,
}

impl Living {
    /// Adds the units of an object that only the caller knows of. Returns the number of units
    /// before.
    pub fn add(&self, units: u8) -> u8 {
        self.units.fetch_add(units, AcqRel)
    }

    /// Takes away the units of an object that has gone. `true`: no unit lives any more, and the
    /// caller may free the slot.
    ///
    /// # Panics
    /// When there were fewer units: then they were taken away twice.
    pub fn remove(&self, units: u8) -> bool {
        let before = self.units.fetch_sub(units, AcqRel);
        assert!(before >= units, "{units} units were freed twice");
        #[cfg(all(test, loom))]
        if self.mistake {
            return self.get() == 0;
        }
        before == units
    }

    /// Units at this moment.
    pub fn get(&self) -> u8 {
        self.units.load(Acquire)
    }
}

#[cfg(all(test, loom))]
#[path = "living_models.rs"]
mod models;
