//! Workers with slot caches on one small device: filled to the last slot, freed, filled again,
//! drained; under each kind of locking. And use counts beyond what an entry holds.

mod common;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::{Random, check, hard, put, store, store_with};
use uswap_core::Locking;
use uswap_device::{Device, Errno, Fail, RamDevice, When};
use uswap_store::{Concurrency, ObjectId, Scratch, Store};

const WORKERS: u64 = 6;
const KINDS: [Concurrency; 4] = [
    Concurrency { slots: Locking::Whole, shards: 1, one_pool_lock: false },
    Concurrency { slots: Locking::Clusters, shards: 1, one_pool_lock: false },
    Concurrency { slots: Locking::Clusters, shards: 256, one_pool_lock: false },
    Concurrency { slots: Locking::Caches, shards: 256, one_pool_lock: false },
];

fn store_on(slots: u32, concurrency: Concurrency) -> Store {
    store_with(0, vec![(Box::new(RamDevice::new("ram", slots)), 0)], concurrency)
}

fn used(store: &Store) -> u64 {
    store.stats().devices.iter().map(|device| device.slots_used).sum()
}

/// Batch after batch to another one of the devices of the highest priority, so that what is stored
/// together stays together; to the rest when those are full.
#[test]
fn devices_of_equal_priority_take_turns() {
    let ram = |name: &str, slots| Box::new(RamDevice::new(name, slots));
    let devices: Vec<(Box<dyn Device>, i32)> =
        vec![(ram("low", 2048), 1), (ram("one", 512), 5), (ram("two", 512), 5), (ram("three", 512), 5)];
    let (store, mut scratch) = (store_with(0, devices, Concurrency::default()), Scratch::new());
    let mut batch_on = |seeds: std::ops::Range<u64>| {
        let pages: Vec<_> = seeds.map(hard).collect();
        let batch: Vec<_> = pages.iter().map(|page| (page, common::hasher().hash(page))).collect();
        let mut ids = Vec::new();
        store.put_batch(&batch, &mut ids, &mut scratch);
        let spot = |id: &Result<ObjectId, _>| store.spot_of(*id.as_ref().expect("room")).expect("on a device").device();
        let on: Vec<u8> = ids.iter().map(spot).collect();
        assert!(on.iter().all(|device| *device == on[0]), "a batch stays together: {on:?}");
        on[0]
    };
    let turns: Vec<u8> = (0..12).map(|n| batch_on(n * 32..n * 32 + 32)).collect();
    for round in turns.chunks(3) {
        let mut round = round.to_vec();
        round.sort_unstable();
        assert_eq!(round, [1, 2, 3], "{turns:?}");
    }
    for seed in 0..512 * 3 - 12 * 32 {
        put(&store, &hard(seed), &mut scratch).expect("room");
    }
    let used = |name: &str| store.device_pages(name);
    assert_eq!((used("one"), used("two"), used("three"), used("low")), (512, 512, 512, 0), "none is passed over");
    put(&store, &hard(1), &mut scratch).expect("room");
    assert_eq!(used("low"), 1);
}

/// Puts pages until none is taken; they are told from others by their seeds.
fn fill(store: &Store, scratch: &mut Scratch, held: &mut Vec<(ObjectId, u64)>, seeds: &mut impl Iterator<Item = u64>) {
    for seed in seeds {
        match put(store, &hard(seed), scratch) {
            Ok(id) => held.push((id, seed)),
            Err(_) => break,
        }
    }
}

/// Fills and frees at random, and fills once more when all others have done the same; returns what
/// it holds.
fn work(store: &Store, worker: u64, slots: usize, done: &Barrier) -> Vec<(ObjectId, u64)> {
    let (mut scratch, mut random, mut held) = (Scratch::new(), Random::new(worker + 1), Vec::new());
    let mut seeds = (0u64..).map(|n| n * WORKERS + worker);
    for _ in 0..3 {
        fill(store, &mut scratch, &mut held, &mut seeds.by_ref().take(slots / 4));
        let keep = random.below(held.len() as u64 + 1) as usize;
        for (id, seed) in held.drain(keep..) {
            check(store, id, &hard(seed), &mut scratch);
            store.release(id);
        }
    }
    done.wait();
    fill(store, &mut scratch, &mut held, &mut seeds);
    held
}

#[test]
fn workers_fill_a_device_to_the_last_slot_again_and_again() {
    for concurrency in KINDS {
        for slots in [512, 1024] {
            let store = store_on(slots, concurrency);
            let done = Barrier::new(WORKERS as usize);
            let held: Vec<_> = std::thread::scope(|scope| {
                let work = |worker| work(&store, worker, slots as usize, &done);
                let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
                workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
            });
            assert_eq!((held.len() as u64, used(&store)), (u64::from(slots), u64::from(slots)), "{concurrency:?}");
            let mut scratch = Scratch::new();
            for &(id, seed) in &held {
                check(&store, id, &hard(seed), &mut scratch);
            }
            let spots: std::collections::BTreeSet<_> = held.iter().map(|(id, _)| store.spot_of(*id)).collect();
            assert_eq!(spots.len(), slots as usize, "each page has a slot of its own");
            held.iter().for_each(|(id, _)| store.release(*id));
            assert_eq!(used(&store), 0, "{concurrency:?}");
        }
    }
}

/// Other threads leave slots ready and freed in their caches and sleep; the device is drained
/// nevertheless and goes.
#[test]
fn a_device_is_drained_while_caches_hold_slots_of_it() {
    for concurrency in KINDS {
        let store = store_on(16 * 1024, concurrency);
        let (parked, go) = (Barrier::new(WORKERS as usize + 1), Barrier::new(WORKERS as usize + 1));
        let held: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS)
                .map(|worker| {
                    let (store, parked, go) = (&store, &parked, &go);
                    scope.spawn(move || {
                        let (mut scratch, mut held) = (Scratch::new(), Vec::new());
                        let mut seeds = worker * 1000..worker * 1000 + 30;
                        fill(store, &mut scratch, &mut held, &mut seeds);
                        held.drain(..7).for_each(|(id, _)| store.release(id));
                        parked.wait();
                        go.wait();
                        // It goes on where there is room now.
                        fill(store, &mut scratch, &mut held, &mut (worker * 1000 + 500..worker * 1000 + 510));
                        held
                    })
                })
                .collect();
            parked.wait();
            assert_eq!(used(&store), WORKERS * 23);
            store.add_device(Box::new(RamDevice::new("other", 16 * 1024)), 0).expect("a second device");
            let mut drain = store.begin_drain("ram", 0).expect("there is room");
            while !store.end_drain(&drain) {
                assert_eq!(store.drain_step(&mut drain).refused, 0);
            }
            go.wait();
            workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
        });
        let mut scratch = Scratch::new();
        assert_eq!(store.stats().devices.len(), 1);
        assert_eq!((held.len() as u64, used(&store)), (WORKERS * 33, WORKERS * 33));
        for (id, seed) in held {
            check(&store, id, &hard(seed), &mut scratch);
            store.release(id);
        }
        assert_eq!(used(&store), 0);
    }
}

/// As after hundreds of forks: the page is there until its last reference has gone, and its slot is
/// free then.
#[test]
fn a_page_has_more_references_than_its_entry_counts() {
    let store = store(0, vec![Box::new(RamDevice::new("ram", 512))]);
    let mut scratch = Scratch::new();
    let id = put(&store, &hard(1), &mut scratch).unwrap();
    (0..999).for_each(|_| store.retain(id));
    (0..500).for_each(|_| store.make_cached(id));
    (0..500).for_each(|_| store.release_cached(id));
    (0..499).for_each(|_| store.release(id));
    check(&store, id, &hard(1), &mut scratch);
    assert_eq!(used(&store), 1);
    store.release(id);
    assert_eq!(used(&store), 0);
}

/// What a swapped page costs beside its page word, measured with many of them.
#[test]
fn a_stored_page_costs_18_bytes_of_tables() {
    let store = store(0, vec![Box::new(RamDevice::new("ram", 32 * 1024))]);
    let mut scratch = Scratch::new();
    let pages = 20_000u64;
    for seed in 0..pages {
        put(&store, &hard(seed), &mut scratch).expect("room");
    }
    let bytes = store.stats().table_bytes as f64 / pages as f64;
    assert!((16.0..18.5).contains(&bytes), "{bytes} bytes for each page");
}

/// Workers store and free while the disk is full now and then; afterwards every slot can be had.
#[test]
fn a_disk_that_is_full_now_and_then_loses_no_slot() {
    let device = Arc::new(Fail::new(RamDevice::new("disk", 2048)));
    let store = store(0, vec![Box::new(device.clone())]);
    let over = AtomicBool::new(false);
    let mut held: Vec<_> = std::thread::scope(|scope| {
        let work = |worker: u64| {
            let (mut scratch, mut random, mut held) = (Scratch::new(), Random::new(worker + 1), Vec::new());
            let mut seeds = (0u64..).map(|n| n * WORKERS + worker);
            while !over.load(Relaxed) {
                fill(&store, &mut scratch, &mut held, &mut seeds.by_ref().take(random.below(90) as usize));
                for _ in 0..random.below(held.len() as u64 / 2 + 1) {
                    let (id, seed) = held.swap_remove(random.below(held.len() as u64) as usize);
                    check(&store, id, &hard(seed), &mut scratch);
                    store.release(id);
                }
            }
            held
        };
        let workers: Vec<_> = (0..4).map(|worker| scope.spawn(move || work(worker))).collect();
        for round in 0..30 {
            let when = if round % 2 == 0 { When::From(0) } else { When::Never };
            device.fail_writes(when, Errno::NO_SPACE);
            std::thread::sleep(Duration::from_millis(20));
            store.retry_room();
        }
        device.fail_writes(When::Never, Errno::NO_SPACE);
        over.store(true, Relaxed);
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
    });
    store.retry_room();
    assert!(store.stats().devices[0].no_room > 0, "the disk was full");
    let mut scratch = Scratch::new();
    fill(&store, &mut scratch, &mut held, &mut (1 << 32..));
    assert_eq!((held.len(), used(&store)), (2048, 2048));
    for (id, seed) in held {
        check(&store, id, &hard(seed), &mut scratch);
        store.release(id);
    }
    assert_eq!(used(&store), 0);
}
