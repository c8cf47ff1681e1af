//! Threads that put, load, share, cache and release at the same time, with writeback behind them;
//! bytes are checked.

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::{Random, check, hasher, page, put, store};
use uswap_core::PAGE_SIZE;
use uswap_device::{Delay, Device, RamDevice};
use uswap_store::{ObjectId, Scratch, Store, WritebackScratch};

const THREADS: u64 = 4;
const STEPS: u64 = 3000;

/// A page by its recipe, so that any thread can check it.
#[derive(Clone, Copy)]
struct Held {
    id: ObjectId,
    seed: u64,
    noise: usize,
    cached: bool,
}

impl Held {
    fn page(&self) -> [u8; PAGE_SIZE] {
        page(self.seed, self.noise)
    }
}

struct Worker<'a> {
    store: &'a Store,
    shared: &'a Mutex<Vec<Held>>,
    random: Random,
    scratch: Scratch,
    held: Vec<Held>,
}

impl Worker<'_> {
    fn take(&mut self) -> Option<Held> {
        let n = self.held.len() as u64;
        (n > 0).then(|| self.held.swap_remove(self.random.below(n) as usize))
    }

    fn put(&mut self) {
        let seed = self.random.next();
        let noise = [0, 300, 900, 1400, 2000, PAGE_SIZE][self.random.below(6) as usize];
        if let Ok(id) = put(self.store, &page(seed, noise), &mut self.scratch) {
            self.held.push(Held { id, seed, noise, cached: false });
        }
    }

    fn load(&mut self, held: Held) {
        if held.cached {
            let mut out = [0; PAGE_SIZE];
            if self.store.load_blocking(held.id, &mut out, &mut self.scratch).is_ok() {
                assert!(out == held.page());
            }
        } else {
            check(self.store, held.id, &held.page(), &mut self.scratch);
        }
        self.held.push(held);
    }

    fn release(&mut self, held: Held) {
        match held.cached {
            true => self.store.release_cached(held.id),
            false => self.store.release(held.id),
        }
    }

    /// Resident and evicted again: cached, and then reused or stored anew.
    fn turn(&mut self, mut held: Held) {
        if !held.cached {
            self.store.make_cached(held.id);
            held.cached = true;
            self.held.push(held);
        } else if self.store.reuse_cached(held.id, &held.page(), hasher().hash(&held.page())) {
            held.cached = false;
            self.held.push(held);
        } else if let Ok(id) = put(self.store, &held.page(), &mut self.scratch) {
            self.held.push(Held { id, cached: false, ..held });
        }
    }

    /// Gives another thread a reference of its own.
    fn share(&mut self, held: Held) {
        match held.cached {
            true => self.store.retain_cached(held.id),
            false => self.store.retain(held.id),
        }
        self.held.push(held);
        self.shared.lock().unwrap().push(held);
    }

    fn step(&mut self) {
        let dice = self.random.below(20);
        if dice < 7 && self.held.len() < 300 {
            return self.put();
        }
        if dice == 19 {
            self.held.extend(self.shared.lock().unwrap().pop());
        }
        let Some(held) = self.take() else { return };
        match dice {
            7..11 => self.load(held),
            11..16 => self.turn(held),
            16 => self.share(held),
            _ => self.release(held),
        }
    }
}

#[test]
fn threads_see_their_own_bytes() {
    let slow = |name: &str| -> Box<dyn Device> {
        Box::new(Delay::new(RamDevice::new(name, 1024), Duration::from_micros(20), Duration::from_micros(200)))
    };
    let store = store(5, vec![slow("first"), slow("second")]);
    let shared = Mutex::new(Vec::new());
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let mut scratch = WritebackScratch::new();
                while !done.load(Relaxed) {
                    if !store.needs_writeback() || !store.writeback(&mut scratch).progressed() {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
            });
        }
        let workers: Vec<_> = (0..THREADS)
            .map(|t| {
                let (store, shared) = (&store, &shared);
                s.spawn(move || {
                    let (random, scratch) = (Random::new(t + 1), Scratch::new());
                    let mut worker = Worker { store, shared, random, scratch, held: Vec::new() };
                    (0..STEPS).for_each(|_| worker.step());
                    while let Some(held) = worker.take() {
                        worker.load(held);
                        let held = worker.held.pop().unwrap();
                        worker.release(held);
                    }
                })
            })
            .collect();
        let results: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        done.store(true, Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
    for held in shared.into_inner().unwrap() {
        match held.cached {
            true => store.release_cached(held.id),
            false => store.release(held.id),
        }
    }
    let stats = store.stats();
    assert_eq!((stats.stored_pages, stats.stored_bytes, stats.checksum_errors), (0, 0, 0));
    assert!(stats.devices.iter().all(|d| d.slots_used == 0));
    assert!(stats.written_back_pages > 0, "the pool was under pressure: {stats:?}");
}
