//! How pages move between the pool and the devices: limit, writeback, batching, trimming, the swap
//! cache.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{SLAB, check, hard, hasher, page, put, soft, store};
use uswap_core::PAGE_SIZE;
use uswap_device::{Delay, Device, RamDevice, Stats};
use uswap_store::{Load, LoadError, ObjectId, PutError, Scratch, Store, Tuning, WritebackScratch};

fn counted(slots: u32) -> (Arc<Stats<RamDevice>>, Vec<Box<dyn Device>>) {
    let device = Arc::new(Stats::new(RamDevice::new("ram", slots)));
    (device.clone(), vec![Box::new(device)])
}

fn put_soft(store: &Store, seeds: std::ops::Range<u64>, scratch: &mut Scratch) -> Vec<ObjectId> {
    seeds.map(|seed| put(store, &soft(seed), scratch).expect("room")).collect()
}

/// Puts until writeback is wanted.
fn fill_pool(store: &Store, scratch: &mut Scratch) -> Vec<ObjectId> {
    let mut ids = Vec::new();
    while !store.needs_writeback() {
        ids.push(put(store, &soft(ids.len() as u64), scratch).expect("room"));
    }
    ids
}

#[test]
fn without_devices_the_pool_limit_is_the_end() {
    let (store, mut scratch) = (store(8, vec![]), Scratch::new());
    let mut ids = Vec::new();
    while let Ok(id) = put(&store, &soft(ids.len() as u64), &mut scratch) {
        ids.push(id);
        assert!(store.pool_bytes() <= 8 * SLAB);
    }
    assert!(ids.len() > 400, "{} pages in 8 slabs", ids.len());
    assert_eq!(put(&store, &hard(0), &mut scratch), Err(PutError::Full));
    let zero = put(&store, &[0; PAGE_SIZE], &mut scratch).expect("a same-filled page takes no pool memory");
    let report = store.writeback(&mut WritebackScratch::new());
    assert!(!report.progressed());
    assert!(!store.needs_writeback(), "asked again only when something has changed");
    for (seed, &id) in ids.iter().enumerate() {
        check(&store, id, &soft(seed as u64), &mut scratch);
    }
    let stats = store.stats();
    assert_eq!((stats.pool_limit_hit, stats.reject_compress_poor, stats.put_full), (1, 1, 2));
    assert_eq!((stats.stored_pages, stats.same_filled_pages), (ids.len() as u64 + 1, 1));
    assert_eq!(stats.zswpout, ids.len() as u64 + 1);
    store.release(zero);
    ids.into_iter().for_each(|id| store.release(id));
    assert_eq!(store.stats().stored_pages, 0);
}

#[test]
fn writeback_starts_at_95_stops_at_90_and_writes_contiguously() {
    let (device, devices) = counted(4096);
    let (store, mut scratch, mut wb) = (store(40, devices), Scratch::new(), WritebackScratch::new());
    let ids = fill_pool(&store, &mut scratch);
    assert!(store.pool_bytes() * 100 > 40 * SLAB * 95);
    while store.needs_writeback() {
        assert!(store.writeback(&mut wb).progressed());
    }
    assert!(store.pool_bytes() * 100 <= 40 * SLAB * 90);
    let (stats, counters) = (store.stats(), device.counters());
    assert!(stats.written_back_pages > 0);
    assert_eq!(stats.written_back_pages, stats.pswpout);
    let disk = &stats.devices[0];
    assert_eq!((stats.zswpwb, disk.packed_objects), (stats.written_back_pages, stats.written_back_pages));
    assert_eq!(counters.write_calls, counters.write_pages.div_ceil(64), "one write of 256 KiB for each batch");
    assert_eq!((disk.written_bytes, disk.slots_used), (counters.write_pages << 12, disk.packed_slots));
    assert_eq!(counters.write_pages, disk.slots_used, "nothing was freed");
    // 1024 bytes of noise, what lz4 says of the rest, and half a unit.
    let each = disk.written_bytes as f64 / stats.written_back_pages as f64;
    assert!((1024.0..1170.0).contains(&each), "{each} bytes for each page");
    for (seed, &id) in ids.iter().enumerate() {
        check(&store, id, &soft(seed as u64), &mut scratch);
    }
}

/// Where the least that is read is a page, each packed object costs one; across slots a third of
/// these cost two.
#[test]
fn on_a_device_of_whole_pages_a_lonely_object_costs_one_page() {
    let read_by = |tuning: Tuning| {
        let (device, devices) = counted(4096);
        let (store, mut scratch, mut wb) = (store(40, devices), Scratch::new(), WritebackScratch::new());
        store.tune(Tuning { eager_writeback: true, whole_pages: true, ..tuning });
        let sizes = |seed: u64| page(seed, 200 + (seed as usize * 677) % 2700);
        let ids: Vec<_> = (0..600).map(|seed| put(&store, &sizes(seed), &mut scratch).expect("room")).collect();
        while store.needs_writeback() {
            assert!(store.writeback(&mut wb).progressed());
        }
        for (id, seed) in ids.iter().zip(0..) {
            check(&store, *id, &sizes(seed), &mut scratch);
        }
        let (counters, stats) = (device.counters(), store.stats());
        assert_eq!((counters.read_calls, stats.devices[0].packed_objects), (600, 600));
        ids.into_iter().for_each(|id| store.release(id));
        assert_eq!(store.stats().devices[0].slots_used, 0, "every slot is free again");
        (counters.read_pages, stats.devices[0].packed_slots)
    };
    let (within, slots) = read_by(Tuning::default());
    let (across, fewer_slots) = read_by(Tuning { crossing: true, ..Tuning::default() });
    assert_eq!(within, 600);
    assert!(across > 780, "{across} pages were read");
    assert!(slots > fewer_slots && slots < 600, "{slots} slots beside {fewer_slots}");
}

#[test]
fn loaded_objects_get_a_second_chance() {
    let (_, devices) = counted(4096);
    let (store, mut scratch, mut wb) = (store(40, devices), Scratch::new(), WritebackScratch::new());
    let ids = fill_pool(&store, &mut scratch);
    let mut out = [0; PAGE_SIZE];
    for &id in &ids[..500] {
        assert_eq!(store.load(id, &mut out), Ok(Load::Ready));
    }
    while store.needs_writeback() {
        store.writeback(&mut wb);
    }
    let written: Vec<bool> = ids.iter().map(|&id| store.load(id, &mut out) == Ok(Load::OnDevice)).collect();
    let (hot, cold) = written.split_at(500);
    assert_eq!(hot.iter().filter(|&&w| w).count(), 0);
    assert!(cold.iter().filter(|&&w| w).count() > 0);
}

#[test]
fn batch_of_incompressible_pages_is_one_write_and_one_read() {
    let (device, devices) = counted(4096);
    let (store, mut scratch) = (store(8, devices), Scratch::new());
    let pages: Vec<_> = (0..100).map(hard).collect();
    let batch: Vec<_> = pages.iter().map(|p| (p, hasher().hash(p))).collect();
    let mut out = Vec::new();
    store.put_batch(&batch, &mut out, &mut scratch);
    assert_eq!(device.counters().write_calls, 1);
    let ids: Vec<_> = out.iter().map(|r| r.unwrap()).collect();
    let mut outs: Vec<_> = ids.iter().map(|_| Box::new([0; PAGE_SIZE])).collect();
    let mut results = Vec::new();
    store.load_many_blocking(&ids, &mut outs, &mut results, &mut scratch);
    assert!(results.iter().all(Result::is_ok));
    assert!(outs.iter().zip(&pages).all(|(out, page)| **out == *page));
    assert_eq!((device.counters().read_calls, store.stats().pswpin), (1, 100));
}

#[test]
fn freed_clusters_are_discarded() {
    let (device, devices) = counted(16 * 512);
    let (store, mut scratch) = (store(8, devices), Scratch::new());
    let ids: Vec<_> = (0..8 * 512).map(|seed| put(&store, &hard(seed), &mut scratch).unwrap()).collect();
    ids.into_iter().for_each(|id| store.release(id));
    assert!(store.trim() > 0);
    assert_eq!(device.counters().discarded % 512, 0);
    let id = put(&store, &hard(1), &mut scratch).unwrap();
    check(&store, id, &hard(1), &mut scratch);
}

#[test]
fn cached_copies_are_reused_or_given_up_before_anything_is_written() {
    let (device, devices) = counted(4096);
    let (store, mut scratch, mut wb) = (store(40, devices), Scratch::new(), WritebackScratch::new());
    let ids = fill_pool(&store, &mut scratch);
    ids.iter().for_each(|&id| store.make_cached(id));
    assert!(store.reuse_cached(ids[7], &soft(7), hasher().hash(&soft(7))));
    assert!(!store.reuse_cached(ids[8], &soft(0), hasher().hash(&soft(0))));
    while store.needs_writeback() {
        store.writeback(&mut wb);
    }
    assert_eq!(device.counters().write_calls, 0);
    check(&store, ids[7], &soft(7), &mut scratch);
    let mut out = [0; PAGE_SIZE];
    let gone: Vec<_> = ids.iter().copied().filter(|&id| id != ids[8] && store.load(id, &mut out).is_err()).collect();
    assert_eq!(gone.len() as u64, store.stats().cache_given_up);
    assert_eq!(store.load(gone[0], &mut out), Err(LoadError::Gone));
    let seed = ids.iter().position(|&id| id == gone[0]).unwrap() as u64;
    assert!(!store.reuse_cached(gone[0], &soft(seed), hasher().hash(&soft(seed))), "equal, but the copy is gone");
}

#[test]
fn cached_copies_on_a_full_device_make_room() {
    let (store, mut scratch) = (store(1, vec![Box::new(RamDevice::new("ram", 512))]), Scratch::new());
    let ids: Vec<_> = (0..512).map(|seed| put(&store, &hard(seed), &mut scratch).unwrap()).collect();
    assert_eq!(put(&store, &hard(600), &mut scratch), Err(PutError::Full));
    store.retain(ids[3]);
    store.make_cached(ids[3]);
    assert_eq!(put(&store, &hard(600), &mut scratch), Err(PutError::Full), "an authoritative reference is left");
    store.make_cached(ids[4]);
    let id = put(&store, &hard(600), &mut scratch).unwrap();
    check(&store, id, &hard(600), &mut scratch);
    check(&store, ids[3], &hard(3), &mut scratch);
}

#[test]
fn readers_and_releases_do_not_wait_for_a_write() {
    let write = Duration::from_millis(900);
    let slow = Delay::new(RamDevice::new("ram", 4096), Duration::ZERO, write);
    let (store, mut scratch) = (store(10, vec![Box::new(slow)]), Scratch::new());
    let ids = fill_pool(&store, &mut scratch);
    std::thread::scope(|s| {
        let writer = s.spawn(|| store.writeback(&mut WritebackScratch::new()));
        std::thread::sleep(write / 4);
        let start = Instant::now();
        let mut out = [0; PAGE_SIZE];
        for (seed, &id) in ids.iter().enumerate() {
            assert_eq!(store.load(id, &mut out), Ok(Load::Ready));
            assert!(out == soft(seed as u64));
        }
        ids.iter().step_by(2).for_each(|&id| store.release(id));
        assert!(start.elapsed() < write / 2 && !writer.is_finished());
        assert!(writer.join().unwrap().written > 0);
    });
    for (seed, &id) in ids.iter().enumerate().skip(1).step_by(2) {
        check(&store, id, &soft(seed as u64), &mut scratch);
        store.release(id);
    }
    let stats = store.stats();
    assert_eq!((stats.stored_pages, stats.devices[0].slots_used), (0, 0), "freed meanwhile is freed on both sides");
}

#[test]
fn compaction_gives_memory_back_without_writing() {
    let (device, devices) = counted(4096);
    let (store, mut scratch, mut wb) = (store(40, devices), Scratch::new(), WritebackScratch::new());
    let ids = fill_pool(&store, &mut scratch);
    let (kept, freed): (Vec<_>, Vec<_>) = ids.iter().enumerate().partition(|(i, _)| i % 4 != 0);
    freed.iter().for_each(|&(_, &id)| store.release(id));
    while store.needs_writeback() {
        assert!(store.writeback(&mut wb).progressed());
    }
    assert!(store.stats().compact_moved > 0);
    assert_eq!(device.counters().write_calls, 0);
    for (seed, &id) in kept {
        check(&store, id, &soft(seed as u64), &mut scratch);
    }
}

#[test]
fn lowered_limit_is_reached_by_writeback() {
    let (_, devices) = counted(8192);
    let (store, mut scratch, mut wb) = (store(64, devices), Scratch::new(), WritebackScratch::new());
    let ids = put_soft(&store, 0..3000, &mut scratch);
    store.set_pool_limit(8 * SLAB);
    while store.needs_writeback() {
        assert!(store.writeback(&mut wb).progressed());
    }
    assert!(store.pool_bytes() <= 8 * SLAB);
    for (seed, &id) in ids.iter().enumerate() {
        check(&store, id, &soft(seed as u64), &mut scratch);
    }
}

#[test]
fn holes_become_room_for_other_sizes_without_any_device() {
    let (store, mut scratch, mut wb) = (store(16, vec![]), Scratch::new(), WritebackScratch::new());
    let mut ids = Vec::new();
    while let Ok(id) = put(&store, &soft(ids.len() as u64), &mut scratch) {
        ids.push(id);
    }
    while store.needs_writeback() {
        store.writeback(&mut wb);
    }
    let small = common::page(9, 200);
    assert_eq!(put(&store, &small, &mut scratch), Err(PutError::Full));
    let (kept, freed): (Vec<_>, Vec<_>) = ids.iter().enumerate().partition(|(i, _)| i % 4 == 0);
    freed.iter().for_each(|&(_, &id)| store.release(id));
    while store.needs_writeback() {
        store.writeback(&mut wb);
    }
    put(&store, &small, &mut scratch).expect("compaction made whole slabs of the holes");
    for (seed, &id) in kept {
        check(&store, id, &soft(seed as u64), &mut scratch);
    }
}
