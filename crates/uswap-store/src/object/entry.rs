//! The entry of one object: 16 bytes, half of which are its checksum.
//!
//! ```text
//! check  64 bits of the page's hash; of a page that is one word repeated: that word, from which the page is made anew
//! word   0..3 kind    3..7 references    7..11 of them cached    11..32 detail    32..64 slot or handle
//! ```
//! `detail` is the device (8 bits), the offset in the slot and the number of units less one (6 bits
//! each), or two flags of the pool. An entry has no links to its neighbours in a list: the order in
//! which copies go is kept by chunks of objects (`table.rs`).
//!
//! The counts of references are what the kernel's swap map is: the use counts of the slots. Counts
//! that do not fit into 4 bits lie in a separate table ([`EntryCounts`], `table.rs`), marked by
//! [`OVERFLOW`].

use uswap_core::Handle;

use crate::device::extent::Extent;

/// In place of the count of references: both counts lie in the separate table.
pub(crate) const OVERFLOW: u64 = 0xF;

/// Where the copy of an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ObjectPlace {
    /// The entry is not in use.
    Vacant,
    /// One word repeated.
    Filled(u64),
    /// Compressed in the pool. `writing`: writeback has copied it and waits for the device.
    Pool { handle: Handle, referenced: bool, writing: bool },
    /// On a device.
    Device(Extent),
    /// Given up.
    Gone,
}

impl ObjectPlace {
    pub fn pool(handle: Handle) -> Self {
        Self::Pool { handle, referenced: false, writing: false }
    }
}

/// The number of references of all kinds, and of cached ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryCounts {
    pub refs: u64,
    pub cached: u64,
}

/// An object as it is stored.
#[derive(Clone, Copy)]
pub(crate) struct PackedExtent {
    check: u64,
    word: u64,
}

const _: () = assert!(size_of::<PackedExtent>() == 16);

mod kind {
    pub const VACANT: u64 = 0;
    pub const FILLED: u64 = 1;
    pub const POOL: u64 = 2;
    pub const DEVICE: u64 = 3;
    pub const GONE: u64 = 4;
    pub const MASK: u64 = 7;
}

const REFS_AT: u32 = 3;
const CACHED_AT: u32 = 7;
const COUNTS_MASK: u64 = OVERFLOW << REFS_AT | OVERFLOW << CACHED_AT;
const REFERENCED: u64 = 1 << 11;
const WRITING: u64 = 1 << 12;
const DEVICE_AT: u32 = 11;
const OFFSET_AT: u32 = 19;
const UNITS_AT: u32 = 25;
/// Mask of an offset, and of a number of units less one.
const UNITS_MASK: u64 = (1 << 6) - 1;
const HIGH_AT: u32 = 32;

impl PackedExtent {
    pub const VACANT: Self = Self { check: 0, word: kind::VACANT };

    /// An object without references.
    pub fn new(check: u64, place: ObjectPlace) -> Self {
        let mut entry = Self { check, word: 0 };
        entry.set_place(place);
        entry
    }

    /// The checksum of the page; has no meaning for a page that is one word repeated.
    pub fn check(&self) -> u64 {
        self.check
    }

    pub fn place(&self) -> ObjectPlace {
        let high = (self.word >> HIGH_AT) as u32;
        match self.word & kind::MASK {
            kind::VACANT => ObjectPlace::Vacant,
            kind::FILLED => ObjectPlace::Filled(self.check),
            kind::POOL => ObjectPlace::Pool {
                handle: Handle::from_bits(high),
                referenced: self.word & REFERENCED != 0,
                writing: self.word & WRITING != 0,
            },
            kind::DEVICE => ObjectPlace::Device(Extent {
                device: (self.word >> DEVICE_AT) as u8,
                slot: high,
                offset: (self.word >> OFFSET_AT & UNITS_MASK) as u8,
                units: (self.word >> UNITS_AT & UNITS_MASK) as u8 + 1,
            }),
            _ => ObjectPlace::Gone,
        }
    }

    /// Changes the place. If the place was a repeated word the checksum is lost.
    pub fn set_place(&mut self, place: ObjectPlace) {
        let high = |bits: u32| u64::from(bits) << HIGH_AT;
        let word = match place {
            ObjectPlace::Vacant => kind::VACANT,
            ObjectPlace::Filled(word) => {
                self.check = word;
                kind::FILLED
            }
            ObjectPlace::Pool { handle, referenced, writing } => {
                let flags = if referenced { REFERENCED } else { 0 } | if writing { WRITING } else { 0 };
                kind::POOL | flags | high(handle.to_bits())
            }
            ObjectPlace::Device(Extent { device, slot, offset, units }) => {
                debug_assert!((1..=64).contains(&units) && offset < 64);
                let units = u64::from(units) - 1;
                let within = u64::from(offset) << OFFSET_AT | units << UNITS_AT;
                kind::DEVICE | u64::from(device) << DEVICE_AT | within | high(slot)
            }
            ObjectPlace::Gone => kind::GONE,
        };
        self.word = word | self.word & COUNTS_MASK;
    }

    /// The counts; if `refs` is [`OVERFLOW`] both lie in the separate table.
    pub fn counts(&self) -> EntryCounts {
        EntryCounts { refs: self.word >> REFS_AT & OVERFLOW, cached: self.word >> CACHED_AT & OVERFLOW }
    }

    /// `refs` at most [`OVERFLOW`], and `cached` not more than `refs`.
    pub fn set_counts(&mut self, counts: EntryCounts) {
        debug_assert!(counts.refs <= OVERFLOW && counts.cached <= counts.refs);
        self.word = self.word & !COUNTS_MASK | counts.refs << REFS_AT | counts.cached << CACHED_AT;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = ObjectPlace> {
        prop_oneof![
            Just(ObjectPlace::Vacant),
            (any::<u32>(), any::<bool>(), any::<bool>()).prop_map(|(bits, referenced, writing)| ObjectPlace::Pool {
                handle: Handle::from_bits(bits),
                referenced,
                writing
            }),
            (any::<u8>(), any::<u32>(), 0u8..64, 1u8..=64)
                .prop_map(|(device, slot, offset, units)| ObjectPlace::Device(Extent { device, slot, offset, units })),
            Just(ObjectPlace::Gone),
        ]
    }

    fn counts() -> impl Strategy<Value = EntryCounts> {
        (0..=OVERFLOW)
            .prop_flat_map(|refs| (Just(refs), 0..=refs))
            .prop_map(|(refs, cached)| EntryCounts { refs, cached })
    }

    proptest! {
        /// The value written last is read back, and no other field changes by it.
        #[test]
        fn means_what_the_plain_structure_means(
            check in any::<u64>(),
            filled in any::<u64>(),
            steps in prop::collection::vec((place(), counts()), 1..8),
        ) {
            let mut entry = PackedExtent::new(check, ObjectPlace::Gone);
            for (place, counts) in steps {
                entry.set_place(place);
                entry.set_counts(counts);
                prop_assert_eq!((entry.check(), entry.place(), entry.counts()), (check, place, counts));
                entry.set_place(ObjectPlace::Gone);
                prop_assert_eq!((entry.check(), entry.place(), entry.counts()), (check, ObjectPlace::Gone, counts));
                entry.set_place(place);
                entry.set_counts(EntryCounts { refs: 1, cached: 0 });
                prop_assert_eq!((entry.check(), entry.place()), (check, place));
            }
            entry.set_place(ObjectPlace::Filled(filled));
            prop_assert_eq!((entry.place(), entry.counts()), (ObjectPlace::Filled(filled), EntryCounts { refs: 1, cached: 0 }));
        }
    }
}
