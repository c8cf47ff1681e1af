//! Every row of what a device can do wrong, and what the user of the store gets.

mod common;

use std::sync::Arc;

use common::{check, hard, put, soft, store};
use uswap_core::PAGE_SIZE;
use uswap_device::{Corrupt, Device, Errno, Fail, RamDevice, When};
use uswap_store::{LoadError, ObjectId, PutError, Scratch, Store, WritebackScratch};

fn failing(name: &str, slots: u32) -> (Arc<Fail<RamDevice>>, Box<dyn Device>) {
    let device = Arc::new(Fail::new(RamDevice::new(name, slots)));
    (device.clone(), Box::new(device))
}

fn load(store: &Store, id: ObjectId, scratch: &mut Scratch) -> Result<(), LoadError> {
    store.load_blocking(id, &mut [0; PAGE_SIZE], scratch)
}

#[test]
fn read_error_names_device_slot_and_errno_and_others_go_on() {
    let (device, boxed) = failing("disk", 512);
    let (store, mut scratch) = (store(1, vec![boxed]), Scratch::new());
    let ids: Vec<_> = (0..4).map(|seed| put(&store, &hard(seed), &mut scratch).unwrap()).collect();
    device.fail_reads(When::Nth(0), Errno::IO);
    let error = load(&store, ids[2], &mut scratch).unwrap_err();
    assert_eq!(error, LoadError::Io { device: "disk".into(), slot: 2, errno: libc::EIO });
    assert_eq!(store.stats().devices[0].read_errors, 1);
    check(&store, ids[2], &hard(2), &mut scratch);
    check(&store, ids[1], &hard(1), &mut scratch);
}

#[test]
fn read_error_in_a_batch_hits_its_page_only() {
    let (device, boxed) = failing("disk", 512);
    let (store, mut scratch) = (store(1, vec![boxed]), Scratch::new());
    let ids: Vec<_> = (0..6).map(|seed| put(&store, &hard(seed), &mut scratch).unwrap()).collect();
    // The batch read fails, and of the pages then tried one by one the third.
    let wanted = [ids[0], ids[1], ids[2], ids[3]];
    let mut outs: Vec<_> = (0..4).map(|_| Box::new([0; PAGE_SIZE])).collect();
    let mut results = Vec::new();
    device.fail_reads(When::Nth(0), Errno::IO);
    store.load_many_blocking(&wanted, &mut outs, &mut results, &mut scratch);
    assert!(results.iter().all(Result::is_ok), "a batch that failed is tried page by page");
    device.fail_reads(When::From(0), Errno::IO);
    store.load_many_blocking(&wanted, &mut outs, &mut results, &mut scratch);
    assert!(results.iter().all(|r| matches!(r, Err(LoadError::Io { errno: libc::EIO, .. }))));
}

#[test]
fn a_flipped_bit_is_read_again_and_then_reported() {
    for compressed in [false, true] {
        let device = Arc::new(Corrupt::new(RamDevice::new("disk", 512)));
        let (store, mut scratch) = (store(1, vec![Box::new(device.clone())]), Scratch::new());
        let page = if compressed { soft(1) } else { hard(1) };
        let id = put(&store, &page, &mut scratch).unwrap();
        if compressed {
            store.set_pool_limit(0);
            assert_eq!(store.writeback(&mut WritebackScratch::new()).written, 1);
        }
        device.corrupt(0, 77, 1);
        check(&store, id, &page, &mut scratch);
        assert_eq!(store.stats().checksum_errors, 1);
        device.corrupt(0, 77, u64::MAX);
        let expected = LoadError::Checksum { device: Some("disk".into()), slot: 0 };
        assert_eq!(load(&store, id, &mut scratch), Err(expected.clone()));
        let mut results = Vec::new();
        store.load_many_blocking(&[id], &mut [Box::new([0; PAGE_SIZE])], &mut results, &mut scratch);
        assert_eq!(results, [Err(expected)]);
        device.corrupt(0, 77, 0);
        check(&store, id, &page, &mut scratch);
    }
}

#[test]
fn write_error_goes_to_the_next_device_and_latches_after_three() {
    let (first, first_box) = failing("first", 512);
    let (_, second_box) = failing("second", 512);
    let (store, mut scratch) = (store(1, vec![first_box, second_box]), Scratch::new());
    let early = put(&store, &hard(0), &mut scratch).unwrap();
    first.fail_writes(When::Nth(0), Errno::IO);
    let id = put(&store, &hard(1), &mut scratch).unwrap();
    check(&store, id, &hard(1), &mut scratch);
    assert_eq!(store.stats().devices[0].write_errors, 1);

    first.fail_writes(When::From(0), Errno::IO);
    let ids: Vec<_> = (0..5).map(|seed| put(&store, &hard(seed), &mut scratch).unwrap()).collect();
    let status = &store.stats().devices[0];
    assert!(status.latched_off);
    assert_eq!(status.write_errors, 4, "one that passed, three in a row, then no more are tried");
    first.fail_writes(When::Never, Errno::IO);
    let after = put(&store, &hard(9), &mut scratch).unwrap();
    assert_eq!(store.stats().devices[0].slots_used, 2);
    check(&store, early, &hard(0), &mut scratch);
    check(&store, after, &hard(9), &mut scratch);
    ids.iter().zip(0..).for_each(|(&id, seed)| check(&store, id, &hard(seed), &mut scratch));
}

#[test]
fn without_a_good_device_pages_stay_in_the_pool() {
    let (device, boxed) = failing("disk", 512);
    let (store, mut scratch, mut wb) = (store(2, vec![boxed]), Scratch::new(), WritebackScratch::new());
    device.fail_writes(When::From(0), Errno::IO);
    assert_eq!(put(&store, &hard(0), &mut scratch), Err(PutError::Full));
    let mut ids = Vec::new();
    while let Ok(id) = put(&store, &soft(ids.len() as u64), &mut scratch) {
        ids.push(id);
    }
    for _ in 0..10 {
        if store.needs_writeback() {
            assert_eq!(store.writeback(&mut wb).written, 0);
        }
    }
    assert!(!store.needs_writeback(), "no endless attempts");
    assert!(store.stats().devices[0].latched_off && store.stats().reject_reclaim_fail > 0);
    ids.iter().zip(0..).for_each(|(&id, seed)| check(&store, id, &soft(seed), &mut scratch));
    ids.into_iter().for_each(|id| store.release(id));
    assert_eq!(store.stats().stored_pages, 0);
}

#[test]
fn no_space_is_no_room_not_an_error() {
    let (device, boxed) = failing("disk", 8 * 512);
    let (store, mut scratch) = (store(1, vec![boxed]), Scratch::new());
    let mut ids: Vec<_> = (0..600).map(|seed| put(&store, &hard(seed), &mut scratch).unwrap()).collect();
    device.fail_writes(When::From(0), Errno::NO_SPACE);
    assert_eq!(put(&store, &hard(700), &mut scratch), Err(PutError::Full));
    device.fail_writes(When::Never, Errno::NO_SPACE);
    let status = &store.stats().devices[0];
    assert!(status.out_of_room && !status.latched_off);
    assert_eq!((status.write_errors, status.slots_used), (0, 600));
    assert_eq!(put(&store, &hard(700), &mut scratch), Err(PutError::Full), "not even tried");
    store.release(ids.swap_remove(3));
    let id = put(&store, &hard(700), &mut scratch).expect("a freed slot owns its room");
    check(&store, id, &hard(700), &mut scratch);
    ids.drain(..350).for_each(|id| store.release(id));
    assert!(!store.stats().devices[0].out_of_room, "half of it is free again: new room is tried");
}

#[test]
fn no_space_during_writeback_keeps_the_pages_and_stops_asking() {
    let (device, boxed) = failing("disk", 8 * 512);
    let (store, mut scratch, mut wb) = (store(4, vec![boxed]), Scratch::new(), WritebackScratch::new());
    let mut ids = Vec::new();
    while !store.needs_writeback() {
        ids.push(put(&store, &soft(ids.len() as u64), &mut scratch).unwrap());
    }
    device.fail_writes(When::From(0), Errno::NO_SPACE);
    for _ in 0..20 {
        if store.needs_writeback() {
            store.writeback(&mut wb);
        }
    }
    assert!(!store.needs_writeback());
    assert_eq!(store.stats().devices[0].no_room, 1, "one write found out");
    ids.iter().zip(0..).for_each(|(&id, seed)| check(&store, id, &soft(seed), &mut scratch));
    device.fail_writes(When::Never, Errno::NO_SPACE);
    store.retry_room();
    while store.needs_writeback() {
        assert!(store.writeback(&mut wb).progressed());
    }
    assert!(store.stats().written_back_pages > 0);
}

#[test]
fn damage_in_the_pool_is_noticed() {
    let (store, mut scratch) = (store(1, vec![]), Scratch::new());
    // Stored under the hash of another page: the same as if its bytes had changed since.
    let id = store.put(&soft(1), common::hasher().hash(&soft(2)), &mut scratch).unwrap();
    let expected = LoadError::Checksum { device: None, slot: 0 };
    assert_eq!(store.load(id, &mut [0; PAGE_SIZE]).unwrap_err(), expected);
    assert_eq!(load(&store, id, &mut scratch), Err(expected));
    store.release(id);
}
