//! Pages loaded by one request that nobody waits for: planned, read by hand, accepted or not.

mod common;

use common::{hard, put, soft, store};
use uswap_core::PAGE_SIZE;
use uswap_device::{Device, RamDevice};
use uswap_store::{ObjectId, PageLoad, QueuedLoad, Scratch, Store, WritebackScratch};
use uswap_sys::AlignedBuf;

use std::sync::Arc;

const ROOM: usize = 4 * PAGE_SIZE;

fn loads(ids: &[ObjectId]) -> Vec<PageLoad> {
    ids.iter().map(|id| PageLoad::new(0, *id)).collect()
}

/// Does what the plan says.
fn perform(device: &dyn Device, plan: &QueuedLoad) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed(ROOM);
    device.read_part(plan.slot, plan.skip, &mut bytes[plan.at..plan.at + plan.length]).expect("a read");
    bytes
}

fn whole_pages(count: u64) -> (Store, Arc<RamDevice>, Vec<ObjectId>) {
    let device = Arc::new(RamDevice::new("ram", 1024));
    let (store, mut scratch) = (store(8, vec![Box::new(device.clone())]), Scratch::new());
    let pages: Vec<_> = (0..count).map(hard).collect();
    let batch: Vec<_> = pages.iter().map(|page| (page, common::hasher().hash(page))).collect();
    let mut ids = Vec::new();
    store.put_batch(&batch, &mut ids, &mut scratch);
    (store, device, ids.into_iter().map(|id| id.expect("room")).collect())
}

/// Compressed pages that lie packed on a device, in the order in which they lie.
fn packed_pages() -> (Store, Arc<RamDevice>, Vec<(ObjectId, u64)>) {
    let device = Arc::new(RamDevice::new("ram", 1024));
    let (store, mut scratch, mut wb) =
        (store(2, vec![Box::new(device.clone())]), Scratch::new(), WritebackScratch::new());
    let mut all = Vec::new();
    for seed in 0..400 {
        all.push((put(&store, &soft(seed), &mut scratch).expect("room"), seed));
        while store.needs_writeback() && store.writeback(&mut wb).progressed() {}
    }
    all.retain(|(id, _)| store.spot_of(*id).is_some());
    all.sort_by_key(|(id, _)| store.spot_of(*id));
    assert!(all.len() > 100, "most must have gone to the device");
    (store, device, all)
}

#[test]
fn neighbouring_slots_are_one_request_straight_to_their_places() {
    let (store, device, ids) = whole_pages(8);
    let mut pages = loads(&ids[2..5]);
    let plan = store.plan_queued(&pages, ROOM).expect("one request");
    assert_eq!((plan.at, plan.length), (0, 3 * PAGE_SIZE));
    let mut bytes = perform(&*device, &plan);
    assert!(store.accept_queued(&plan, &mut pages, &mut bytes));
    assert!(pages.iter().all(|page| page.result.is_ok()));
    assert!((0..3).all(|n| bytes[n * PAGE_SIZE..(n + 1) * PAGE_SIZE] == hard(n as u64 + 2)));
    assert!(store.plan_queued(&loads(&[ids[0], ids[2]]), ROOM).is_none(), "a hole between them");
    assert!(store.plan_queued(&loads(&ids[..5]), ROOM).is_none(), "more than there is room for");
    assert!(store.plan_queued(&[], ROOM).is_none());
}

#[test]
fn packed_pages_are_expanded_to_their_places() {
    let (store, device, all) = packed_pages();
    let mut planned = 0;
    for pair in all.windows(2) {
        for count in [1, 2] {
            let ids: Vec<_> = pair[..count].iter().map(|(id, _)| *id).collect();
            let mut pages = loads(&ids);
            let Some(plan) = store.plan_queued(&pages, ROOM) else { continue };
            let mut bytes = perform(&*device, &plan);
            assert!(plan.at >= count * PAGE_SIZE && store.accept_queued(&plan, &mut pages, &mut bytes));
            for (n, (_, seed)) in pair[..count].iter().enumerate() {
                assert!(bytes[n * PAGE_SIZE..(n + 1) * PAGE_SIZE] == soft(*seed), "seed {seed}");
            }
            planned += 1;
        }
    }
    assert!(planned > all.len(), "single pages always, and most pairs");
}

#[test]
fn what_is_in_the_pool_needs_no_request() {
    let (store, mut scratch) = (store(8, vec![Box::new(RamDevice::new("ram", 512))]), Scratch::new());
    let id = put(&store, &soft(1), &mut scratch).expect("room");
    assert!(store.plan_queued(&loads(&[id]), ROOM).is_none());
}

/// One wrong bit anywhere: that page is refused, its neighbour is not.
#[test]
fn wrong_bytes_are_refused() {
    let (store, device, ids) = whole_pages(2);
    let mut pages = loads(&ids);
    let plan = store.plan_queued(&pages, ROOM).expect("one request");
    for bit in [0, 7, PAGE_SIZE * 8 - 1] {
        let mut bytes = perform(&*device, &plan);
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!store.accept_queued(&plan, &mut pages, &mut bytes));
        assert!(pages[0].result.is_err() && pages[1].result.is_ok(), "bit {bit}");
    }
    let (store, device, all) = packed_pages();
    let mut pages = loads(&[all[9].0]);
    let plan = store.plan_queued(&pages, ROOM).expect("one request");
    let mut bytes = perform(&*device, &plan);
    bytes[plan.at..].fill(0x5A);
    assert!(!store.accept_queued(&plan, &mut pages, &mut bytes) && pages[0].result.is_err());
}

/// A page that was freed while it was read, and whose slot holds another's bytes by then: never
/// taken for the old one.
#[test]
fn a_page_that_moved_meanwhile_is_refused() {
    let devices: Vec<Box<dyn Device>> =
        vec![Box::new(RamDevice::new("one", 1024)), Box::new(RamDevice::new("two", 1024))];
    let (store, mut scratch) = (store(8, devices), Scratch::new());
    let ids: Vec<_> = (0..4).map(|seed| put(&store, &hard(seed), &mut scratch).expect("room")).collect();
    let mut pages = loads(&ids[..1]);
    let plan = store.plan_queued(&pages, ROOM).expect("one request");
    let mut drain = store.begin_drain("one", 0).expect("room on the other");
    while store.left_to_drain(&drain) > 0 {
        store.drain_step(&mut drain);
    }
    let mut bytes = AlignedBuf::zeroed(ROOM);
    bytes[..PAGE_SIZE].copy_from_slice(&hard(0));
    assert!(!store.accept_queued(&plan, &mut pages, &mut bytes), "it lies elsewhere now: to be looked up again");
    let plan = store.plan_queued(&loads(&ids[..1]), ROOM).expect("on the other");
    assert_eq!(plan.device, 1);
}
