//! Reads through io_uring that are in flight while their thread does other work, with a safe
//! interface.
//!
//! A read takes its memory with it: [`ReadRing::begin`] takes a [`Reservation`] and
//! [`ReadRing::finished`] gives it back, so that no code can look at memory into which the kernel
//! still writes. The memory of reads that are in flight when a ring is dropped is never freed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, types};

use crate::Reservation;

/// A completed read.
#[derive(Debug)]
pub struct FinishedRead {
    /// The number that [`ReadRing::begin`] returned.
    pub number: u32,
    /// The memory that the read took.
    pub memory: Reservation,
    /// Bytes read, or the negative errno.
    pub result: i32,
}

/// An io_uring instance for reads of one thread. It can be polled: its descriptor becomes readable
/// when a read is complete.
pub struct ReadRing {
    ring: IoUring,
    /// The memory of the reads in flight, by their numbers.
    places: Box<[Option<Reservation>]>,
    /// Whether reads are queued that the kernel has not taken yet.
    waiting: bool,
}

impl ReadRing {
    /// A ring that has up to `depth` reads in flight (rounded up to a power of two).
    ///
    /// # Errors
    /// The error of io_uring_setup(2): ENOSYS or EPERM where it does not exist or is forbidden.
    pub fn new(depth: u32) -> io::Result<Self> {
        let ring = IoUring::new(depth.max(1))?;
        let places = (0..ring.params().sq_entries()).map(|_| None).collect();
        Ok(Self { ring, places, waiting: false })
    }

    /// Begins to read `length` bytes of `file` from `offset` on into `memory`, from its byte `at`
    /// on. Returns the number of the read.
    ///
    /// # Errors
    /// The memory, when the maximum number of reads is in flight.
    ///
    /// # Panics
    /// When the bytes do not lie inside the memory.
    pub fn begin(
        &mut self,
        file: BorrowedFd<'_>,
        offset: u64,
        mut memory: Reservation,
        at: usize,
        length: usize,
    ) -> Result<u32, Reservation> {
        let Some(number) = self.places.iter().position(Option::is_none) else { return Err(memory) };
        let room = &mut memory.bytes_mut()[at..at + length];
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), room.as_mut_ptr(), length as u32);
        let entry = read.offset(offset).build().user_data(number as u64);
        // SAFETY: the memory is moved to its place, which moves no byte of the mapping, and leaves
        // it only when the read is over (`finished`) or never (`drop`). The kernel takes its own
        // reference to the file when the entry is submitted, which is before this function returns,
        // or the entry refers to a descriptor that may be closed by then: that read fails or reads
        // what another file holds, into memory that is its own; its caller verifies what it gets.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(memory);
        }
        self.places[number] = Some(memory);
        self.submit();
        Ok(number as u32)
    }

    /// Submits the queued reads. Reads that the kernel does not take now are submitted again by the
    /// next call.
    fn submit(&mut self) {
        self.waiting = self.ring.submit().is_err();
    }

    /// A completed read. Callers repeat the call until it returns none.
    pub fn finished(&mut self) -> Option<FinishedRead> {
        if self.waiting {
            self.submit();
        }
        let completion = self.ring.completion().next()?;
        let number = completion.user_data() as u32;
        let memory = self.places[number as usize].take().expect("a read is over once");
        Some(FinishedRead { number, memory, result: completion.result() })
    }
}

impl AsFd for ReadRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's and open as long as it.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for ReadRing {
    fn drop(&mut self) {
        // The kernel may still write to this memory.
        self.places.iter_mut().filter_map(Option::take).for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};

    use super::*;
    use crate::io::events::Poller;

    #[test]
    fn reads_come_back_with_their_memory_and_the_poller_tells() {
        let Ok(mut ring) = ReadRing::new(4) else { return };
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap();
        file.write_all_at(&[7; 4096], 4096).unwrap();
        let poller = Poller::new().unwrap();
        poller.add(&ring, 5).unwrap();
        let memory = || Reservation::new(8192).unwrap();
        for number in 0..4 {
            assert_eq!(ring.begin(file.as_fd(), 4096, memory(), 4096, 4096).ok(), Some(number));
        }
        assert!(ring.begin(file.as_fd(), 0, memory(), 0, 4096).is_err(), "four are under way");
        let (mut over, mut told) = (0, Vec::new());
        while over < 4 {
            told.clear();
            poller.wait(1000, &mut told).unwrap();
            while let Some(read) = ring.finished() {
                assert_eq!(read.result, 4096);
                assert!(read.memory.bytes()[..4096].iter().all(|byte| *byte == 0));
                assert!(read.memory.bytes()[4096..].iter().all(|byte| *byte == 7));
                over += 1;
            }
        }
        ring.begin(file.as_fd(), 8192, memory(), 0, 4096).expect("there is room again");
        poller.wait(1000, &mut told).unwrap();
        while ring.finished().map(|read| assert_eq!(read.result, 0, "end of file")).is_none() {}
    }
}
