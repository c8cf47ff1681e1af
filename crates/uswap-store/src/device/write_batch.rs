//! A batch of objects on their way to a device: collected one after the other, then laid out into
//! the runs of slots that the device gave.
//!
//! Objects of a batch follow one another without gaps as long as the slots do
//! ([`crate::device::extent`]). A piece that does not fit at the end of a run begins the next run.
//! A whole page begins a slot, and the gap before it stays unused; a caller that mixes pages and
//! compressed objects puts the pages first or last.
//!
//! On a device that reads whole pages only, a compressed object that would go on in the next slot
//! begins there, so that it costs a read of one page ([`WriteBatch::within`]).
//!
//! With packing off each object lies at the start of a slot of its own, as before packing existed;
//! this serves for comparison.

use uswap_core::PAGE_SIZE;
use uswap_sys::AlignedBuf;

use crate::device::extent::{SLOT_UNITS, UNIT, pack};

/// Bytes of a batch: as many as one write brings to a device.
pub(crate) const BATCH_BYTES: usize = 256 << 10;
/// The most objects of a batch.
pub(crate) const BATCH_OBJECTS: usize = 512;

/// An object of a batch, in units.
#[derive(Clone, Copy, Debug)]
struct BatchPiece {
    start: u32,
    units: u32,
}

/// A batch of objects, and the buffer from which it is written.
pub(crate) struct WriteBatch {
    collected: AlignedBuf,
    laid_out: AlignedBuf,
    pieces: Vec<BatchPiece>,
    /// Units collected.
    units: u32,
    /// Off: each object begins a slot.
    pub packing: bool,
    /// On: no object touches two slots.
    pub within: bool,
}

/// A part of a batch in the shape of a run of slots.
pub(crate) struct BatchPart<'a> {
    /// The bytes to be written: whole slots.
    pub bytes: &'a [u8],
    /// First unit, counted from the start of the run, and units of each piece.
    pub places: &'a [(u32, u8)],
}

impl WriteBatch {
    pub fn new() -> Self {
        Self {
            collected: AlignedBuf::zeroed(BATCH_BYTES),
            laid_out: AlignedBuf::zeroed(BATCH_BYTES),
            pieces: Vec::with_capacity(BATCH_OBJECTS),
            units: 0,
            packing: true,
            within: false,
        }
    }

    pub fn clear(&mut self) {
        self.pieces.clear();
        self.units = 0;
    }

    /// Objects collected.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether no more objects may be collected: another one might not fit.
    pub fn is_full(&self) -> bool {
        let slots = if self.packing { self.units as usize / SLOT_UNITS } else { self.pieces.len() };
        self.pieces.len() == BATCH_OBJECTS || slots + 1 >= BATCH_BYTES / PAGE_SIZE
    }

    /// Collects a compressed object. Not to be called when [`is_full`](Self::is_full).
    pub fn push(&mut self, bytes: &[u8]) {
        let units = pack(bytes, &mut self.collected[self.units as usize * UNIT..]);
        self.note(units);
    }

    /// Collects a page that is not compressed.
    pub fn push_page(&mut self, page: &[u8]) {
        let start = self.units as usize * UNIT;
        self.collected[start..start + PAGE_SIZE].copy_from_slice(page);
        self.note(SLOT_UNITS);
    }

    fn note(&mut self, units: usize) {
        self.pieces.push(BatchPiece { start: self.units, units: units as u32 });
        self.units += units as u32;
    }

    fn place(&self, end: u32, units: u32) -> u32 {
        let crosses = end as usize % SLOT_UNITS + units as usize > SLOT_UNITS;
        let begins_a_slot = !self.packing || units as usize == SLOT_UNITS || self.within && crosses;
        if begins_a_slot { end.next_multiple_of(SLOT_UNITS as u32) } else { end }
    }

    /// Slots that the pieces from `first` on need in one run.
    pub fn slots_from(&self, first: usize) -> u32 {
        let end = self.pieces[first..].iter().fold(0, |end, piece| self.place(end, piece.units) + piece.units);
        end.div_ceil(SLOT_UNITS as u32)
    }

    /// Lays out the pieces from `first` on into a run of `slots`, as many as fit, at least one.
    pub fn lay_out<'a>(&'a mut self, first: usize, slots: u32, places: &'a mut Vec<(u32, u8)>) -> BatchPart<'a> {
        let room = slots.min((BATCH_BYTES / PAGE_SIZE) as u32) * SLOT_UNITS as u32;
        places.clear();
        let mut end = 0;
        for piece in &self.pieces[first..] {
            let place = self.place(end, piece.units);
            if place + piece.units > room {
                break;
            }
            let [gap, to, from] = [end, place, piece.start].map(|unit| unit as usize * UNIT);
            let length = piece.units as usize * UNIT;
            self.laid_out[gap..to].fill(0);
            self.laid_out[to..to + length].copy_from_slice(&self.collected[from..from + length]);
            places.push((place, piece.units as u8));
            end = place + piece.units;
        }
        let whole = (end as usize * UNIT).next_multiple_of(PAGE_SIZE);
        self.laid_out[end as usize * UNIT..whole].fill(0);
        BatchPart { bytes: &self.laid_out[..whole], places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(lengths: &[usize], packing: bool) -> WriteBatch {
        let mut batch = WriteBatch { packing, ..WriteBatch::new() };
        lengths.iter().zip(1u8..).for_each(|(length, byte)| match *length {
            PAGE_SIZE => batch.push_page(&[byte; PAGE_SIZE]),
            length => batch.push(&vec![byte; length]),
        });
        batch
    }

    fn places(batch: &mut WriteBatch, first: usize, slots: u32) -> (Vec<(u32, u8)>, usize) {
        let mut places = Vec::new();
        let written = batch.lay_out(first, slots, &mut places).bytes.len();
        (places, written / PAGE_SIZE)
    }

    #[test]
    fn objects_follow_one_another_across_slots() {
        let mut batch = batch(&[2000, 2000, 100, 62], true);
        assert_eq!(batch.slots_from(0), 2);
        assert_eq!(places(&mut batch, 0, 2), (vec![(0, 32), (32, 32), (64, 2), (66, 1)], 2));
        assert_eq!(places(&mut batch, 0, 1), (vec![(0, 32), (32, 32)], 1));
        assert_eq!(places(&mut batch, 2, 9), (vec![(0, 2), (2, 1)], 1));
        let mut list = Vec::new();
        let part = batch.lay_out(1, 2, &mut list);
        assert_eq!((&part.bytes[..2], &part.bytes[2..2002]), (&[208, 7][..], &[2; 2000][..]));
        assert!(part.bytes[35 * UNIT..].iter().all(|byte| *byte == 0), "what is not used is zero");
    }

    #[test]
    fn pages_begin_a_slot_and_without_packing_everything_does() {
        let mut mixed = batch(&[100, PAGE_SIZE, 100], true);
        assert_eq!((mixed.slots_from(0), places(&mut mixed, 0, 9)), (3, (vec![(0, 2), (64, 64), (128, 2)], 3)));
        let mut alone = batch(&[100, 2000, 100], false);
        assert_eq!((alone.slots_from(0), places(&mut alone, 0, 9)), (3, (vec![(0, 2), (64, 32), (128, 2)], 3)));
    }

    #[test]
    fn within_slots_no_object_touches_two() {
        let mut batch = WriteBatch { within: true, ..batch(&[2000, 2000, 1500, 3000, 100, 62, 1000], true) };
        assert_eq!(batch.slots_from(0), 4);
        let all = vec![(0, 32), (32, 32), (64, 24), (128, 47), (175, 2), (177, 1), (192, 16)];
        assert_eq!(places(&mut batch, 0, 9), (all.clone(), 4));
        assert_eq!(places(&mut batch, 0, 3), (all[..6].to_vec(), 3));
        let mut list = Vec::new();
        let part = batch.lay_out(1, 9, &mut list);
        let (gap, behind) = (&part.bytes[(32 + 24) * UNIT..64 * UNIT], &part.bytes[64 * UNIT..64 * UNIT + 5]);
        assert!(gap.iter().all(|byte| *byte == 0), "a gap is zero");
        assert_eq!(behind, [184, 11, 4, 4, 4], "3000 bytes");
        batch.within = false;
        assert_eq!(batch.slots_from(0), 3, "across slots it is denser");
    }

    #[test]
    fn a_batch_is_full_before_it_runs_over() {
        for (packing, length) in [(true, 3072), (true, 10), (false, 3072), (false, 10), (true, PAGE_SIZE)] {
            let mut batch = batch(&[], packing);
            while !batch.is_full() {
                if length == PAGE_SIZE { batch.push_page(&[7; PAGE_SIZE]) } else { batch.push(&vec![7; length]) }
            }
            let slots = batch.slots_from(0);
            assert!(slots as usize <= BATCH_BYTES / PAGE_SIZE && batch.len() <= BATCH_OBJECTS, "{packing} {length}");
            assert_eq!(places(&mut batch, 0, slots).0.len(), batch.len());
        }
    }
}
