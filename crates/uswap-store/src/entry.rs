//! One object in 32 bytes, half of which are the hash.
//!
//! ```text
//! hash   128 bits
//! word     0..3 kind    3..24 detail     24..32 references      32..64 slot, handle, next vacant entry, half a word
//! prev     0..28 link, or 11 bits of a word    28..32 cached references, low half
//! next     0..28 link                          28..32 cached references, high half
//! ```
//! `detail` is the device (8 bits) and the length (13 bits), or two flags of the pool, or 21 bits of the word that fills a
//! page. Such a page hangs in no list, so that the rest of the word lies in a link.
//!
//! The counts of references are the use counts of the slots: the swap map. A count that does not fit into 8 bits lies
//! in a table beside ([`Counts`], `table.rs`), and [`OVERFLOW`] says so.

use uswap_core::{Handle, PageHash};

/// Bits of a link; the highest value is [`NO_LINK`].
const LINK_BITS: u32 = 28;
/// No object: the end of a list.
pub(crate) const NO_LINK: u32 = (1 << LINK_BITS) - 1;
/// In the place of the count of references: both counts lie beside.
pub(crate) const OVERFLOW: u64 = 0xFF;

/// Where the copy of an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The entry is not in use.
    Vacant { next: u32 },
    /// One word repeated.
    Filled(u64),
    /// Compressed in the pool. `writing`: writeback has copied it and waits for the device.
    Pool { handle: Handle, referenced: bool, writing: bool },
    /// On a device, `length` bytes from the start of the slot; 4096 = not compressed.
    Device { device: u8, length: u16, slot: u32 },
    /// Given up.
    Gone,
}

impl Place {
    pub fn pool(handle: Handle) -> Self {
        Self::Pool { handle, referenced: false, writing: false }
    }
}

/// References of all kinds, and how many of them are cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub refs: u64,
    pub cached: u64,
}

/// An object as it is stored.
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    hash: [u64; 2],
    word: u64,
    prev: u32,
    next: u32,
}

const _: () = assert!(size_of::<Packed>() == 32);

mod kind {
    pub const VACANT: u64 = 0;
    pub const FILLED: u64 = 1;
    pub const POOL: u64 = 2;
    pub const DEVICE: u64 = 3;
    pub const GONE: u64 = 4;
    pub const MASK: u64 = 7;
}

const REFS_AT: u32 = 24;
const REFS_MASK: u64 = 0xFF << REFS_AT;
const REFERENCED: u64 = 1 << 3;
const WRITING: u64 = 1 << 4;
const DEVICE_AT: u32 = 3;
const LENGTH_AT: u32 = 11;
const LENGTH_MASK: u64 = (1 << 13) - 1;
const DETAIL_AT: u32 = 3;
const DETAIL_BITS: u32 = 21;
const HIGH_AT: u32 = 32;
const LINK_MASK: u32 = NO_LINK;

impl Packed {
    pub const VACANT: Self = Self { hash: [0; 2], word: kind::VACANT, prev: NO_LINK, next: NO_LINK };

    /// An object without references.
    pub fn new(hash: PageHash, place: Place) -> Self {
        let mut entry = Self { hash: [(hash.0 >> 64) as u64, hash.0 as u64], ..Self::VACANT };
        entry.set_place(place);
        entry
    }

    pub fn hash(&self) -> PageHash {
        PageHash(u128::from(self.hash[0]) << 64 | u128::from(self.hash[1]))
    }

    pub fn place(&self) -> Place {
        let high = (self.word >> HIGH_AT) as u32;
        match self.word & kind::MASK {
            kind::VACANT => Place::Vacant { next: high },
            kind::FILLED => {
                let detail = (self.word >> DETAIL_AT) & ((1 << DETAIL_BITS) - 1);
                let low = u64::from(self.prev & LINK_MASK) << DETAIL_BITS | detail;
                Place::Filled(u64::from(high) << HIGH_AT | low)
            }
            kind::POOL => Place::Pool {
                handle: Handle::from_bits(high),
                referenced: self.word & REFERENCED != 0,
                writing: self.word & WRITING != 0,
            },
            kind::DEVICE => Place::Device {
                device: (self.word >> DEVICE_AT) as u8,
                length: (self.word >> LENGTH_AT & LENGTH_MASK) as u16,
                slot: high,
            },
            _ => Place::Gone,
        }
    }

    /// Changes the place. The object hangs in no list, unless the place is of the same kind as before.
    pub fn set_place(&mut self, place: Place) {
        let high = |bits: u32| u64::from(bits) << HIGH_AT;
        let word = match place {
            Place::Vacant { next } => kind::VACANT | high(next),
            Place::Filled(word) => {
                let low = word as u32;
                self.set_prev(low >> DETAIL_BITS);
                let detail = u64::from(low) & ((1 << DETAIL_BITS) - 1);
                kind::FILLED | detail << DETAIL_AT | high((word >> HIGH_AT) as u32)
            }
            Place::Pool { handle, referenced, writing } => {
                let flags = if referenced { REFERENCED } else { 0 } | if writing { WRITING } else { 0 };
                kind::POOL | flags | high(handle.to_bits())
            }
            Place::Device { device, length, slot } => {
                debug_assert!(u64::from(length) <= LENGTH_MASK);
                kind::DEVICE | u64::from(device) << DEVICE_AT | u64::from(length) << LENGTH_AT | high(slot)
            }
            Place::Gone => kind::GONE,
        };
        self.word = word | self.word & REFS_MASK;
    }

    /// The counts; when `refs` is [`OVERFLOW`] both lie beside.
    pub fn counts(&self) -> Counts {
        let cached = self.prev >> LINK_BITS | (self.next >> LINK_BITS) << 4;
        Counts { refs: (self.word & REFS_MASK) >> REFS_AT, cached: u64::from(cached) }
    }

    /// `refs` at most [`OVERFLOW`], and `cached` not more than `refs`.
    pub fn set_counts(&mut self, counts: Counts) {
        debug_assert!(counts.refs <= OVERFLOW && counts.cached <= counts.refs);
        self.word = self.word & !REFS_MASK | counts.refs << REFS_AT;
        self.prev = self.prev & LINK_MASK | (counts.cached as u32 & 0xF) << LINK_BITS;
        self.next = self.next & LINK_MASK | (counts.cached as u32 >> 4) << LINK_BITS;
    }

    pub fn prev(&self) -> u32 {
        self.prev & LINK_MASK
    }

    pub fn next(&self) -> u32 {
        self.next & LINK_MASK
    }

    pub fn set_prev(&mut self, link: u32) {
        debug_assert!(link <= NO_LINK);
        self.prev = self.prev & !LINK_MASK | link;
    }

    pub fn set_next(&mut self, link: u32) {
        debug_assert!(link <= NO_LINK);
        self.next = self.next & !LINK_MASK | link;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = Place> {
        prop_oneof![
            any::<u32>().prop_map(|next| Place::Vacant { next }),
            any::<u64>().prop_map(Place::Filled),
            prop_oneof![Just(u64::MAX), Just(0), Just(1 << 31)].prop_map(Place::Filled),
            (any::<u32>(), any::<bool>(), any::<bool>()).prop_map(|(bits, referenced, writing)| Place::Pool {
                handle: Handle::from_bits(bits),
                referenced,
                writing
            }),
            (any::<u8>(), 0u16..=4096, any::<u32>()).prop_map(|(device, length, slot)| Place::Device {
                device,
                length,
                slot
            }),
            Just(Place::Gone),
        ]
    }

    fn counts() -> impl Strategy<Value = Counts> {
        (0..=OVERFLOW).prop_flat_map(|refs| (Just(refs), 0..=refs)).prop_map(|(refs, cached)| Counts { refs, cached })
    }

    proptest! {
        /// Whatever is written last is read back, and nothing else changes by it.
        #[test]
        fn means_what_the_plain_structure_means(
            hash in any::<u128>(),
            steps in prop::collection::vec((place(), counts(), 0..=NO_LINK, 0..=NO_LINK), 1..8),
        ) {
            let mut entry = Packed::new(PageHash(hash), Place::Gone);
            for (place, counts, prev, next) in steps {
                entry.set_place(place);
                entry.set_next(next);
                entry.set_counts(counts);
                if !matches!(place, Place::Filled(_)) {
                    entry.set_prev(prev);
                    prop_assert_eq!(entry.prev(), prev);
                }
                prop_assert_eq!((entry.hash(), entry.place()), (PageHash(hash), place));
                prop_assert_eq!((entry.counts(), entry.next()), (counts, next));
                entry.set_counts(Counts { refs: 1, cached: 0 });
                prop_assert_eq!((entry.place(), entry.next()), (place, next));
            }
        }
    }
}
