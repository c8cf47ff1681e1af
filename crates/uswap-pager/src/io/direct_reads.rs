//! Reads that a pager asks devices for itself: of an isolated page that a thread waits for.
//!
//! By way of a reader such a page costs four thread switches: to the pager, the reader, the pager,
//! the program. On a fast disk or a server nearby these take longer than the read itself. Here the
//! pager sends the request, goes on with other work, and learns from its poller that the answer has
//! come. Reads ahead of their faults, and pages that no single request brings, still go to the
//! readers, which work in parallel with the pager.
//!
//! A queue has no timeout of its own and does not retry ([`uswap_device::ReadQueue`]). A read that
//! fails for any reason (an error, wrong bytes, a page that moved meanwhile, a server that does not
//! answer within [`MAX_SILENCE`]) is handed on to the readers, with its buffer: they judge errors,
//! make connections anew, and ask other copies. So each rule about failing devices is in one place.
//! A queue is made by a reader, which may wait, at the first read of a device; and after it broke,
//! with growing pauses.

pub mod ask;

use std::time::{Duration, Instant};

use uswap_device::{QUEUE_DEPTH, QueuedEnd, QueuedRead, ReadQueue};
use uswap_store::QueuedLoad;

use crate::io::reader::{Job, Purpose, Read};

/// Maximum number of pages in a read that the pager asks for itself.
const MAX_PAGES: usize = 4;
/// Time after which a read is handed on to the readers because the server has not answered.
const MAX_SILENCE: Duration = Duration::from_millis(500);
/// Shortest and longest pause before a new queue is asked for.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(32);

/// The queue of a pager for one device.
struct DirectQueue {
    device: u8,
    queue: Option<Box<dyn ReadQueue>>,
    /// Whether a reader is making the queue.
    asked: bool,
    next_try: Instant,
    pause: Duration,
    /// Reads under way, by the number that the queue gave them, and since when.
    reads: [Option<(Read, QueuedLoad, Instant)>; QUEUE_DEPTH],
}

/// The queues of a pager.
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

    /// Takes a finished read, with its memory. The last value tells whether its bytes have come.
    fn finished(&mut self) -> Option<(Read, QueuedLoad, bool)> {
        let QueuedEnd { number, memory, result } = self.queue.as_mut()?.finished()?;
        let (mut read, load, _) = self.reads[number as usize].take()?;
        read.buffer.put_memory(memory);
        Some((read, load, result.is_ok()))
    }

    fn is_overdue(&self) -> bool {
        self.reads.iter().flatten().any(|(_, _, since)| since.elapsed() > MAX_SILENCE)
    }

    /// Gives the queue up, until the next one is made.
    fn leave(&mut self) -> Option<Box<dyn ReadQueue>> {
        self.next_try = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        self.queue.take()
    }
}

/// The poller's token for the queue of a device: no space has such a number.
pub fn token(device: u8) -> u64 {
    QUEUES | u64::from(device)
}

/// The device whose queue has this token, if it is one of a queue.
pub fn device_of(token: u64) -> Option<u8> {
    (token & QUEUES != 0).then_some(token as u8)
}

const QUEUES: u64 = 1 << 62;
