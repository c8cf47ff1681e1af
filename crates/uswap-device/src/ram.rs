//! A device in memory, for tests and experiments.

use std::sync::Mutex;
use std::time::Duration;

use uswap_core::PAGE_SIZE;

use crate::device::{Device, DeviceClass, Errno, check_range};

/// Slots in the memory of this process. It saves nothing; it is there to be wrapped and tested against.
pub struct RamDevice {
    name: String,
    slots: u32,
    bytes: Mutex<Vec<u8>>,
}

impl RamDevice {
    /// A device of `slots` slots that read as zero.
    pub fn new(name: impl Into<String>, slots: u32) -> Self {
        Self { name: name.into(), slots, bytes: Mutex::new(vec![0; slots as usize * PAGE_SIZE]) }
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
        self.bytes.lock().expect("no panic under this lock")[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        check_range(first, bytes.len(), self.slots)?;
        let start = first as usize * PAGE_SIZE;
        bytes.copy_from_slice(&self.bytes.lock().expect("no panic under this lock")[start..start + bytes.len()]);
        Ok(())
    }

    fn discard(&self, first: u32, count: u32) -> Result<(), Errno> {
        let length = count as usize * PAGE_SIZE;
        check_range(first, length, self.slots)?;
        let start = first as usize * PAGE_SIZE;
        self.bytes.lock().expect("no panic under this lock")[start..start + length].fill(0);
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
