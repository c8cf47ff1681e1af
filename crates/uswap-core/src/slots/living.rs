//! How many units of something shared are alive: the number of living units in a slot on which
//! several objects lie.
//!
//! A count belongs to whoever took the slot until the objects in it are told to others; from then
//! on it only falls. It reaches zero once, and whoever brings it there, and nobody else, is told so
//! and may free the slot. No lock is needed for that: the answer is part of the subtraction
//! (`living_models.rs` tries it under loom, and the mistake of looking afterwards).

use crate::util::sync::{AtomicU8, Ordering::AcqRel, Ordering::Acquire};

/// Living units.
#[derive(Default, Debug)]
pub struct Living {
    units: AtomicU8,
    #[cfg(all(test, loom))]
    mistake: bool,
}

impl Living {
    /// Adds the units of an object that only the caller knows of. Returns how many there were.
    pub fn add(&self, units: u8) -> u8 {
        self.units.fetch_add(units, AcqRel)
    }

    /// Takes away the units of an object that has gone. `true`: nothing lives any more, and the
    /// caller is the one who is told.
    ///
    /// # Panics
    /// When there were fewer: they were taken away twice.
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
