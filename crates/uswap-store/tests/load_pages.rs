//! Pages loaded to where they shall be, from whatever place they lie in.

mod common;

use std::sync::Arc;

use common::{hard, put, soft, store};
use uswap_core::PAGE_SIZE;
use uswap_device::{Corrupt, Device, Errno, Fail, RamDevice, Stats, When};
use uswap_store::{LoadError, LoadScratch, PageLoad, Scratch, Store, WritebackScratch};
use uswap_sys::AlignedBuf;

fn load(store: &Store, pages: &mut [PageLoad]) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed(pages.len() * PAGE_SIZE);
    store.load_pages(pages, &mut bytes, &mut LoadScratch::default());
    bytes
}

/// Compressed and whole, in the pool and on two devices, in an order that is no device's.
#[test]
fn pages_from_everywhere_each_come_to_their_place() {
    let devices: Vec<Box<dyn Device>> =
        vec![Box::new(RamDevice::new("one", 512)), Box::new(RamDevice::new("two", 2048))];
    let (store, mut scratch, mut wb) = (store(4, devices), Scratch::new(), WritebackScratch::new());
    let mut all = Vec::new();
    for seed in 0..1800u64 {
        let page = match seed % 3 {
            0 => hard(seed),
            1 => soft(seed),
            _ => [seed as u8; PAGE_SIZE],
        };
        all.push((put(&store, &page, &mut scratch).expect("room"), page));
        while store.needs_writeback() && store.writeback(&mut wb).progressed() {}
    }
    let stats = store.stats();
    assert!(stats.written_back_pages > 50, "compressed ones must lie on devices too");
    let order = |n: usize| (n * 577) % 1800;
    let mut pages: Vec<PageLoad> = (0..1800).map(|n| PageLoad::new(n as u64, all[order(n)].0)).collect();
    let bytes = load(&store, &mut pages);
    for (n, (load, page)) in pages.iter().zip(bytes.chunks(PAGE_SIZE)).enumerate() {
        assert_eq!(load.result, Ok(()));
        assert!(page == all[order(n)].1, "page {n}");
    }
}

#[test]
fn neighbours_are_one_request_also_beside_others() {
    let device = Arc::new(Stats::new(RamDevice::new("ram", 4096)));
    let (store, mut scratch) = (store(8, vec![Box::new(device.clone())]), Scratch::new());
    let pages: Vec<_> = (0..60).map(hard).collect();
    let batch: Vec<_> = pages.iter().map(|page| (page, common::hasher().hash(page))).collect();
    let mut ids = Vec::new();
    store.put_batch(&batch, &mut ids, &mut scratch);
    let in_pool = put(&store, &soft(1), &mut scratch).expect("room");
    let mut order: Vec<_> = ids.iter().map(|id| id.expect("room")).collect();
    order.insert(30, in_pool);
    let mut loads: Vec<PageLoad> = order.into_iter().map(|id| PageLoad::new(0, id)).collect();
    let bytes = load(&store, &mut loads);
    assert!(loads.iter().all(|load| load.result.is_ok()));
    assert!(bytes[30 * PAGE_SIZE..31 * PAGE_SIZE] == soft(1) && bytes[31 * PAGE_SIZE..32 * PAGE_SIZE] == hard(30));
    let counters = device.counters();
    assert_eq!((counters.read_calls, counters.read_pages), (1, 60), "all are handed over at once");
}

#[test]
fn a_bad_page_is_read_again_and_a_lost_one_harms_no_other() {
    let device = Arc::new(Corrupt::new(Fail::new(RamDevice::new("disk", 512))));
    let (store, mut scratch) = (store(8, vec![Box::new(device.clone())]), Scratch::new());
    let ids: Vec<_> = (0..8).map(|seed| put(&store, &hard(seed), &mut scratch).expect("room")).collect();
    let loads = || -> Vec<PageLoad> { ids.iter().map(|id| PageLoad::new(0, *id)).collect() };
    device.corrupt(3, 77, 1);
    let mut once = loads();
    let bytes = load(&store, &mut once);
    assert!(once.iter().all(|load| load.result.is_ok()) && bytes[3 * PAGE_SIZE..4 * PAGE_SIZE] == hard(3));
    device.corrupt(3, 77, u64::MAX);
    let mut always = loads();
    let bytes = load(&store, &mut always);
    let expected = LoadError::Checksum { device: Some("disk".into()), slot: 3 };
    assert_eq!(always[3].result, Err(expected));
    for n in (0..8).filter(|n| *n != 3) {
        assert!(always[n].result.is_ok() && bytes[n * PAGE_SIZE..(n + 1) * PAGE_SIZE] == hard(n as u64));
    }
}

#[test]
fn an_error_of_the_device_is_named_for_each_page() {
    let device = Arc::new(Fail::new(RamDevice::new("disk", 512)));
    let (store, mut scratch) = (store(8, vec![Box::new(device.clone())]), Scratch::new());
    let ids: Vec<_> = (0..3).map(|seed| put(&store, &hard(seed), &mut scratch).expect("room")).collect();
    device.fail_reads(When::From(0), Errno::IO);
    let mut loads: Vec<PageLoad> = ids.iter().map(|id| PageLoad::new(0, *id)).collect();
    load(&store, &mut loads);
    for (slot, load) in loads.iter().enumerate() {
        let expected = LoadError::Io { device: "disk".into(), slot: slot as u32, errno: libc::EIO };
        assert_eq!(load.result, Err(expected));
    }
}
