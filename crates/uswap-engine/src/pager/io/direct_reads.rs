//! Reads that an owner asks devices for itself: of a lonely page that a thread waits for.
//!
//! By way of a reader such a page costs four changes of threads: to the owner, the reader, the owner, the program. On a fast disk
//! or a server nearby that is more than the read itself. Here the owner sends the request, goes on with other work,
//! and is told by its poller when the answer is there. Reads ahead of their faults and pages that no single request brings still go to
//! the readers, who work beside the owner.
//!
//! A queue has no patience of its own and tries nothing twice ([`uswap_device::ReadQueue`]). Whatever goes wrong with a read,
//! an error, wrong bytes, a page that moved meanwhile, a server that does not answer for [`PATIENCE`], hands it on to the
//! readers, with its buffer: there errors are judged, connections made anew, other copies asked. So each rule about failing
//! devices stands in one place. A queue is made by a reader, since that can wait, at the first read of a device, and after it broke with growing pauses.

use std::time::{Duration, Instant};

use uswap_core::util::growth::{Growth, during};
use uswap_device::{QUEUE_DEPTH, QueuedEnd, QueuedRead, ReadQueue};
use uswap_store::QueuedLoad;

use crate::pager::address_space::AddressSpace;
use crate::pager::event_loop::Pager;
use crate::pager::io::reader::{Job, Purpose, Read};

/// Pages of a read that is asked for here, at most.
const MAX_PAGES: usize = 4;
/// A server that has not answered for so long is left to the readers.
const PATIENCE: Duration = Duration::from_millis(500);
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
        self.reads.iter().flatten().any(|(_, _, since)| since.elapsed() > PATIENCE)
    }

    /// There is no queue, until the next one is made.
    fn leave(&mut self) -> Option<Box<dyn ReadQueue>> {
        self.next_try = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        self.queue.take()
    }
}

impl<M: AddressSpace> Pager<M> {
    /// Asks for the pages of a read, if they are few and one request brings them. The read otherwise.
    pub fn ask_device(&mut self, device: u8, read: Read) -> Result<(), Read> {
        let few = read.buffer.pages.len() <= MAX_PAGES && read.purpose == Purpose::Fault;
        if !few || self.shared.faults.no_read_queue || !self.has_queue(device) {
            return Err(read);
        }
        let room = read.buffer.room();
        let Some(load) = self.shared.store.plan_queued(&read.buffer.pages, room) else { return Err(read) };
        let Some(queue) = self.queues.find(load.device) else { return Err(read) };
        queue.begin(read, load)?;
        self.shared.counters.queued_reads.add(1);
        self.shared.readers.note_queued(load.device, 1);
        Ok(())
    }

    /// Whether there is a queue for the device. If not, one is asked for now and then.
    fn has_queue(&mut self, device: u8) -> bool {
        if self.queues.find(device).is_none() {
            during(Growth::Devices, || self.queues.open.push(Box::new(DirectQueue::new(device))));
        }
        let Some(queue) = self.queues.find(device) else { return false };
        if queue.queue.is_some() || queue.asked || Instant::now() < queue.next_try {
            return queue.queue.is_some();
        }
        let asked = self.shared.readers.push(device, Job::MakeQueue { owner: self.number }).is_ok();
        self.queues.find(device).into_iter().for_each(|queue| queue.asked = asked);
        false
    }

    /// A reader has made a queue, or could not.
    pub fn receive_queue(&mut self, device: u8, made: Option<Box<dyn ReadQueue>>) {
        let Some(queue) = self.queues.find(device) else { return };
        queue.asked = false;
        queue.queue = made;
        let watched = queue.queue.as_ref().is_some_and(|queue| self.poller.add(queue.event(), token(device)).is_ok());
        if !watched {
            drop(self.queues.find(device).and_then(DirectQueue::leave));
        }
    }

    /// Takes what has come in a queue. Not while a space is taken out of the map: its pages would find no home. What failed goes on to the readers.
    pub fn look_at_queue(&mut self, device: u8) {
        while let Some((mut read, load, came)) = self.queues.find(device).and_then(DirectQueue::finished) {
            self.shared.readers.note_queued(device, -1);
            let (pages, bytes) = read.buffer.parts();
            let came = came && !self.shared.faults.hits(self.shared.faults.queue_fail);
            if came && self.shared.store.accept_queued(&load, pages, bytes) {
                self.receive_read(read);
            } else {
                self.hand_on(load.device, read);
            }
        }
        let Some(queue) = self.queues.find(device) else { return };
        match &queue.queue {
            Some(open) if open.is_broken() => {
                self.poller.remove(open.event());
                during(Growth::Devices, || drop(self.queues.find(device).and_then(DirectQueue::leave)));
            }
            _ => {}
        }
    }

    /// A read that the device did not answer as it should goes the other way.
    fn hand_on(&mut self, device: u8, read: Read) {
        if let Err(Job::Read(read)) = self.shared.readers.push(device, Job::Read(read)) {
            if self.spaces.contains_key(&read.space) {
                self.with_space(read.space, |owner, space| owner.forgo(space, read));
                self.retry_soon();
            } else {
                self.receive_read(read);
            }
        }
    }

    /// Leaves servers that do not answer, and makes sure that nothing that came is overlooked. To be called now and then.
    pub fn sweep_queues(&mut self) {
        for index in 0..self.queues.open.len() {
            let queue = &mut self.queues.open[index];
            if queue.is_overdue() {
                queue.queue.iter_mut().for_each(|queue| queue.give_up());
            } else if queue.pause > FIRST_PAUSE && queue.next_try.elapsed() > LONGEST_PAUSE {
                queue.pause = FIRST_PAUSE;
            }
            let device = queue.device;
            self.look_at_queue(device);
        }
    }

    /// A device has gone: nothing of it is under way any more.
    pub fn drop_queue(&mut self, device: u8) {
        self.look_at_queue(device);
        if let Some(index) = self.queues.open.iter().position(|queue| queue.device == device) {
            let queue = during(Growth::Devices, || self.queues.open.swap_remove(index));
            queue.queue.iter().for_each(|queue| self.poller.remove(queue.event()));
            debug_assert!(queue.reads.iter().all(Option::is_none), "a read holds its pages, and they their device");
        }
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
