//! Sending reads to a device, and handling its answers.

use super::*;

use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use uswap_core::util::growth::{Growth, during};

impl<M: AddressSpace> Pager<M> {
    /// Sends a read to the device itself, if its pages are few and one request brings them.
    /// Otherwise gives the read back.
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

    /// Whether there is a queue for the device. If not, asks for one now and then.
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

    /// Receives a queue that a reader has made; `None`: it could not.
    pub fn receive_queue(&mut self, device: u8, made: Option<Box<dyn ReadQueue>>) {
        let Some(queue) = self.queues.find(device) else { return };
        queue.asked = false;
        queue.queue = made;
        let watched = queue.queue.as_ref().is_some_and(|queue| self.poller.add(queue.event(), token(device)).is_ok());
        if !watched {
            drop(self.queues.find(device).and_then(DirectQueue::leave));
        }
    }

    /// Handles the answers in a queue. Must not be called while a space is taken out of the map:
    /// its pages could not be delivered. Reads that failed go on to the readers.
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

    /// Hands a read that the device did not answer correctly on to the readers.
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

    /// Gives up servers that do not answer, and makes sure that no answer is overlooked. To be
    /// called now and then.
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

    /// Drops the queue of a device that was removed: none of its reads is under way any more.
    pub fn drop_queue(&mut self, device: u8) {
        self.look_at_queue(device);
        if let Some(index) = self.queues.open.iter().position(|queue| queue.device == device) {
            let queue = during(Growth::Devices, || self.queues.open.swap_remove(index));
            queue.queue.iter().for_each(|queue| self.poller.remove(queue.event()));
            debug_assert!(queue.reads.iter().all(Option::is_none), "a read holds its pages, and they their device");
        }
    }
}
