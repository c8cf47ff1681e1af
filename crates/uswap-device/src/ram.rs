//! A device in memory, for tests and experiments.

use std::ops::Range;
use std::time::Duration;

use uswap_core::{PAGE_SIZE, RankedMutex, ranks};
use uswap_sys::Reservation;

use crate::device::{Device, DeviceClass, Errno, check_part, check_range};

/// Maximum number of stripes of a device: up to 256 MiB each slot is one stripe.
const MAX_STRIPES: u32 = 64 << 10;
/// The same sector as a disk's.
const SECTOR: usize = 512;

/// Slots in the memory of this process. This saves no memory; tests wrap the device and compare
/// with it.
///
/// Its memory lies in stripes of one slot or a few, each with a lock, so that the device is no
/// bottleneck where the locks above it are measured.
pub struct RamDevice {
    name: String,
    slots: u32,
    stripe_slots: u32,
    stripes: Box<[RankedMutex<Reservation>]>,
}

impl RamDevice {
    /// A device of `slots` slots that read as zero. Memory is allocated when a slot is written and
    /// freed when it is discarded.
    ///
    /// # Panics
    /// When the address space is not large enough.
    pub fn new(name: impl Into<String>, slots: u32) -> Self {
        Self::try_new(name, slots).expect("address space for a device in memory")
    }

    /// The same for a size that a user has chosen.
    ///
    /// # Errors
    /// ENOMEM: the address space is not large enough.
    pub fn try_new(name: impl Into<String>, slots: u32) -> std::io::Result<Self> {
        let stripe_slots = slots.div_ceil(MAX_STRIPES).max(1);
        let stripes = Reservation::in_pieces(slots as usize * PAGE_SIZE, stripe_slots as usize * PAGE_SIZE)?;
        let stripes = stripes.map(|memory| RankedMutex::new(ranks::STRIPE, memory)).collect();
        Ok(Self { name: name.into(), slots, stripe_slots, stripes })
    }

    /// Calls `work` for each stripe that `length` bytes from the start of slot `first` touch, with
    /// the bytes of the stripe and the range of the caller's bytes.
    fn for_each_stripe(
        &self,
        first: u32,
        length: usize,
        work: impl FnMut(&mut Reservation, Range<usize>, Range<usize>),
    ) -> Result<(), Errno> {
        check_range(first, length, self.slots)?;
        self.for_each_part(first as usize * PAGE_SIZE, length, work);
        Ok(())
    }

    /// The same for `length` bytes inside the device, starting at byte `at`.
    fn for_each_part(
        &self,
        mut at: usize,
        length: usize,
        mut work: impl FnMut(&mut Reservation, Range<usize>, Range<usize>),
    ) {
        let stripe_bytes = self.stripe_slots as usize * PAGE_SIZE;
        let mut done = 0;
        while done < length {
            let inside = at % stripe_bytes;
            let part = (stripe_bytes - inside).min(length - done);
            work(&mut self.stripes[at / stripe_bytes].lock(), inside..inside + part, done..done + part);
            (at, done) = (at + part, done + part);
        }
    }
}

impl Device for RamDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    fn class(&self) -> DeviceClass {
        DeviceClass { latency: Duration::from_micros(1), best_batch: 4 }
    }

    fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno> {
        self.for_each_stripe(first, bytes.len(), |memory, inside, part| {
            memory.bytes_mut()[inside].copy_from_slice(&bytes[part]);
        })
    }

    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        self.for_each_stripe(first, bytes.len(), |memory, inside, part| {
            bytes[part].copy_from_slice(&memory.bytes()[inside]);
        })
    }

    fn sector(&self) -> usize {
        SECTOR
    }

    fn read_part(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        check_part(first, skip, bytes.len(), SECTOR, self.slots)?;
        self.for_each_part(first as usize * PAGE_SIZE + skip, bytes.len(), |memory, inside, part| {
            bytes[part].copy_from_slice(&memory.bytes()[inside]);
        });
        Ok(())
    }

    fn discard(&self, first: u32, count: u32) -> Result<(), Errno> {
        self.for_each_stripe(first, count as usize * PAGE_SIZE, |memory, inside, _| memory.release(inside))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_written_and_refuses_what_is_outside() {
        let device = RamDevice::new("ram", 4);
        device.write(1, &[7; 2 * PAGE_SIZE]).unwrap();
        let mut back = [1; 4 * PAGE_SIZE];
        device.read(0, &mut back).unwrap();
        assert_eq!((back[0], back[PAGE_SIZE], back[3 * PAGE_SIZE - 1], back[3 * PAGE_SIZE]), (0, 7, 7, 0));
        assert_eq!(device.write(3, &[0; 2 * PAGE_SIZE]), Err(Errno::INVALID));
        assert_eq!(device.read(0, &mut [0; 100]), Err(Errno::INVALID));
        device.discard(1, 1).unwrap();
        device.read(0, &mut back).unwrap();
        assert_eq!((back[PAGE_SIZE], back[2 * PAGE_SIZE]), (0, 7));
    }

    #[test]
    fn a_transfer_may_cross_stripes_and_the_last_one_may_be_short() {
        let slots = 2 * MAX_STRIPES + 5;
        let device = RamDevice::new("ram", slots);
        let bytes: Vec<u8> = (0..6 * PAGE_SIZE).map(|i| (i / 7) as u8).collect();
        for first in [0, MAX_STRIPES - 2, slots - 6] {
            device.write(first, &bytes).unwrap();
            let mut back = vec![0; bytes.len()];
            device.read(first, &mut back).unwrap();
            assert!(back == bytes, "from slot {first} on");
            device.discard(first + 1, 4).unwrap();
            device.read(first, &mut back).unwrap();
            assert!(back[PAGE_SIZE..5 * PAGE_SIZE].iter().all(|byte| *byte == 0) && back[5 * PAGE_SIZE] != 0);
        }
        assert_eq!(device.write(slots - 5, &bytes), Err(Errno::INVALID));
    }
}
