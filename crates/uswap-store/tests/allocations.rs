//! No memory is allocated for a page: a thread that stores, loads and writes back asks the
//! allocator for nothing once it has met its compressors and the tables are as large as they must
//! be.

mod common;

use common::{Random, compressors, hard, page, put, store_in};
use uswap_core::util::growth;
use uswap_core::{PAGE_SIZE, PageBuf};
use uswap_device::RamDevice;
use uswap_store::{AllocatorKind, Compression, ObjectId, Scratch, Store, Tier, WritebackScratch};
use uswap_sys::GuardedAllocator;

/// Ends the process when a thread that may not allocates.
#[global_allocator]
static GUARDED: GuardedAllocator = GuardedAllocator;

/// Pages stored at a time; a pool of 1 MiB holds a part of them.
const PAGES: u64 = 2048;

/// What a thread of the engine does with pages, and what it holds.
struct Worker {
    store: Store,
    scratch: Scratch,
    writeback: WritebackScratch,
    compressors: Vec<Compression>,
    stored: Vec<(u64, ObjectId)>,
    out: PageBuf,
}

/// Same-filled, good, middling and hopeless ones.
fn content(seed: u64) -> PageBuf {
    match seed % 8 {
        0 => [seed as u8; PAGE_SIZE],
        1 => hard(seed),
        n => page(seed, 200 * n as usize),
    }
}

impl Worker {
    fn new(allocator: AllocatorKind) -> Self {
        let device = Box::new(RamDevice::new("ram", 4 * PAGES as u32));
        let tier = Tier { allocator, ..Tier::default() };
        Self {
            store: store_in(16, tier, vec![(device, 0)]),
            scratch: Scratch::new(),
            writeback: WritebackScratch::new(),
            compressors: compressors(),
            stored: Vec::with_capacity(PAGES as usize),
            out: [0; PAGE_SIZE],
        }
    }

    /// Stores pages by each compressor in turn, with writeback whenever the pool asks for it, loads
    /// all in another order, and lets them go.
    fn round(&mut self, seed: u64) {
        for n in 0..PAGES {
            let compression = self.compressors[(n / 64) as usize % self.compressors.len()];
            self.store.set_compression(compression).expect("a known one");
            let id = put(&self.store, &content(seed + n), &mut self.scratch).expect("room on the device");
            self.stored.push((seed + n, id));
            while self.store.needs_writeback() && self.store.writeback(&mut self.writeback).progressed() {}
        }
        let mut random = Random::new(seed);
        for left in (0..self.stored.len()).rev() {
            let (seed, id) = self.stored.swap_remove(random.below(left as u64 + 1) as usize);
            self.store.load_blocking(id, &mut self.out, &mut self.scratch).expect("a stored page");
            assert!(self.out == content(seed), "page {seed} came back different");
            self.store.release(id);
            if left % 64 == 0 {
                self.store.compact(&mut self.writeback);
            }
        }
    }
}

fn grown() -> u64 {
    growth::figures().map(|(_, bytes)| bytes).sum()
}

#[test]
fn no_memory_is_allocated_for_a_page() {
    for allocator in [AllocatorKind::Slab, AllocatorKind::Zbud] {
        let mut worker = Worker::new(allocator);
        (0..3).for_each(|round| worker.round(round * PAGES));
        growth::forbid();
        // The tables may grow by name: what differs from round to round is how full they become.
        let before = grown();
        (3..9).for_each(|round| worker.round(round * PAGES));
        let bytes = grown() - before;
        growth::permit();
        let pages = 6 * PAGES;
        assert!(bytes < pages, "{allocator:?}: {bytes} bytes allocated for {pages} pages");
        let stats = worker.store.stats();
        assert!(stats.written_back_pages > 100 && stats.zswpin > 100 && stats.pswpin > 100, "{stats:?}");
    }
}
