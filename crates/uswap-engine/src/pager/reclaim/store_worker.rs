//! The workers: read a staged tray out of its process, hash, compress, store. They wait on nobody but the kernel,
//! and what they decide is a proposal: the owner looks whether each page is still staged where it was.

use std::sync::Arc;

use uswap_abi::layout::{NONCE, SB, TRAY_PAGES, TRAYS};
use uswap_core::{PAGE_SIZE, PageBuf, PageHash, same_filled};
use uswap_store::{ObjectId, PutError, Scratch};
use uswap_sys::vmread::{self, RemoteRange};

use crate::pager::context::{EvictDone, EvictJob, Message, Shared, Stored};

const TRAY: usize = TRAY_PAGES as usize;

/// Serves jobs until there are no more.
pub fn run(shared: &Arc<Shared>) {
    let mut worker = Worker::new(shared);
    shared.faults.serve_without_growth();
    while let Some(job) = shared.evictions.take() {
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
    ranges: Vec<RemoteRange>,
    results: Vec<Result<ObjectId, PutError>>,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared) -> Self {
        let buffer = vec![0; (TRAY + 1) * PAGE_SIZE];
        let (ranges, results) = (Vec::with_capacity(TRAY + 1), Vec::with_capacity(TRAY));
        Self { shared, scratch: Scratch::new(), buffer, ranges, results }
    }

    fn store_tray(&mut self, mut job: EvictJob) -> EvictDone {
        self.shared.faults.pause(self.shared.faults.delay_store);
        if self.shared.faults.allocate {
            std::hint::black_box(vec![0u8; 100]);
        }
        if self.shared.faults.hits(self.shared.faults.read_missing) {
            read_missing(&job);
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

    /// Reads nonce and pages in one call, so that all come from the same image, and compares the nonce.
    fn read(&mut self, job: &EvictJob) -> bool {
        let (ranges, pages) = (&mut self.ranges, &job.pages.pages);
        ranges.clear();
        ranges.push(RemoteRange { start: job.nonce_page, length: 16 });
        for page in pages {
            match ranges.last_mut() {
                Some(last) if last.start + last.length == page.address => last.length += PAGE_SIZE as u64,
                _ => ranges.push(RemoteRange { start: page.address, length: PAGE_SIZE as u64 }),
            }
        }
        let length = 16 + pages.len() * PAGE_SIZE;
        let start = PAGE_SIZE - 16;
        let buffer = &mut self.buffer[start..start + length];
        let complete = vmread::read(job.pid, ranges, buffer).is_ok_and(|n| n == length);
        let nonce = [&buffer[..8], &buffer[8..16]].map(|b| u64::from_ne_bytes(b.try_into().expect("eight bytes")));
        complete && (nonce == job.nonce || self.shared.faults.no_nonce)
    }

    fn store(&mut self, job: &mut EvictJob) {
        let (shared, forked) = (self.shared, job.forked);
        let pages = self.buffer[PAGE_SIZE..].as_chunks::<PAGE_SIZE>().0;
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
                _ => match forked.then(|| shared.twins.find(&shared.store, page, hash)).flatten() {
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
                shared.twins.remember(hash, *object);
            }
            job.pages.pages[*place].fate = result.map_or(Stored::Full, Stored::Object);
        }
    }
}

/// For tests: reads the last staging slot, which no test reaches.
fn read_missing(job: &EvictJob) {
    let slots = u64::from(TRAYS * TRAY_PAGES);
    let missing = job.nonce_page - NONCE + SB + (slots - 1) * PAGE_SIZE as u64;
    let range = RemoteRange { start: missing, length: PAGE_SIZE as u64 };
    assert!(vmread::read(job.pid, &[range], &mut [0; PAGE_SIZE]).is_err(), "a slot without a page was read");
}
