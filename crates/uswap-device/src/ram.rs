//! A device in memory, for tests and experiments.

use std::sync::Mutex;
use std::time::Duration;

use uswap_core::PAGE_SIZE;
use uswap_sys::Reservation;

use crate::device::{Device, DeviceClass, Errno, check_range};

/// Slots in the memory of this process. It saves nothing; it is there to be wrapped and tested against.
pub struct RamDevice {
    name: String,
    slots: u32,
    bytes: Mutex<Reservation>,
}

impl RamDevice {
    /// A device of `slots` slots that read as zero. Memory is taken as slots are written and given back as they are
    /// discarded.
    ///
    /// # Panics
    /// When there is not so much address space.
    pub fn new(name: impl Into<String>, slots: u32) -> Self {
        Self::try_new(name, slots).expect("address space for a device in memory")
    }

    /// The same for a size that a user chose.
    ///
    /// # Errors
    /// ENOMEM: not so much address space.
    pub fn try_new(name: impl Into<String>, slots: u32) -> std::io::Result<Self> {
        let bytes = Reservation::new(slots as usize * PAGE_SIZE)?;
        Ok(Self { name: name.into(), slots, bytes: Mutex::new(bytes) })
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
        check_range(first, bytes.len(), self.slots)?;
        let start = first as usize * PAGE_SIZE;
        let mut memory = self.bytes.lock().expect("no panic under this lock");
        memory.bytes_mut()[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        check_range(first, bytes.len(), self.slots)?;
        let start = first as usize * PAGE_SIZE;
        let memory = self.bytes.lock().expect("no panic under this lock");
        bytes.copy_from_slice(&memory.bytes()[start..start + bytes.len()]);
        Ok(())
    }

    fn discard(&self, first: u32, count: u32) -> Result<(), Errno> {
        let length = count as usize * PAGE_SIZE;
        check_range(first, length, self.slots)?;
        let start = first as usize * PAGE_SIZE;
        self.bytes.lock().expect("no panic under this lock").release(start..start + length);
        Ok(())
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
}
