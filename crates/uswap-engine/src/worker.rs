//! The workers: read a staged tray out of its process, hash, compress, store. They wait on nobody but the kernel,
//! and what they decide is a proposal: the owner looks whether each page is still staged where it was.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use uswap_core::{PAGE_SIZE, PageBuf, PageHash, same_filled};
use uswap_store::Scratch;
use uswap_sys::vmread::{self, RemoteRange};

use crate::shared::{EvictDone, EvictJob, Message, Shared, Stored};

/// Serves jobs until the sender is gone.
pub fn run(shared: &Arc<Shared>, jobs: &Arc<Mutex<Receiver<EvictJob>>>) {
    let mut worker = Worker::new(shared);
    loop {
        let job = jobs.lock().expect("jobs").recv();
        let Ok(job) = job else { return };
        let owner = job.owner;
        let done = worker.store_tray(job);
        shared.budget.set_pool(shared.store.pool_bytes());
        shared.mailboxes[owner].post(Message::Evicted(done));
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    scratch: Scratch,
    buffer: Vec<u8>,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared) -> Self {
        let buffer = vec![0; (uswap_abi::layout::TRAY_PAGES as usize + 1) * PAGE_SIZE];
        Self { shared, scratch: Scratch::new(), buffer }
    }

    fn store_tray(&mut self, job: EvictJob) -> EvictDone {
        self.shared.faults.pause(self.shared.faults.delay_store);
        let answer = |pages| EvictDone { space: job.space, tray: job.tray, generation: job.generation, pages };
        if !self.read(&job) {
            self.shared.release_kept(&job);
            return answer(job.pages.iter().map(|page| (page.slot, Stored::Unreadable)).collect());
        }
        if self.shared.faults.hits(self.shared.faults.store_full) {
            self.shared.release_kept(&job);
            return answer(job.pages.iter().map(|page| (page.slot, Stored::Full)).collect());
        }
        let fates = self.store(&job);
        answer(job.pages.iter().map(|page| page.slot).zip(fates).collect())
    }

    /// Reads nonce and pages in one call, so that all come from the same image, and compares the nonce.
    fn read(&mut self, job: &EvictJob) -> bool {
        let mut ranges = vec![RemoteRange { start: job.nonce_page, length: 16 }];
        for page in &job.pages {
            match ranges.last_mut() {
                Some(last) if last.start + last.length == page.address => last.length += PAGE_SIZE as u64,
                _ => ranges.push(RemoteRange { start: page.address, length: PAGE_SIZE as u64 }),
            }
        }
        let length = 16 + job.pages.len() * PAGE_SIZE;
        let start = PAGE_SIZE - 16;
        let buffer = &mut self.buffer[start..start + length];
        let complete = vmread::read(job.pid, &ranges, buffer).is_ok_and(|n| n == length);
        let nonce = [&buffer[..8], &buffer[8..16]].map(|b| u64::from_ne_bytes(b.try_into().expect("eight bytes")));
        complete && (nonce == job.nonce || self.shared.faults.no_nonce)
    }

    fn store(&mut self, job: &EvictJob) -> Vec<Stored> {
        let shared = self.shared;
        let pages = self.buffer[PAGE_SIZE..].as_chunks::<PAGE_SIZE>().0;
        let mut fates = vec![Stored::Full; job.pages.len()];
        let mut rest: Vec<(usize, &PageBuf, PageHash)> = Vec::with_capacity(job.pages.len());
        for (index, (order, page)) in job.pages.iter().zip(pages).enumerate() {
            if same_filled(page) == Some(0) {
                order.kept.inspect(|kept| shared.store.release_cached(*kept));
                fates[index] = Stored::Zero;
                continue;
            }
            let hash = shared.hasher.hash(page);
            match order.kept {
                Some(kept) if shared.store.reuse_cached(kept, hash) => {
                    shared.counters.swap_cache_reused.add(1);
                    fates[index] = Stored::Object(kept);
                }
                _ if job.forked
                    && shared.twins.find(&shared.store, hash).is_some_and(|twin| {
                        fates[index] = Stored::Object(twin);
                        true
                    }) =>
                {
                    shared.counters.fork_twins.add(1);
                }
                _ => rest.push((index, page, hash)),
            }
        }
        let batch: Vec<(&PageBuf, PageHash)> = rest.iter().map(|(_, page, hash)| (*page, *hash)).collect();
        let mut results = Vec::with_capacity(batch.len());
        shared.store.put_batch(&batch, &mut results, &mut self.scratch);
        for ((index, _, hash), result) in rest.iter().zip(results) {
            if let (true, Ok(object)) = (job.forked, &result) {
                shared.twins.remember(*hash, *object);
            }
            fates[*index] = result.map_or(Stored::Full, Stored::Object);
        }
        fates
    }
}
