//! The memory tier: allocators, compressors and what they count, each alone and changing while
//! pages come and go.

mod common;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::{SLAB, check, compressors, hard, hasher, page, put, soft, store_in};
use uswap_core::PAGE_SIZE;
use uswap_device::{Device, RamDevice};
use uswap_store::{
    AllocatorKind, Compression, LoadError, ObjectId, PutError, Scratch, Store, StoreStats, Tier, WritebackScratch,
};

fn by(name: &str) -> Compression {
    name.parse().expect("a compressor")
}

/// Every allocator with every compressor.
fn tiers() -> impl Iterator<Item = Tier> {
    [AllocatorKind::Slab, AllocatorKind::Zbud]
        .into_iter()
        .flat_map(|allocator| compressors().into_iter().map(move |compression| Tier { allocator, compression }))
}

fn ram(slots: u32) -> Vec<(Box<dyn Device>, i32)> {
    vec![(Box::new(RamDevice::new("ram", slots)), 0)]
}

/// A store with its workers' memory.
struct Rig {
    store: Store,
    scratch: Scratch,
    writeback: WritebackScratch,
}

impl Rig {
    fn new(slabs: u64, tier: Tier, devices: Vec<(Box<dyn Device>, i32)>) -> Self {
        Self { store: store_in(slabs, tier, devices), scratch: Scratch::new(), writeback: WritebackScratch::new() }
    }

    fn put(&mut self, page: &[u8; PAGE_SIZE]) -> Result<ObjectId, PutError> {
        put(&self.store, page, &mut self.scratch)
    }

    /// The counters that grow, with by how much, while `act` is done. Gauges are left out.
    fn grown(&mut self, act: impl FnOnce(&mut Self)) -> Vec<(&'static str, u64)> {
        let before = counters(&self.store.stats());
        act(self);
        let after = counters(&self.store.stats());
        let pairs = before.into_iter().zip(after);
        pairs.filter(|(old, new)| old.1 != new.1).map(|(old, new)| (new.0, new.1 - old.1)).collect()
    }
}

fn counters(stats: &StoreStats) -> Vec<(&'static str, u64)> {
    vec![
        ("reject_compress_poor", stats.reject_compress_poor),
        ("reject_compress_fail", stats.reject_compress_fail),
        ("pool_limit_hit", stats.pool_limit_hit),
        ("reject_alloc_fail", stats.reject_alloc_fail),
        ("reject_kmemcache_fail", stats.reject_kmemcache_fail),
        ("decompress_fail", stats.decompress_fail),
        ("checksum_errors", stats.checksum_errors),
        ("written_back_pages", stats.written_back_pages),
        ("reject_reclaim_fail", stats.reject_reclaim_fail),
        ("put_full", stats.put_full),
        ("zswpout", stats.zswpout),
        ("zswpin", stats.zswpin),
        ("pswpout", stats.pswpout),
        ("pswpin", stats.pswpin),
    ]
}

#[test]
fn every_page_comes_back_by_every_compressor_and_allocator() {
    for tier in tiers() {
        let mut rig = Rig::new(64, tier, ram(512));
        let pages: Vec<_> = (0..300).map(|n| page(n, n as usize * 13)).collect();
        let ids: Vec<_> = pages.iter().map(|page| rig.put(page).expect("room")).collect();
        for (id, page) in ids.iter().zip(&pages) {
            check(&rig.store, *id, page, &mut rig.scratch);
        }
        let stats = rig.store.stats();
        assert_eq!(stats.compressor, tier.compression.to_string());
        assert!(stats.pool_bytes >= stats.stored_bytes && stats.pool_max_bytes == stats.pool_bytes, "{stats:?}");
        ids.into_iter().for_each(|id| rig.store.release(id));
        let stats = rig.store.stats();
        assert_eq!((stats.pool_bytes, stats.stored_bytes, stats.stored_pages), (0, 0, 0), "empty memory goes at once");
    }
}

#[test]
fn objects_of_one_compressor_stay_readable_under_another_in_memory_and_on_a_device() {
    for allocator in [AllocatorKind::Slab, AllocatorKind::Zbud] {
        let mut rig = Rig::new(40, Tier { allocator, compression: by("lz4") }, ram(4096));
        let (each, mut held) = (compressors(), Vec::new());
        while !rig.store.needs_writeback() {
            let seed = held.len() as u64;
            rig.store.set_compression(each[seed as usize % each.len()]).expect("memory for it");
            held.push((rig.put(&soft(seed)).expect("room"), seed));
        }
        rig.store.set_compression(by("zstd:5")).expect("memory for zstd");
        assert_eq!(rig.store.stats().compressor, "zstd:5");
        held.iter().for_each(|&(id, seed)| check(&rig.store, id, &soft(seed), &mut rig.scratch));
        // All were loaded just now: some rounds only take the second chances away.
        for _ in 0..100 {
            rig.store.needs_writeback().then(|| rig.store.writeback(&mut rig.writeback));
        }
        assert!(!rig.store.needs_writeback());
        assert!(rig.store.stats().written_back_pages > 0);
        held.iter().for_each(|&(id, seed)| check(&rig.store, id, &soft(seed), &mut rig.scratch));
        assert!(rig.store.stats().pswpin > 0, "some came from the device");
    }
}

/// One page of ten is damaged in the pool: that page is lost, and said to be, and no other.
#[test]
fn damage_in_the_pool_is_caught_by_every_compressor_and_allocator() {
    for tier in tiers() {
        let mut rig = Rig::new(64, tier, vec![]);
        rig.store.faults.flip.set(10);
        let ids: Vec<_> = (0..200).map(|seed| rig.put(&soft(seed)).expect("room")).collect();
        let mut out = [0; PAGE_SIZE];
        for (seed, &id) in ids.iter().enumerate() {
            match rig.store.load(id, &mut out) {
                Ok(_) => assert!(seed % 10 != 9 && out == soft(seed as u64), "{tier:?}: page {seed}"),
                Err(error) => {
                    assert_eq!(error, LoadError::Checksum { device: None, slot: 0 });
                    assert_eq!(seed % 10, 9, "{tier:?}");
                }
            }
        }
        let stats = rig.store.stats();
        assert_eq!((stats.checksum_errors, stats.zswpin), (20, 180));
        assert!(stats.decompress_fail <= 20);
    }
}

#[test]
fn same_filled_pages_are_a_value_whatever_the_word() {
    let mut rig = Rig::new(1, Tier::default(), vec![]);
    let words = [0, 1, u64::MAX, 0x0102_0304_0506_0708, 1 << 31, 1 << 63];
    let filled = |word: u64| {
        let mut page = [0; PAGE_SIZE];
        page.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
        page
    };
    let ids: Vec<_> = words.iter().map(|word| rig.put(&filled(*word)).expect("no memory is needed")).collect();
    let stats = rig.store.stats();
    assert_eq!((stats.same_filled_pages, stats.stored_pages, stats.pool_bytes, stats.zswpout), (6, 6, 0, 6));
    for (id, word) in ids.iter().zip(words) {
        check(&rig.store, *id, &filled(word), &mut rig.scratch);
    }
    ids.into_iter().for_each(|id| rig.store.release(id));
    assert_eq!(rig.store.stats().same_filled_pages, 0);
}

/// The toy of the unit tests (`src/codec/run_length.rs`) is in no other build.
#[test]
fn compressors_are_those_that_are_shipped() {
    assert!(compressors().starts_with(&["lz4", "zstd:1", "zstd:3", "zstd:22"].map(by)));
    let error = "run-length".parse::<Compression>().expect_err("a toy");
    assert!(error.starts_with("there is no compressor \"run-length\"; there is: lz4, zstd[:LEVEL]"), "{error}");
    assert!(!Compression::manual().contains("run-length"));
}

/// Each counter grows when its comment says so, by that much, and no other one does.
#[test]
fn refusals_are_counted_exactly() {
    let mut rig = Rig::new(8, Tier::default(), ram(4096));
    let grown = rig.grown(|rig| assert!(rig.put(&hard(1)).is_ok()));
    assert_eq!(grown, [("reject_compress_poor", 1), ("pswpout", 1)]);
    assert_eq!(rig.store.stats().stored_incompressible_pages, 1);

    rig.store.faults.compress.set(1);
    let grown = rig.grown(|rig| assert!(rig.put(&soft(1)).is_ok()));
    assert_eq!(grown, [("reject_compress_fail", 1), ("pswpout", 1)]);
    assert_eq!(rig.store.stats().stored_incompressible_pages, 2);
    rig.store.faults.compress.set(0);

    rig.store.faults.memory.set(1);
    let mut id = None;
    let grown = rig.grown(|rig| id = rig.put(&soft(2)).ok());
    assert_eq!(grown, [("reject_alloc_fail", 1), ("pswpout", 1)]);
    rig.store.faults.memory.set(0);
    let grown = rig.grown(|rig| check(&rig.store, id.expect("on the device"), &soft(2), &mut rig.scratch));
    assert_eq!(grown, [("pswpin", 1)], "it lies there compressed");
    assert_eq!(rig.store.stats().stored_incompressible_pages, 2);

    rig.store.faults.entry.set(1);
    let grown = rig.grown(|rig| assert_eq!(rig.put(&soft(3)), Err(PutError::Full)));
    assert_eq!(
        grown,
        [("reject_kmemcache_fail", 1), ("pswpout", 1)],
        "no entry in memory, none for the device: one page"
    );
    rig.store.faults.entry.set(0);
    assert_eq!(rig.store.stats().devices[0].slots_used, 3, "its slot is free again");
}

#[test]
fn limits_writeback_and_damage_are_counted_exactly() {
    let mut rig = Rig::new(8, Tier::default(), vec![]);
    let mut ids = Vec::new();
    while let Ok(id) = rig.put(&soft(ids.len() as u64)) {
        ids.push(id);
    }
    let grown = rig.grown(|rig| assert_eq!(rig.put(&soft(9999)), Err(PutError::Full)));
    assert_eq!(grown, [("pool_limit_hit", 1), ("put_full", 1)]);
    let grown = rig.grown(|rig| assert_eq!(rig.store.writeback(&mut rig.writeback).written, 0));
    assert_eq!(grown, [("reject_reclaim_fail", 1)]);
    rig.store.add_device(Box::new(RamDevice::new("ram", 4096)), 0).expect("one device");
    let mut written = 0;
    let grown = rig.grown(|rig| {
        while rig.store.needs_writeback() {
            written += u64::from(rig.store.writeback(&mut rig.writeback).written);
        }
    });
    assert_eq!(grown, [("written_back_pages", written), ("pswpout", written)]);

    rig.store.faults.flip.set(1);
    let mut damaged = None;
    let grown = rig.grown(|rig| damaged = rig.put(&page(5, 300)).ok());
    assert_eq!(grown, [("zswpout", 1)]);
    let grown = rig.grown(|rig| {
        let mut out = [0; PAGE_SIZE];
        assert!(rig.store.load(damaged.expect("there is room again"), &mut out).is_err());
    });
    assert!(grown.contains(&("checksum_errors", 1)) && grown.len() <= 2, "{grown:?}");
}

/// The length of a long match is damaged: what comes out is no page.
#[test]
fn what_cannot_be_expanded_is_counted() {
    let mut rig = Rig::new(8, Tier::default(), vec![]);
    rig.store.faults.flip.set(1);
    let flat = |seed: u8| {
        let mut page = [seed; PAGE_SIZE];
        page[3] = 0;
        page
    };
    let ids: Vec<_> = (1..=64).map(|seed| rig.put(&flat(seed)).expect("room")).collect();
    let mut out = [0; PAGE_SIZE];
    let grown = rig.grown(|rig| ids.iter().for_each(|&id| assert!(rig.store.load(id, &mut out).is_err())));
    assert_eq!(grown, [("decompress_fail", 64), ("checksum_errors", 64)]);
}

#[test]
fn pages_compacted_are_the_pages_that_compaction_gave_back() {
    let mut rig = Rig::new(64, Tier::default(), vec![]);
    let ids: Vec<_> = (0..1500).map(|seed| rig.put(&soft(seed)).expect("room")).collect();
    ids.iter().enumerate().filter(|(i, _)| i % 3 != 0).for_each(|(_, &id)| rig.store.release(id));
    assert!(rig.store.is_thin());
    let before = rig.store.stats();
    let mut moved = 0;
    while rig.store.is_thin() {
        let step = rig.store.compact(&mut rig.writeback);
        assert!(step > 0, "thin, and nothing to move");
        moved += u64::from(step);
    }
    let after = rig.store.stats();
    assert_eq!((after.pages_compacted - before.pages_compacted) * 4096, before.pool_bytes - after.pool_bytes);
    assert_eq!((after.compact_moved, before.compact_moved), (moved, 0));
    assert!(after.pool_bytes * 100 <= after.stored_bytes * 106, "{after:?}");
    ids.iter().enumerate().filter(|(i, _)| i % 3 == 0).for_each(|(seed, &id)| {
        check(&rig.store, id, &soft(seed as u64), &mut rig.scratch);
    });
}

/// Between choosing a slab's objects and moving them some are freed, and their entries and places
/// taken by others.
#[test]
fn objects_are_freed_and_replaced_during_a_compaction() {
    let mut rig = Rig::new(64, Tier::default(), vec![]);
    let ids: Vec<_> = (0..1200).map(|seed| rig.put(&soft(seed)).expect("room")).collect();
    let mut held: Vec<(ObjectId, u64)> = ids.into_iter().zip(0..).collect();
    for _ in 0..5 {
        let (keep, free): (Vec<_>, Vec<_>) = held.into_iter().enumerate().partition(|(i, _)| i % 4 == 0);
        free.into_iter().for_each(|(_, (id, _))| rig.store.release(id));
        held = keep.into_iter().map(|(_, object)| object).collect();
        rig.store.faults.delay_compact.store(60_000, Relaxed);
        std::thread::scope(|scope| {
            let store = &rig.store;
            let compaction = scope.spawn(|| store.compact(&mut WritebackScratch::new()));
            std::thread::sleep(Duration::from_millis(20));
            // All that was chosen goes and comes again under other seeds, mostly under the same
            // ids.
            for (id, seed) in &mut held {
                store.release(*id);
                *seed += 100_000;
                *id = put(store, &soft(*seed), &mut rig.scratch).expect("room");
            }
            compaction.join().expect("the compaction");
        });
        held.iter().for_each(|&(id, seed)| check(&rig.store, id, &soft(seed), &mut rig.scratch));
        while held.len() < 1200 {
            let seed = held.len() as u64 + 500_000;
            held.push((rig.put(&soft(seed)).expect("room"), seed));
        }
    }
    held.into_iter().for_each(|(id, _)| rig.store.release(id));
    assert_eq!((rig.store.stats().stored_pages, rig.store.pool_bytes()), (0, 0));
}

/// Threads store, load and free while the compressor changes every millisecond, thin slabs are
/// emptied slowly and pages are written to a device.
#[test]
fn compressors_change_under_load() {
    for allocator in [AllocatorKind::Slab, AllocatorKind::Zbud] {
        let rig = Rig::new(24, Tier { allocator, compression: by("lz4") }, ram(16384));
        rig.store.faults.delay_compact.store(200, Relaxed);
        let (store, done) = (&rig.store, AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut scratch = WritebackScratch::new();
                while !done.load(Relaxed) {
                    store.compact(&mut scratch);
                    if !store.needs_writeback() || !store.writeback(&mut scratch).progressed() {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            });
            scope.spawn(|| {
                for compression in compressors().into_iter().cycle() {
                    store.set_compression(compression).expect("memory for it");
                    std::thread::sleep(Duration::from_millis(1));
                    if done.load(Relaxed) {
                        break;
                    }
                }
            });
            let workers: Vec<_> = (0..3u64).map(|thread| scope.spawn(move || work(store, thread))).collect();
            let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            done.store(true, Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
        let stats = store.stats();
        assert_eq!((stats.stored_pages, stats.pool_bytes, stats.checksum_errors), (0, 0, 0));
        assert!(stats.written_back_pages > 0 && stats.devices[0].slots_used == 0, "{stats:?}");
        assert!(stats.pool_max_bytes <= 24 * SLAB);
    }
}

fn work(store: &Store, thread: u64) {
    let (mut random, mut scratch) = (common::Random::new(thread + 1), Scratch::new());
    let mut held = Vec::new();
    for step in 0..3000 {
        let (seed, noise) = (thread * 1_000_000 + step, random.below(2600) as usize);
        if let Ok(id) = store.put(&page(seed, noise), hasher().hash(&page(seed, noise)), &mut scratch) {
            held.push((id, seed, noise));
        }
        if held.len() > 700 {
            let (id, seed, noise) = held.swap_remove(random.below(700) as usize);
            check(store, id, &page(seed, noise), &mut scratch);
            store.release(id);
        }
    }
    for (id, seed, noise) in held {
        check(store, id, &page(seed, noise), &mut scratch);
        store.release(id);
    }
}
