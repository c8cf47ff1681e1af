//! Extents: where an object lies on a device, in units of 64 bytes, and its format there.
//!
//! ```text
//! slot n                                              slot n + 1
//! | length, bytes ........ | length, bytes ... | length, bytes .... .... | length, bytes ... | unused |
//! 0                        18                  31                  64 = 0
//! ```
//! A page that is not compressed fills its slot, from unit 0 on. A compressed object is the number
//! of its bytes (2 bytes, little endian) and the bytes, filled up to a whole unit. It may go on in
//! the next slot of the same device, so that an object costs on average no more than its bytes and
//! half a unit; it never touches a third slot, because it is shorter than a slot. On devices that
//! read whole pages only it does not cross into the next slot, but begins there.

use std::ops::Range;

use uswap_core::PAGE_SIZE;

/// Bytes of a unit.
pub(crate) const UNIT: usize = 64;
/// Units of a slot.
pub(crate) const SLOT_UNITS: usize = PAGE_SIZE / UNIT;
/// Bytes of the header of a compressed object.
pub(crate) const HEADER: usize = 2;

/// Where an object lies on a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Extent {
    pub device: u8,
    pub slot: u32,
    /// First unit in the slot.
    pub offset: u8,
    /// Number of units; 64: a page that is not compressed.
    pub units: u8,
}

impl Extent {
    /// A page that fills its slot.
    pub fn page(device: u8, slot: u32) -> Self {
        Self { device, slot, offset: 0, units: SLOT_UNITS as u8 }
    }

    /// Whether it is a page that fills its slot, and no compressed object.
    pub fn is_page(&self) -> bool {
        self.units as usize == SLOT_UNITS
    }

    /// The bytes of the object, counted from the start of the device.
    pub fn bytes(&self) -> Range<u64> {
        let start = u64::from(self.slot) * PAGE_SIZE as u64 + u64::from(self.offset) * UNIT as u64;
        start..start + u64::from(self.units) * UNIT as u64
    }

    /// The slots that it touches, and how many of its units lie in each.
    pub fn parts(&self) -> impl Iterator<Item = (u32, u8)> + use<> {
        let first = self.units.min(SLOT_UNITS as u8 - self.offset);
        let all = [(self.slot, first), (self.slot + 1, self.units - first)];
        all.into_iter().take(if first < self.units { 2 } else { 1 })
    }
}

/// Units that a compressed object of `length` bytes takes.
pub(crate) fn units_of(length: usize) -> usize {
    (HEADER + length).div_ceil(UNIT)
}

/// Writes a compressed object to the start of `to` as it lies on a device, and returns its units.
pub(crate) fn pack(bytes: &[u8], to: &mut [u8]) -> usize {
    let units = units_of(bytes.len());
    let (place, rest) = to[..units * UNIT].split_at_mut(HEADER + bytes.len());
    place[..HEADER].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
    place[HEADER..].copy_from_slice(bytes);
    rest.fill(0);
    units
}

/// The bytes of the object in `units` as read from a device: a whole page, or a compressed object.
/// `None`: damaged.
pub(crate) fn unpack(units: &[u8]) -> Option<&[u8]> {
    if units.len() == PAGE_SIZE {
        return Some(units);
    }
    let (header, rest) = units.split_first_chunk::<HEADER>()?;
    rest.get(..u16::from_le_bytes(*header) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_and_fills_whole_units() {
        for length in [0, 1, 61, 62, 63, 126, 127, 3000, 3072] {
            let bytes: Vec<u8> = (0..length).map(|i| i as u8 | 1).collect();
            let mut place = [0xA5; PAGE_SIZE];
            let units = pack(&bytes, &mut place);
            assert_eq!(units, units_of(length));
            assert!(units * UNIT >= length + HEADER && (units - 1) * UNIT < length + HEADER);
            assert_eq!(unpack(&place[..units * UNIT]), Some(&bytes[..]));
            assert!(place[HEADER + length..units * UNIT].iter().all(|byte| *byte == 0));
            assert!(place[units * UNIT..].iter().all(|byte| *byte == 0xA5), "nothing else is written");
        }
    }

    #[test]
    fn a_length_that_cannot_be_is_damage() {
        let mut place = [0; UNIT];
        pack(&[7; 62], &mut place);
        place[0] = 63;
        assert_eq!(unpack(&place), None);
        assert_eq!(unpack(&[]), None);
    }

    #[test]
    fn parts_of_an_extent_are_its_units() {
        let parts = |offset, units| Extent { device: 0, slot: 5, offset, units }.parts().collect::<Vec<_>>();
        assert_eq!(parts(0, 64), [(5, 64)]);
        assert_eq!(parts(60, 4), [(5, 4)]);
        assert_eq!(parts(60, 5), [(5, 4), (6, 1)]);
        assert_eq!(parts(63, 49), [(5, 1), (6, 48)]);
        assert_eq!(Extent { device: 0, slot: 1, offset: 2, units: 3 }.bytes(), 4096 + 128..4096 + 320);
    }
}
