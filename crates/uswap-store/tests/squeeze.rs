//! A device that is full though much of it is lost in packs: room is made before a page is refused.

mod common;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::{check, hard, put, soft, store};
use uswap_device::RamDevice;
use uswap_store::{ObjectId, Scratch, Store, Tuning, WritebackScratch};

const SLOTS: u64 = 2048;

/// A store that has next to no pool, so that every page goes to the device at once.
fn full_store(tuning: Tuning) -> (Store, Vec<(ObjectId, u64)>) {
    let store = store(0, vec![Box::new(RamDevice::new("disk", SLOTS as u32))]);
    store.tune(tuning);
    let mut scratch = Scratch::new();
    let mut held = Vec::new();
    // Batches, as workers put them: packed one behind the other.
    for first in (0..).step_by(64) {
        let batch: Vec<_> = (first..first + 64).map(soft).collect();
        let batch: Vec<_> = batch.iter().map(|page| (page, common::hasher().hash(page))).collect();
        let mut ids = Vec::new();
        store.put_batch(&batch, &mut ids, &mut scratch);
        held.extend(ids.iter().zip(first..).filter_map(|(id, seed)| Some((*id.as_ref().ok()?, seed))));
        if ids.iter().any(Result::is_err) {
            return (store, held);
        }
    }
    unreachable!("it never became full")
}

/// Frees pages so that of three neighbours `dead` are gone.
fn thin_out(store: &Store, held: &mut Vec<(ObjectId, u64)>, dead: u64) {
    held.retain(|(id, seed)| {
        let dies = seed % 3 < dead;
        if dies {
            store.release(*id);
        }
        !dies
    });
}

fn used(store: &Store) -> u64 {
    store.stats().devices[0].slots_used
}

/// Puts pages until one is refused, `most` at most.
fn fill(
    store: &Store,
    held: &mut Vec<(ObjectId, u64)>,
    make: fn(u64) -> uswap_core::PageBuf,
    from: u64,
    most: u64,
) -> u64 {
    let mut scratch = Scratch::new();
    for seed in from..from + most {
        match put(store, &make(seed), &mut scratch) {
            Ok(id) => held.push((id, seed)),
            Err(_) => return seed - from,
        }
    }
    most
}

/// Two thirds of what a full device holds is dead, one in each slot at least lives: more than half
/// of the device can be had.
#[test]
fn a_device_full_of_dead_packs_takes_pages() {
    let (store, mut held) = full_store(Tuning::default());
    thin_out(&store, &mut held, 2);
    assert!(used(&store) > SLOTS * 7 / 10, "{} of {SLOTS} slots are in use still", used(&store));
    let mut more = Vec::new();
    let taken = fill(&store, &mut more, hard, 1 << 32, SLOTS);
    assert!(taken > SLOTS / 2, "{taken} pages were taken");
    let mut scratch = Scratch::new();
    held.iter().for_each(|(id, seed)| check(&store, *id, &soft(*seed), &mut scratch));
    more.iter().for_each(|(id, seed)| check(&store, *id, &hard(*seed), &mut scratch));
    held.iter().chain(&more).for_each(|(id, _)| store.release(*id));
    assert_eq!((used(&store), store.stats().devices[0].packed_bytes), (0, 0));
}

/// The rule off: what is lost stays lost.
#[test]
fn without_squeezing_the_same_device_refuses_them() {
    let (store, mut held) = full_store(Tuning { no_squeeze: true, ..Tuning::default() });
    thin_out(&store, &mut held, 2);
    let free = SLOTS - used(&store);
    let taken = fill(&store, &mut Vec::new(), hard, 1 << 32, SLOTS);
    assert_eq!(taken, free, "only what was free");
    assert!(taken < SLOTS / 3);
}

/// One third is dead, so no slot is thin in the mean: it is had nevertheless, for compressed pages
/// too.
#[test]
fn a_third_that_is_lost_is_had_too() {
    let (store, mut held) = full_store(Tuning::default());
    thin_out(&store, &mut held, 1);
    let lost = SLOTS - held.len() as u64 * SLOTS / (held.len() as u64 * 3 / 2);
    let mut more = Vec::new();
    let taken = fill(&store, &mut more, hard, 1 << 32, SLOTS);
    assert!(taken > lost / 2, "{taken} pages were taken where {lost} slots are lost");
    let mut scratch = Scratch::new();
    held.iter().for_each(|(id, seed)| check(&store, *id, &soft(*seed), &mut scratch));
    more.iter().for_each(|(id, seed)| check(&store, *id, &hard(*seed), &mut scratch));
}

/// What repacks in the background makes room before anybody is refused.
#[test]
fn repacking_ahead_of_time_makes_room() {
    let (store, mut held) = full_store(Tuning::default());
    thin_out(&store, &mut held, 1);
    let mut seeds = 1 << 32..;
    while !store.needs_repack() {
        let seed = seeds.next().expect("no end");
        assert_eq!(fill(&store, &mut held, hard, seed, 1), 1, "{} of {SLOTS} in use", used(&store));
    }
    let (before, mut scratch) = (used(&store), WritebackScratch::new());
    while store.needs_repack() && store.repack(&mut scratch).may_go_on() {}
    assert!(used(&store) < before, "{before} slots before, {} now", used(&store));
}

/// Several threads find the device full at once: every page that is taken has its bytes, the others
/// are refused, and no slot is lost.
#[test]
fn threads_squeeze_side_by_side() {
    let (store, mut held) = full_store(Tuning::default());
    thin_out(&store, &mut held, 2);
    let taken = AtomicU64::new(0);
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let work = |worker: u64| {
            let mut more = Vec::new();
            for turn in 0..200 {
                let from = (worker + 1) << 32 | turn << 16;
                taken.fetch_add(fill(&store, &mut more, hard, from, 16), Relaxed);
                if turn % 3 == 0 && more.len() > 100 {
                    more.drain(..40).for_each(|(id, _)| store.release(id));
                }
            }
            more
        };
        let workers: Vec<_> = (0..4).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
    });
    assert!(taken.load(Relaxed) > SLOTS / 2, "{} pages were taken", taken.load(Relaxed));
    let mut scratch = Scratch::new();
    held.iter().for_each(|(id, seed)| check(&store, *id, &soft(*seed), &mut scratch));
    all.iter().for_each(|(id, seed)| check(&store, *id, &hard(*seed), &mut scratch));
    all.append(&mut held);
    all.iter().for_each(|(id, _)| store.release(*id));
    assert_eq!((used(&store), store.stats().devices[0].packed_bytes), (0, 0));
}
