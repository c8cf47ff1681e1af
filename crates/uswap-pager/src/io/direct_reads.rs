//! Reads that an owner asks devices for itself: of a lonely page that a thread waits for.
//!
//! By way of a reader such a page costs four changes of threads: to the owner, the reader, the
//! owner, the program. On a fast disk or a server nearby that is more than the read itself. Here
//! the owner sends the request, goes on with other work, and is told by its poller when the answer
//! is there. Reads ahead of their faults and pages that no single request brings still go to the
//! readers, who work beside the owner.
//!
//! A queue has no patience of its own and tries nothing twice ([`uswap_device::ReadQueue`]).
//! Whatever goes wrong with a read, an error, wrong bytes, a page that moved meanwhile, a server
//! that does not answer for [`MAX_SILENCE`], hands it on to the readers, with its buffer: there
//! errors are judged, connections made anew, other copies asked. So each rule about failing devices
//! stands in one place. A queue is made by a reader, since that can wait, at the first read of a
//! device, and after it broke with growing pauses.

pub mod ask;

use std::time::{Duration, Instant};

use uswap_device::{QUEUE_DEPTH, QueuedEnd, QueuedRead, ReadQueue};
use uswap_store::QueuedLoad;

use crate::io::reader::{Job, Purpose, Read};

/// Pages of a read that is asked for here, at most.
const MAX_PAGES: usize = 4;
/// A server that has not answered for so long is left to the readers.
const MAX_SILENCE: Duration = Duration::from_millis(500);
/// Pauses before a queue is asked for again.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(32);

/// An owner's queue of a device.
struct DirectQueue {
    device: u8,
    queue: Option<Box<dyn ReadQueue>>,
    /// A reader makes one.
    asked: bool,
    next_try: Instant,
    pause: Duration,
    /// What is under way, by the queue's numbers, and since when.
    reads: [Option<(Read, QueuedLoad, Instant)>; QUEUE_DEPTH],
}

/// An owner's queues.
#[derive(Default)]
pub struct DirectReads {
    open: Vec<Box<DirectQueue>>,
}

impl DirectReads {
    fn find(&mut self, device: u8) -> Option<&mut DirectQueue> {
        self.open.iter_mut().find(|queue| queue.device == device).map(|queue| &mut **queue)
    }
}

impl DirectQueue {
    fn new(device: u8) -> Self {
        let reads = std::array::from_fn(|_| None);
        Self { device, queue: None, asked: false, next_try: Instant::now(), pause: FIRST_PAUSE, reads }
    }

    /// Begins a read, or gives it back.
    fn begin(&mut self, mut read: Read, load: QueuedLoad) -> Result<(), Read> {
        let Some(queue) = self.queue.as_mut() else { return Err(read) };
        let QueuedLoad { slot, skip, length, at, .. } = load;
        let memory = read.buffer.take_memory();
        match queue.begin(QueuedRead { slot, skip, length, memory, at }) {
            Ok(number) => {
                self.reads[number as usize] = Some((read, load, Instant::now()));
                Ok(())
            }
            Err(memory) => {
                read.buffer.put_memory(memory);
                Err(read)
            }
        }
    }

    /// A read that is over, with its memory. The outcome says whether its bytes have come.
    fn finished(&mut self) -> Option<(Read, QueuedLoad, bool)> {
        let QueuedEnd { number, memory, result } = self.queue.as_mut()?.finished()?;
        let (mut read, load, _) = self.reads[number as usize].take()?;
        read.buffer.put_memory(memory);
        Some((read, load, result.is_ok()))
    }

    fn is_overdue(&self) -> bool {
        self.reads.iter().flatten().any(|(_, _, since)| since.elapsed() > MAX_SILENCE)
    }

    /// There is no queue, until the next one is made.
    fn leave(&mut self) -> Option<Box<dyn ReadQueue>> {
        self.next_try = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        self.queue.take()
    }
}

/// How the poller names the queue of a device: no space has such a number.
pub fn token(device: u8) -> u64 {
    QUEUES | u64::from(device)
}

/// The device whose queue the poller names, if it is one.
pub fn device_of(token: u64) -> Option<u8> {
    (token & QUEUES != 0).then_some(token as u8)
}

const QUEUES: u64 = 1 << 62;
