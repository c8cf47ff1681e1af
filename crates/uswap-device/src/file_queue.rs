//! Reads of a file that their thread does not wait for, through a ring for this queue alone.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use uswap_core::PAGE_SIZE;
use uswap_sys::{ReadRing, Reservation};

use crate::device::{Errno, check_part};
use crate::queue::{QUEUE_DEPTH, QueuedEnd, QueuedRead, ReadQueue};

/// A ring on a file.
pub struct FileQueue {
    file: File,
    base: u64,
    slots: u32,
    sector: usize,
    ring: ReadRing,
    /// Expected length in bytes of each read in flight.
    lengths: [usize; QUEUE_DEPTH],
}

impl FileQueue {
    /// A queue on `file`, whose slot 0 is at `base`.
    ///
    /// # Errors
    /// What io_uring_setup(2) says.
    pub fn new(file: File, base: u64, slots: u32, sector: usize) -> std::io::Result<Self> {
        let ring = ReadRing::new(QUEUE_DEPTH as u32)?;
        Ok(Self { file, base, slots, sector, ring, lengths: [0; QUEUE_DEPTH] })
    }
}

impl ReadQueue for FileQueue {
    fn event(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    fn begin(&mut self, read: QueuedRead) -> Result<u32, Reservation> {
        let QueuedRead { slot, skip, length, memory, at } = read;
        if check_part(slot, skip, length, self.sector, self.slots).is_err() {
            return Err(memory);
        }
        let offset = self.base + u64::from(slot) * PAGE_SIZE as u64 + skip as u64;
        let number = self.ring.begin(self.file.as_fd(), offset, memory, at, length)?;
        self.lengths[number as usize] = length;
        Ok(number)
    }

    fn finished(&mut self) -> Option<QueuedEnd> {
        let over = self.ring.finished()?;
        let length = self.lengths[over.number as usize];
        let result = match over.result {
            n if n == length as i32 => Ok(()),
            n if n < 0 => Err(Errno(-n)),
            _ => Err(Errno::IO),
        };
        Some(QueuedEnd { number: over.number, memory: over.memory, result })
    }

    fn is_broken(&self) -> bool {
        false
    }

    /// Does nothing: until a read is complete, the kernel may write to its memory.
    fn give_up(&mut self) {}
}
