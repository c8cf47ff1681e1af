//! The device trait: slots of 4 KiB. One call reads or writes several slots where they are
//! contiguous.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uswap_core::PAGE_SIZE;

use crate::queue::ReadQueue;

/// An error number of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// Input/output error.
    pub const IO: Self = Self(libc::EIO);
    /// No space left on the device.
    pub const NO_SPACE: Self = Self(libc::ENOSPC);
    /// Invalid argument.
    pub const INVALID: Self = Self(libc::EINVAL);

    /// Whether the error says that there is no room (ENOSPC or EDQUOT), rather than that something
    /// is broken.
    pub fn is_no_room(self) -> bool {
        self.0 == libc::ENOSPC || self.0 == libc::EDQUOT
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

/// Speed figures of a device, for policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceClass {
    /// Approximate time of one 4 KiB read while the device is idle.
    pub latency: Duration,
    /// Pages per read batch above which a larger batch is no faster.
    pub best_batch: u32,
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// First slot.
    pub slot: u32,
    /// Bytes of the slot that are left out: 0, or a multiple of [`Device::sector`].
    pub skip: usize,
    /// Buffer for the bytes: whole sectors, aligned to a sector. For a device that states no sector
    /// size: whole pages.
    pub buf: &'a mut [u8],
    /// The outcome; valid after [`Device::read_many`].
    pub result: Result<(), Errno>,
}

impl<'a> ReadRequest<'a> {
    /// A request whose result is EIO until the device has served it.
    pub fn new(slot: u32, buf: &'a mut [u8]) -> Self {
        Self::part(slot, 0, buf)
    }

    /// The same, starting `skip` bytes after the start of the slot.
    pub fn part(slot: u32, skip: usize, buf: &'a mut [u8]) -> Self {
        Self { slot, skip, buf, result: Err(Errno::IO) }
    }
}

/// Whether a connection can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionState {
    /// The connection can be used.
    Up,
    /// The connection broke; the next thread that needs it connects again.
    Down,
}

/// One connection of a device on the network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Whether the connection can be used.
    pub state: ConnectionState,
    /// Counts how often the connection was made again.
    pub reconnects: u64,
    /// Gauge: requests in flight.
    pub in_flight: u32,
    /// Time to read one page, in microseconds, measured when the connection was made.
    pub round_trip_us: u64,
    /// The last error.
    pub error: Option<String>,
}

/// An event that a device reports to its user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct News {
    /// Shown also to users who asked for few messages.
    pub grave: bool,
    /// The text, one sentence.
    pub text: String,
}

/// A place for swap slots of 4 KiB. All methods may be called from many threads at once; reads and
/// writes block.
///
/// A write is not made durable: swap does not outlive its programs. A cache that does
/// ([`Device::keep`]) verifies what it finds.
pub trait Device: Send + Sync {
    /// The name of the device in messages and in the status.
    fn name(&self) -> &str;

    /// The number of slots.
    fn slots(&self) -> u32;

    /// How fast it is.
    fn class(&self) -> DeviceClass;

    /// Writes whole pages, starting at slot `first`. The buffer starts on a page boundary.
    ///
    /// # Errors
    /// ENOSPC or EDQUOT when there is no room; the slots are then undefined. Anything else is a
    /// defect.
    fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno>;

    /// Reads whole pages, starting at slot `first`. The buffer starts on a page boundary.
    ///
    /// # Errors
    /// The error of the device; the buffer is then undefined.
    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno>;

    /// The size in bytes to whose multiples reads must be aligned: a power of two, at most a page.
    /// It is a page unless the device returns less; then the device has
    /// [`read_part`](Self::read_part) too.
    fn sector(&self) -> usize {
        PAGE_SIZE
    }

    /// Reads whole sectors, starting `skip` bytes after the start of slot `first`. The buffer
    /// starts on a sector boundary.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_part(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        if skip == 0 { self.read(first, bytes) } else { Err(Errno::INVALID) }
    }

    /// Repeats a read that returned wrong bytes, from another copy if there is one. Otherwise the
    /// same as [`read_part`](Self::read_part).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_again(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        self.read_part(first, skip, bytes)
    }

    /// Serves several reads, in parallel where the device can; each request carries its own result.
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        for request in requests {
            request.result = self.read_part(request.slot, request.skip, request.buf);
        }
    }

    /// A queue of reads for one thread that does not wait for them. Making the queue may take a
    /// while. `None`: there is no queue now, and perhaps never; the caller may ask again.
    fn read_queue(&self) -> Option<Box<dyn ReadQueue>> {
        None
    }

    /// The content of these slots is no longer needed. This is a hint: the device may do nothing.
    ///
    /// # Errors
    /// The device refused; the caller need not do anything.
    fn discard(&self, first: u32, count: u32) -> Result<(), Errno> {
        let _ = (first, count);
        Ok(())
    }

    /// The content is to stay when the device is closed, for the next who opens it. `false`: it
    /// goes with its process.
    fn keep(&self) -> bool {
        false
    }

    /// The connections of a device on the network.
    fn connections(&self) -> Vec<ConnectionStatus> {
        Vec::new()
    }

    /// The state of the device, if it is not the normal one and its user should know.
    fn note(&self) -> Option<String> {
        None
    }

    /// The oldest event that the user should know of and that was not returned yet.
    fn news(&self) -> Option<News> {
        None
    }
}

impl<D: Device + ?Sized> Device for Arc<D> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn slots(&self) -> u32 {
        (**self).slots()
    }
    fn class(&self) -> DeviceClass {
        (**self).class()
    }
    fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno> {
        (**self).write(first, bytes)
    }
    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        (**self).read(first, bytes)
    }
    fn sector(&self) -> usize {
        (**self).sector()
    }
    fn read_part(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        (**self).read_part(first, skip, bytes)
    }
    fn read_again(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        (**self).read_again(first, skip, bytes)
    }
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        (**self).read_many(requests);
    }
    fn read_queue(&self) -> Option<Box<dyn ReadQueue>> {
        (**self).read_queue()
    }
    fn discard(&self, first: u32, count: u32) -> Result<(), Errno> {
        (**self).discard(first, count)
    }
    fn keep(&self) -> bool {
        (**self).keep()
    }
    fn connections(&self) -> Vec<ConnectionStatus> {
        (**self).connections()
    }
    fn note(&self) -> Option<String> {
        (**self).note()
    }
    fn news(&self) -> Option<News> {
        (**self).news()
    }
}

/// EINVAL unless `length` bytes from the start of slot `first` are whole pages inside a device of
/// `slots` slots.
pub(crate) fn check_range(first: u32, length: usize, slots: u32) -> Result<(), Errno> {
    let pages = (length / PAGE_SIZE) as u64;
    let whole = length.is_multiple_of(PAGE_SIZE);
    if whole && first as u64 + pages <= slots as u64 { Ok(()) } else { Err(Errno::INVALID) }
}

/// EINVAL unless `length` bytes, starting `skip` bytes after the start of slot `first`, are whole
/// sectors inside a device of `slots` slots.
pub(crate) fn check_part(first: u32, skip: usize, length: usize, sector: usize, slots: u32) -> Result<(), Errno> {
    let end = first as u64 * PAGE_SIZE as u64 + (skip + length) as u64;
    let whole = skip.is_multiple_of(sector) && length.is_multiple_of(sector);
    if whole && end <= slots as u64 * PAGE_SIZE as u64 { Ok(()) } else { Err(Errno::INVALID) }
}
