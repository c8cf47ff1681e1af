//! The store workers: they read a staged tray out of its process, hash and compress its pages, and
//! store them. They wait only for the kernel. Their result is a proposal: the pager checks whether
//! each page is still staged where it was.

use std::sync::Arc;

use uswap_abi::layout::TRAY_PAGES;
use uswap_core::{PAGE_SIZE, PageBuf, PageHash, same_filled};
use uswap_store::{ObjectId, PutError, Scratch};

use crate::address_space::{AddressSpace, StagedReader};
use crate::context::{EngineContext, EvictDone, EvictJob, Message, Stored};

const TRAY: usize = TRAY_PAGES as usize;

/// Serves jobs until the queue is closed.
pub fn run<M: AddressSpace>(shared: &Arc<EngineContext<M>>) {
    let mut worker = Worker::new(shared);
    shared.faults.serve_without_growth();
    while let Some(job) = shared.storing.jobs.take() {
        worker.serve(job);
    }
}

/// Stores the trays that wait now.
#[cfg(test)]
pub fn store_waiting<M: AddressSpace>(shared: &EngineContext<M>) {
    let mut worker = Worker::new(shared);
    while shared.storing.jobs.waiting() > 0 {
        worker.serve(shared.storing.jobs.take().expect("a job waits"));
    }
}

struct Worker<'a, M: AddressSpace> {
    shared: &'a EngineContext<M>,
    scratch: Scratch,
    buffer: Vec<u8>,
    results: Vec<Result<ObjectId, PutError>>,
}

impl<'a, M: AddressSpace> Worker<'a, M> {
    fn new(shared: &'a EngineContext<M>) -> Self {
        Self { shared, scratch: Scratch::new(), buffer: vec![0; TRAY * PAGE_SIZE], results: Vec::with_capacity(TRAY) }
    }

    fn serve(&mut self, job: EvictJob<M>) {
        let (shared, owner) = (self.shared, job.owner);
        let done = self.store_tray(job);
        shared.budget.set_pool(shared.store.pool_bytes());
        shared.mailboxes[owner].post(Message::Evicted(done));
    }

    fn store_tray(&mut self, mut job: EvictJob<M>) -> EvictDone {
        self.shared.faults.pause(self.shared.faults.delay_store);
        if self.shared.faults.allocate {
            std::hint::black_box(vec![0u8; 100]);
        }
        if self.shared.faults.hits(self.shared.faults.read_missing) {
            job.reader.read_missing();
        }
        let failed = match self.read(&job) {
            false => Some(Stored::Unreadable),
            true => self.shared.faults.hits(self.shared.faults.store_full).then_some(Stored::Full),
        };
        match failed {
            Some(fate) => {
                self.shared.release_kept(&job);
                job.pages.pages.iter_mut().for_each(|page| page.fate = fate);
            }
            None => self.store(&mut job),
        }
        EvictDone { space: job.space, tray: job.tray, generation: job.generation, pages: job.pages }
    }

    fn read(&mut self, job: &EvictJob<M>) -> bool {
        let (mut places, pages) = ([0; TRAY], &job.pages.pages);
        places.iter_mut().zip(pages).for_each(|(place, page)| *place = page.address);
        let bytes = &mut self.buffer[..pages.len() * PAGE_SIZE];
        job.reader.read(&places[..pages.len()], bytes, self.shared.faults.no_nonce)
    }

    fn store(&mut self, job: &mut EvictJob<M>) {
        let (shared, forked) = (self.shared, job.forked);
        let pages = self.buffer.as_chunks::<PAGE_SIZE>().0;
        let mut batch: [(&PageBuf, PageHash); TRAY] = [(&pages[0], PageHash(0)); TRAY];
        let (mut places, mut count) = ([0; TRAY], 0);
        for (index, (order, page)) in job.pages.pages.iter_mut().zip(pages).enumerate() {
            if same_filled(page) == Some(0) {
                order.kept.inspect(|kept| shared.store.release_cached(*kept));
                order.fate = Stored::Zero;
                continue;
            }
            let hash = shared.hasher.hash(page);
            match order.kept {
                Some(kept) if shared.store.reuse_cached(kept, page, hash) => {
                    shared.counters.swap_cache_reused.add(1);
                    order.fate = Stored::Object(kept);
                }
                _ => match forked.then(|| shared.relatives.twins.find(&shared.store, page, hash)).flatten() {
                    Some(twin) => {
                        shared.counters.fork_twins.add(1);
                        order.fate = Stored::Object(twin);
                    }
                    None => {
                        (batch[count], places[count]) = ((page, hash), index);
                        count += 1;
                    }
                },
            }
        }
        shared.store.put_batch(&batch[..count], &mut self.results, &mut self.scratch);
        for ((place, (_, hash)), result) in places.iter().zip(batch).zip(&self.results) {
            if let (true, Ok(object)) = (forked, result) {
                shared.relatives.twins.remember(hash, *object);
            }
            job.pages.pages[*place].fate = result.map_or(Stored::Full, Stored::Object);
        }
    }
}
