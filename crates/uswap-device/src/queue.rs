//! Reads that a thread has under way while it does other things: what an owner of the engine asks
//! devices for itself.
//!
//! A queue belongs to one thread. It does as little as possible: it does not try again, has no
//! patience, knows no other copy. Whatever goes wrong ends with an error, and whoever asked takes
//! the way of [`Device::read_part`](crate::Device), by a thread that may wait.

use std::fmt;
use std::os::fd::BorrowedFd;

use uswap_sys::Reservation;

use crate::device::Errno;

/// A read of whole sectors into memory that goes along with it.
#[derive(Debug)]
pub struct QueuedRead {
    /// First slot.
    pub slot: u32,
    /// Bytes of it that are left out, a multiple of [`Device::sector`](crate::Device::sector).
    pub skip: usize,
    /// Bytes to be read, as many as a whole number of sectors has.
    pub length: usize,
    /// Where they go.
    pub memory: Reservation,
    /// From this byte of the memory on, a multiple of the sector.
    pub at: usize,
}

/// A read that is over, and its memory. After an error its bytes are undefined.
#[derive(Debug)]
pub struct QueuedEnd {
    /// What [`ReadQueue::begin`] called it.
    pub number: u32,
    /// The memory of [`QueuedRead`].
    pub memory: Reservation,
    /// The outcome.
    pub result: Result<(), Errno>,
}

/// Reads under way, at most.
pub const QUEUE_DEPTH: usize = 64;

/// Reads of one thread from one device. No call waits.
pub trait ReadQueue: Send {
    /// Becomes readable when a read may be over.
    fn event(&self) -> BorrowedFd<'_>;

    /// Begins a read. Its number is below [`QUEUE_DEPTH`] and its own until the read is over.
    ///
    /// # Errors
    /// The memory, if the read could not be begun: it is not inside the device, too many are under
    /// way, the queue is broken.
    fn begin(&mut self, read: QueuedRead) -> Result<u32, Reservation>;

    /// A read that is over. To be asked until there is none.
    fn finished(&mut self) -> Option<QueuedEnd>;

    /// Whether nothing can be begun any more. What was under way still ends, with errors.
    fn is_broken(&self) -> bool;

    /// Ends what is under way with errors, if that can be done, and breaks the queue then.
    fn give_up(&mut self);
}

impl fmt::Debug for dyn ReadQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_broken() { "a broken queue" } else { "a queue" })
    }
}
