//! Emptying a device: everything on it is found elsewhere, with the right bytes, whatever goes on
//! meanwhile.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use common::{Random, SLAB, check, hard, hasher, page, put, soft, store};
use uswap_core::PAGE_SIZE;
use uswap_device::{Corrupt, Device, Errno, Fail, RamDevice, When};
use uswap_store::{Drain, DrainRefusal, DrainReport, DrainRoom, Load, LoadError, Scratch, Store, WritebackScratch};

fn ram(name: &str, slots: u32) -> Box<dyn Device> {
    Box::new(RamDevice::new(name, slots))
}

/// Steps until one round is done; the sum of what they did.
fn round(store: &Store, drain: &mut Drain) -> DrainReport {
    let mut all = DrainReport::default();
    while !all.round_done {
        let step = store.drain_step(drain);
        all.moved += step.moved;
        all.unreadable += step.unreadable;
        all.refused += step.refused;
        all.round_done = step.round_done;
    }
    all
}

fn names(store: &Store) -> Vec<String> {
    store.stats().devices.into_iter().map(|device| device.name).collect()
}

#[test]
fn pages_move_to_the_other_device_and_the_first_one_goes() {
    let first = Arc::new(RamDevice::new("first", 1024));
    let (store, mut scratch) = (store(1, vec![Box::new(first.clone()), ram("second", 1024)]), Scratch::new());
    let ids: Vec<_> = (0..300).map(|seed| put(&store, &hard(seed), &mut scratch).unwrap()).collect();
    let mut drain = store.begin_drain("first", 0).unwrap();
    assert_eq!(store.left_to_drain(&drain), 300);
    assert!(!store.end_drain(&drain), "not while pages lie on it");
    assert_eq!(round(&store, &mut drain), DrainReport { moved: 300, round_done: true, ..DrainReport::default() });
    assert_eq!(store.left_to_drain(&drain), 0);
    assert!(store.end_drain(&drain));
    assert_eq!((names(&store), Arc::strong_count(&first)), (vec!["second".to_string()], 1), "it is closed");
    for (id, seed) in ids.iter().zip(0..) {
        check(&store, *id, &hard(seed), &mut scratch);
        store.release(*id);
    }
    assert_eq!(store.stats().devices[0].slots_used, 0, "no slot is left behind");
}

#[test]
fn compressed_pages_go_back_to_the_pool_while_it_has_room() {
    let (store, mut scratch) = (store(64, vec![ram("disk", 1024), ram("other", 1024)]), Scratch::new());
    let ids: Vec<_> = (0..100).map(|seed| put(&store, &soft(seed), &mut scratch).unwrap()).collect();
    store.set_pool_limit(0);
    let mut writeback = WritebackScratch::new();
    while store.writeback(&mut writeback).progressed() {}
    assert_eq!(store.stats().stored_pages, 0);
    store.set_pool_limit(64 * SLAB);
    let mut drain = store.begin_drain("disk", 0).unwrap();
    assert_eq!(round(&store, &mut drain).moved, 100);
    assert!(store.end_drain(&drain));
    assert_eq!(store.stats().stored_pages, 100);
    for (id, seed) in ids.iter().zip(0..) {
        let mut out = [0; PAGE_SIZE];
        assert_eq!(store.load(*id, &mut out), Ok(Load::Ready));
        assert!(out == soft(seed));
    }
}

#[test]
fn copies_that_are_only_cached_are_given_up() {
    let (store, mut scratch) = (store(1, vec![ram("disk", 1024)]), Scratch::new());
    let id = put(&store, &hard(1), &mut scratch).unwrap();
    store.make_cached(id);
    store.add_device(ram("other", 512), 0).unwrap();
    let mut drain = store.begin_drain("disk", 0).unwrap();
    assert_eq!(round(&store, &mut drain).moved, 1);
    assert!(store.end_drain(&drain));
    assert_eq!(store.load(id, &mut [0; PAGE_SIZE]), Err(LoadError::Gone));
    store.release_cached(id);
}

#[test]
fn refused_beforehand_without_room_and_for_unknown_names() {
    let (store, mut scratch) = (store(1, vec![ram("big", 1024), ram("small", 512)]), Scratch::new());
    (0..600).for_each(|seed| _ = put(&store, &hard(seed), &mut scratch).unwrap());
    let refusal = store.begin_drain("big", 0).err().unwrap();
    let DrainRefusal::NoRoom { slots: 600, pages: 600, room } = refusal else { panic!("{refusal:?}") };
    assert!(room.pool == 0 && room.memory == 0 && room.devices < 600, "{room:?}");
    assert_eq!(store.begin_drain("x", 0).err(), Some(DrainRefusal::Unknown(vec!["big".into(), "small".into()])));
    store.add_device(ram("third", 512), 0).unwrap();
    let drain = store.begin_drain("big", 0).unwrap();
    assert_eq!(store.begin_drain("big", 0).err(), Some(DrainRefusal::Busy));
    store.cancel_drain(&drain);
    assert!(store.begin_drain("big", 0).is_ok());
}

/// A page that comes back takes a whole one for each who has it; one that does not compress has no
/// place in the pool, and what the pool takes is taken from the same memory.
#[test]
fn what_there_is_room_for_in_memory_is_counted_in_its_own_pages() {
    let (store, mut scratch) = (store(64, vec![ram("disk", 1024)]), Scratch::new());
    let compressed: Vec<_> = (0..100).map(|seed| put(&store, &soft(seed), &mut scratch).unwrap()).collect();
    store.set_pool_limit(0);
    let mut writeback = WritebackScratch::new();
    while store.writeback(&mut writeback).progressed() {}
    compressed.iter().for_each(|id| store.retain(*id));
    store.make_cached(compressed[0]);
    let DrainRefusal::NoRoom { slots, pages: 199, room } = store.begin_drain("disk", 198).err().unwrap() else {
        panic!("100 pages, of which all but one are had twice")
    };
    assert!(slots < 40 && room == DrainRoom { pool: 0, devices: 0, memory: 198 }, "{slots} slots, {room:?}");
    store.cancel_drain(&store.begin_drain("disk", 199).unwrap());
    store.set_pool_limit(slots / 2 * PAGE_SIZE as u64);
    let half = store.begin_drain("disk", 0).err().unwrap();
    let DrainRefusal::NoRoom { room, .. } = half else { panic!("{half:?}") };
    assert_eq!(room, DrainRoom { pool: slots / 2, devices: 0, memory: 0 });
    store.cancel_drain(&store.begin_drain("disk", slots / 2 + 120).unwrap());
    store.set_pool_limit(64 * SLAB);
    let whole: Vec<_> = (200..300).map(|seed| put(&store, &hard(seed), &mut scratch).unwrap()).collect();
    assert!(store.begin_drain("disk", 50).is_err(), "the pool takes none of them");
    whole.iter().for_each(|id| store.make_cached(*id));
    assert!(store.begin_drain("disk", 50).is_ok(), "copies take nothing");
}

/// What neither pool nor devices take is left alone until its last reference goes.
#[test]
fn what_nobody_takes_is_not_read_and_goes_with_its_last_reference() {
    let (store, mut scratch) = (store(1, vec![ram("disk", 1024)]), Scratch::new());
    let ids: Vec<_> = (0..300).map(|seed| put(&store, &hard(seed), &mut scratch).unwrap()).collect();
    let mut drain = store.begin_drain("disk", 300).unwrap();
    assert_eq!(round(&store, &mut drain), DrainReport { refused: 300, round_done: true, ..DrainReport::default() });
    assert_eq!((store.stats().devices[0].read_bytes, store.left_to_drain(&drain)), (0, 300));
    for (id, seed) in ids.iter().zip(0..) {
        check(&store, *id, &hard(seed), &mut scratch);
        store.release(*id);
    }
    assert!(store.end_drain(&drain));
}

/// Else a page that is evicted again would be on the device that it is to leave.
#[test]
fn a_copy_on_a_device_that_leaves_is_not_used_anew() {
    let (store, mut scratch) = (store(1, vec![ram("disk", 1024)]), Scratch::new());
    let [kept, other] = [1, 2].map(|seed| put(&store, &hard(seed), &mut scratch).unwrap());
    store.make_cached(kept);
    let reuse = || store.reuse_cached(kept, &hard(1), hasher().hash(&hard(1)));
    let retain = || store.retain_if(other, &hard(2), hasher().hash(&hard(2)));
    store.retain_cached(kept);
    let drain = store.begin_drain("disk", 1).unwrap();
    assert!(!reuse() && !retain());
    store.cancel_drain(&drain);
    assert!(reuse() && retain());
}

#[test]
fn what_cannot_be_read_stays_and_the_rest_goes() {
    let corrupt = Arc::new(Corrupt::new(RamDevice::new("bad", 512)));
    let (store, mut scratch) = (store(1, vec![Box::new(corrupt.clone()), ram("good", 512)]), Scratch::new());
    let ids: Vec<_> = (0..10).map(|seed| put(&store, &hard(seed), &mut scratch).unwrap()).collect();
    corrupt.corrupt(3, 5, u64::MAX);
    let mut drain = store.begin_drain("bad", 0).unwrap();
    let report = round(&store, &mut drain);
    assert_eq!((report.moved, report.unreadable, store.left_to_drain(&drain)), (9, 1, 1));
    assert!(!store.end_drain(&drain));
    for (id, seed) in ids.iter().zip(0..).filter(|(_, seed)| *seed != 3) {
        check(&store, *id, &hard(seed), &mut scratch);
    }
    store.release(ids[3]);
    assert!(store.end_drain(&drain), "what was lost has been freed");
}

#[test]
fn a_device_that_fails_to_write_takes_none_and_nothing_is_lost() {
    let bad = Arc::new(Fail::new(RamDevice::new("bad", 512)));
    let (store, mut scratch) = (store(1, vec![ram("disk", 512), Box::new(bad.clone())]), Scratch::new());
    let ids: Vec<_> = (0..10).map(|seed| put(&store, &hard(seed), &mut scratch).unwrap()).collect();
    bad.fail_writes(When::From(0), Errno::IO);
    let mut drain = store.begin_drain("disk", 0).unwrap();
    let report = round(&store, &mut drain);
    assert_eq!((report.moved, report.refused), (0, 10));
    store.cancel_drain(&drain);
    for (id, seed) in ids.iter().zip(0..) {
        check(&store, *id, &hard(seed), &mut scratch);
    }
}

/// Threads store, load, share, cache and release while one device after the other goes and another
/// comes.
#[test]
fn devices_come_and_go_under_load() {
    let store = store(4, vec![ram("0", 8192), ram("1", 8192)]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (store, over) = (&store, &over);
            scope.spawn(move || load_and_release(store, over, thread));
        }
        let mut writeback = WritebackScratch::new();
        for turn in 0..40 {
            let mut drain = store.begin_drain(&turn.to_string(), 0).expect("there is room");
            while !store.end_drain(&drain) {
                let step = store.drain_step(&mut drain);
                assert_eq!(step.unreadable, 0, "turn {turn}");
                store.writeback(&mut writeback);
            }
            store.add_device(ram(&(turn + 2).to_string(), 8192), turn % 3).expect("fewer than 255");
        }
        over.store(true, Relaxed);
    });
    assert_eq!(store.stats().devices.iter().map(|device| device.slots_used).sum::<u64>(), 0);
    assert_eq!(store.stats().checksum_errors, 0);
}

fn load_and_release(store: &Store, over: &AtomicBool, thread: u64) {
    let (mut random, mut scratch) = (Random::new(thread + 1), Scratch::new());
    let mut held = Vec::new();
    let recipe = |seed: u64| page(seed, [300, 1400, PAGE_SIZE][(seed % 3) as usize]);
    while !over.load(Relaxed) {
        if held.len() < 1500 {
            let seed = random.next();
            held.extend(put(store, &recipe(seed), &mut scratch).map(|id| (id, seed)));
        }
        if held.is_empty() {
            continue;
        }
        let at = random.below(held.len() as u64) as usize;
        let (id, seed) = held[at];
        check(store, id, &recipe(seed), &mut scratch);
        if random.below(3) == 0 {
            store.release(id);
            held.swap_remove(at);
        }
    }
    held.into_iter().for_each(|(id, _)| store.release(id));
}
