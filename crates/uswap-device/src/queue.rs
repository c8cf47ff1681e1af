//! Reads that a thread has in flight while it does other work: the reads that a pager thread of the
//! engine makes itself.
//!
//! A queue belongs to one thread. It does as little as possible: it does not repeat a read, does
//! not wait, and knows no other copy. Every failure ends with an error, and the caller then repeats
//! the read by [`Device::read_part`](crate::Device), on a thread that may wait.

use std::fmt;
use std::os::fd::BorrowedFd;

use uswap_sys::Reservation;

use crate::device::Errno;

/// A read of whole sectors, together with the memory that it reads into.
#[derive(Debug)]
pub struct QueuedRead {
    /// First slot.
    pub slot: u32,
    /// Bytes of the slot that are left out, a multiple of
    /// [`Device::sector`](crate::Device::sector).
    pub skip: usize,
    /// Bytes to be read: a whole number of sectors.
    pub length: usize,
    /// The memory that the bytes go to.
    pub memory: Reservation,
    /// Offset of the first byte in the memory, a multiple of the sector.
    pub at: usize,
}

/// A completed read, and its memory. After an error the bytes are undefined.
#[derive(Debug)]
pub struct QueuedEnd {
    /// The number that [`ReadQueue::begin`] returned.
    pub number: u32,
    /// The memory of [`QueuedRead`].
    pub memory: Reservation,
    /// The outcome.
    pub result: Result<(), Errno>,
}

/// Maximum number of reads in flight.
pub const QUEUE_DEPTH: usize = 64;

/// Reads of one thread from one device. No call blocks.
pub trait ReadQueue: Send {
    /// A descriptor that becomes readable when a read may be complete.
    fn event(&self) -> BorrowedFd<'_>;

    /// Begins a read. Returns its number, which is below [`QUEUE_DEPTH`] and not used again until
    /// the read is complete.
    ///
    /// # Errors
    /// The memory, if the read could not be begun: it does not lie inside the device, too many
    /// reads are in flight, or the queue is broken.
    fn begin(&mut self, read: QueuedRead) -> Result<u32, Reservation>;

    /// A completed read. Callers repeat the call until it returns none.
    fn finished(&mut self) -> Option<QueuedEnd>;

    /// Whether no read can be begun any more. Reads in flight still end, with errors.
    fn is_broken(&self) -> bool;

    /// Ends the reads in flight with errors and breaks the queue, if the device can do that.
    fn give_up(&mut self);
}

impl fmt::Debug for dyn ReadQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_broken() { "a broken queue" } else { "a queue" })
    }
}
