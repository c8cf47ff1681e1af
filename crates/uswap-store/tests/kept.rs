//! Objects that another store takes in: each has the bytes that were kept, or is an error.

mod common;

use std::sync::Arc;

use common::{Random, hard, page, put, soft, store};
use proptest::prelude::*;
use uswap_device::{Device, RamDevice};
use uswap_store::{KeptObject, LoadError, LoadScratch, ObjectId, Scratch, Store, Tuning, WritebackScratch};

fn on(device: &Arc<RamDevice>) -> Box<dyn Device> {
    Box::new(device.clone())
}

/// Stores pages of both kinds until all lie on the device.
fn fill(store: &Store, scratch: &mut Scratch, count: u64) -> Vec<ObjectId> {
    let ids = (0..count).map(|seed| {
        let page = if seed % 3 == 0 { hard(seed) } else { soft(seed) };
        put(store, &page, scratch).expect("room")
    });
    let ids = ids.collect();
    store.tune(Tuning { eager_writeback: true, ..Tuning::default() });
    let mut working = WritebackScratch::new();
    while store.needs_writeback() && store.writeback(&mut working).progressed() {}
    ids
}

fn expected(seed: u64) -> uswap_core::PageBuf {
    if seed.is_multiple_of(3) { hard(seed) } else { soft(seed) }
}

#[test]
fn another_store_finds_what_was_kept_and_writes_beside_it() {
    let device = Arc::new(RamDevice::new("disk", 2048));
    let kept: Vec<KeptObject> = {
        let (store, mut scratch) = (store(64, vec![on(&device)]), Scratch::new());
        let ids = fill(&store, &mut scratch, 900);
        ids.iter().map(|id| store.kept(*id).expect("on the device")).collect()
    };
    let (store, mut scratch, mut load) = (store(1, vec![on(&device)]), Scratch::new(), LoadScratch::default());
    let ids: Vec<ObjectId> = kept.iter().map(|object| store.adopt(*object).expect("its place")).collect();
    let again = kept.iter().step_by(3).filter(|object| store.adopt(**object).is_some());
    assert_eq!(again.count(), 0, "each slot of a whole page is taken once");
    // New pages go to other slots.
    let new: Vec<ObjectId> = (5000..5400).map(|seed| put(&store, &hard(seed), &mut scratch).expect("room")).collect();
    let mut out = page(0, 0);
    for (seed, id) in ids.iter().enumerate() {
        assert_eq!(store.load_blocking(*id, &mut out, &mut load), Ok(()));
        assert!(out == expected(seed as u64), "page {seed}");
    }
    for (seed, id) in (5000..).zip(&new) {
        assert_eq!(store.load_blocking(*id, &mut out, &mut load), Ok(()));
        assert!(out == hard(seed));
    }
    // All slots are free again when the last object has gone.
    ids.iter().chain(&new).for_each(|id| store.release(*id));
    assert_eq!(store.device_pages("disk"), 0);
}

/// The device was written to after the places were noted.
#[test]
fn what_was_overwritten_is_an_error_and_no_other_page() {
    let device = Arc::new(RamDevice::new("disk", 1024));
    let (first, mut scratch) = (store(1, vec![on(&device)]), Scratch::new());
    let ids = fill(&first, &mut scratch, 300);
    let kept: Vec<KeptObject> = ids.iter().map(|id| first.kept(*id).expect("on the device")).collect();
    ids.iter().for_each(|id| first.release(*id));
    let written = (1000..2000).filter(|seed| put(&first, &hard(*seed), &mut scratch).is_ok()).count();
    assert!(written > 900, "{written}");
    drop(first);
    let (store, mut load, mut out) = (store(1, vec![on(&device)]), LoadScratch::default(), page(0, 0));
    let mut wrong = 0;
    for (seed, object) in kept.iter().enumerate() {
        let id = store.adopt(*object).expect("its place");
        match store.load_blocking(id, &mut out, &mut load) {
            Ok(()) => assert!(out == expected(seed as u64)),
            Err(LoadError::Checksum { .. }) => wrong += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(wrong > 100, "{wrong} of {}", kept.len());
}

proptest! {
    /// A store takes in only what can lie there, whatever places are noted, and frees it again.
    #[test]
    fn any_words_are_taken_in_or_refused(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let (device, mut taken) = (Arc::new(RamDevice::new("disk", 1024)), Vec::new());
        let store = store(1, vec![on(&device)]);
        for _ in 0..2000 {
            let place = random.below(1100) << 32 | random.below(70) << 8 | random.below(70);
            let Some(object) = KeptObject::from_words([random.below(1 << 40), place]) else { continue };
            prop_assert_eq!(KeptObject::from_words(object.to_words()), Some(object));
            taken.extend(store.adopt(object));
        }
        prop_assert!(!taken.is_empty());
        taken.iter().for_each(|id| store.release(*id));
        prop_assert_eq!(store.device_pages("disk"), 0);
        prop_assert_eq!(store.device_names(), vec![(0, "disk".to_owned())]);
    }
}
