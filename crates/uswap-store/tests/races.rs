//! Writeback and what happens to a page meanwhile. A fault point ([`Tuning::delay`]) holds
//! writeback before and after the write, when the objects of the batch are marked and nothing of
//! them is settled.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::{Random, SLAB, check, hard, hasher, page, put, soft, store};
use uswap_core::PAGE_SIZE;
use uswap_device::{Corrupt, Device, RamDevice};
use uswap_store::{Load, LoadError, ObjectId, PutError, Scratch, Store, Tuning, WritebackReport, WritebackScratch};

/// Before the write, and again after it.
const HELD: Duration = Duration::from_millis(150);

fn ram(name: &str, slots: u32) -> Box<dyn Device> {
    Box::new(RamDevice::new(name, slots))
}

fn eager() -> Tuning {
    Tuning { eager_writeback: true, ..Tuning::default() }
}

fn used(store: &Store) -> u64 {
    store.stats().devices.iter().map(|device| device.slots_used).sum()
}

/// Starts a writeback and does something in the middle of it, before the write (`early`) and after
/// it (`late`).
fn during_writeback(
    store: &Store,
    early: impl FnOnce(&mut Scratch),
    late: impl FnOnce(&mut Scratch),
) -> WritebackReport {
    store.tune(Tuning { delay: HELD, ..eager() });
    let report = std::thread::scope(|scope| {
        let writer = scope.spawn(|| store.writeback(&mut WritebackScratch::new()));
        let mut scratch = Scratch::new();
        std::thread::sleep(HELD / 3);
        early(&mut scratch);
        std::thread::sleep(HELD);
        late(&mut scratch);
        assert!(!writer.is_finished(), "it was too late");
        writer.join().expect("writeback")
    });
    store.tune(Tuning::default());
    report
}

fn put_soft(store: &Store, count: u64) -> Vec<ObjectId> {
    let mut scratch = Scratch::new();
    (0..count).map(|seed| put(store, &soft(seed), &mut scratch).expect("room")).collect()
}

/// Writes everything in the pool back.
fn write_all(store: &Store) {
    store.tune(eager());
    while store.writeback(&mut WritebackScratch::new()).progressed() {}
    store.tune(Tuning::default());
}

#[test]
fn a_load_during_writeback_comes_from_memory() {
    let store = store(16, vec![ram("disk", 1024)]);
    let ids = put_soft(&store, 100);
    let load_all = |_: &mut Scratch| {
        let mut out = [0; PAGE_SIZE];
        for (id, seed) in ids.iter().zip(0..) {
            assert_eq!(store.load(*id, &mut out), Ok(Load::Ready));
            assert!(out == soft(seed));
        }
    };
    let report = during_writeback(&store, load_all, load_all);
    assert_eq!(report.written, 100);
    assert_eq!(store.load(ids[7], &mut [0; PAGE_SIZE]), Ok(Load::OnDevice));
    ids.iter().zip(0..).for_each(|(id, seed)| check(&store, *id, &soft(seed), &mut Scratch::new()));
}

#[test]
fn what_is_freed_during_writeback_is_freed_in_both_places() {
    let store = store(16, vec![ram("disk", 1024)]);
    let ids = put_soft(&store, 100);
    let free = |ids: &[ObjectId]| ids.iter().for_each(|id| store.release(*id));
    during_writeback(&store, |_| free(&ids[..30]), |_| free(&ids[30..60]));
    let disk = &store.stats().devices[0];
    assert_eq!((store.stats().stored_pages, disk.packed_objects), (0, 40));
    ids.iter().zip(0..).skip(60).for_each(|(id, seed)| check(&store, *id, &soft(seed), &mut Scratch::new()));
    free(&ids[60..]);
    assert_eq!((used(&store), store.stats().devices[0].packed_bytes), (0, 0));
}

/// The program's page came back, was changed and is evicted again while its old object is being
/// written: the change is another object, and the old one goes. Unchanged, the object stays what it
/// is.
#[test]
fn a_store_to_an_entry_under_writeback() {
    let store = store(16, vec![ram("disk", 1024)]);
    let ids = put_soft(&store, 60);
    let mut changed = Vec::new();
    during_writeback(
        &store,
        |scratch| {
            ids.iter().for_each(|id| store.make_cached(*id));
            for (id, seed) in ids[..20].iter().zip(1000..) {
                assert!(!store.reuse_cached(*id, &soft(seed), hasher().hash(&soft(seed))), "it has changed");
                changed.push((put(&store, &soft(seed), scratch).expect("room"), seed));
            }
            for (id, seed) in ids[20..40].iter().zip(20..) {
                assert!(store.reuse_cached(*id, &soft(seed), hasher().hash(&soft(seed))), "it is as it was");
                store.retain(*id);
            }
        },
        |_| ids[20..30].iter().for_each(|id| store.release(*id)),
    );
    let mut scratch = Scratch::new();
    changed.iter().for_each(|(id, seed)| check(&store, *id, &soft(*seed), &mut scratch));
    ids.iter().zip(0..).skip(20).for_each(|(id, seed)| check(&store, *id, &soft(seed), &mut scratch));
    changed.iter().for_each(|(id, _)| store.release(*id));
    ids[20..30].iter().for_each(|id| store.release(*id));
    ids[30..40].iter().for_each(|id| (0..2).for_each(|_| store.release(*id)));
    ids[40..].iter().for_each(|id| store.release_cached(*id));
    assert_eq!((store.stats().stored_pages, used(&store)), (0, 0), "nothing is left anywhere");
}

#[test]
fn pool_and_device_both_full() {
    let store = store(4, vec![ram("disk", 512)]);
    let (mut scratch, mut writeback) = (Scratch::new(), WritebackScratch::new());
    let mut ids = Vec::new();
    for seed in 0.. {
        match put(&store, &soft(seed), &mut scratch) {
            Ok(id) => ids.push((id, seed)),
            Err(PutError::Full) => {
                // What writeback can still do is done before it is the end.
                while store.needs_writeback() && store.writeback(&mut writeback).progressed() {}
                match put(&store, &soft(seed), &mut scratch) {
                    Ok(id) => ids.push((id, seed)),
                    Err(PutError::Full) => break,
                }
            }
        }
        if seed % 64 == 0 && store.needs_writeback() {
            store.writeback(&mut writeback);
        }
    }
    assert!(ids.len() > 1500, "{} pages in 4 slabs and 512 slots: packed they are more than slots", ids.len());
    assert!(!store.needs_writeback() || !store.writeback(&mut writeback).progressed(), "it stops asking");
    ids.iter().for_each(|(id, seed)| check(&store, *id, &soft(*seed), &mut scratch));
    let (gone, left): (Vec<_>, Vec<_>) = ids.iter().partition(|(_, seed)| seed % 2 == 0);
    gone.iter().for_each(|(id, _)| store.release(*id));
    store.tune(Tuning { eager_repack: true, ..Tuning::default() });
    while !store.repack(&mut writeback).round_done {}
    put(&store, &soft(1 << 40), &mut scratch).expect("there is room again");
    left.iter().for_each(|(id, seed)| check(&store, *id, &soft(*seed), &mut scratch));
}

#[test]
fn swapoff_during_writeback() {
    let store = store(16, vec![ram("disk", 1024), ram("other", 1024)]);
    let ids = put_soft(&store, 150);
    let drain = std::sync::Mutex::new(None);
    during_writeback(&store, |_| *drain.lock().unwrap() = Some(store.begin_drain("disk", 0).expect("room")), |_| {});
    let mut drain = drain.into_inner().unwrap().expect("it has begun");
    let mut rounds = 0;
    while !store.end_drain(&drain) {
        rounds += store.drain_step(&mut drain).round_done as u32;
        assert!(rounds < 5, "{} pages do not leave", store.left_to_drain(&drain));
    }
    ids.iter().zip(0..).for_each(|(id, seed)| check(&store, *id, &soft(seed), &mut Scratch::new()));
    assert_eq!(store.stats().devices.len(), 1);
}

#[test]
fn packed_pages_leave_a_device_packed() {
    let store = store(16, vec![ram("disk", 1024), ram("other", 1024)]);
    let ids = put_soft(&store, 300);
    write_all(&store);
    let before = used(&store);
    assert!(before < 100, "{before} slots for 300 pages of a quarter");
    store.set_pool_limit(0);
    let mut drain = store.begin_drain("disk", 0).expect("room");
    while !store.end_drain(&drain) {
        assert_eq!(store.drain_step(&mut drain).refused, 0);
    }
    assert!(used(&store) < before + 10, "{} slots after the move, {before} before", used(&store));
    ids.iter().zip(0..).for_each(|(id, seed)| check(&store, *id, &soft(seed), &mut Scratch::new()));
}

/// A flipped bit in a slot that several objects share costs the one it is in, which is named.
#[test]
fn damage_in_a_pack_hits_one_page() {
    let disk = Arc::new(Corrupt::new(RamDevice::new("disk", 1024)));
    let store = store(16, vec![Box::new(disk.clone())]);
    let ids = put_soft(&store, 30);
    write_all(&store);
    disk.corrupt(2, 8 * 100, u64::MAX);
    let mut scratch = Scratch::new();
    let mut outs: Vec<_> = ids.iter().map(|_| Box::new([0; PAGE_SIZE])).collect();
    let mut results = Vec::new();
    store.load_many_blocking(&ids, &mut outs, &mut results, &mut scratch);
    let bad: Vec<_> = (0..30).filter(|i| results[*i].is_err()).collect();
    assert_eq!(bad.len(), 1, "{results:?}");
    // The object may begin in the slot before.
    let named = |slot| Err(LoadError::Checksum { device: Some("disk".into()), slot });
    assert!([named(1), named(2)].contains(&results[bad[0]]), "{:?}", results[bad[0]]);
    assert_eq!(store.stats().checksum_errors, 2, "it was read twice");
    for good in (0..30).filter(|i| *i != bad[0]) {
        assert!(*outs[good] == soft(good as u64));
        check(&store, ids[good], &soft(good as u64), &mut scratch);
    }
}

/// Slots of which little is alive are freed before new ones run out.
#[test]
fn thin_slots_are_freed() {
    let store = store(64, vec![ram("disk", 1024)]);
    let mut ids = put_soft(&store, 3600);
    write_all(&store);
    let full = used(&store);
    assert!(full > 900 && !store.needs_repack(), "{full} slots, and nothing is thin");
    // One in three lives: most slots still have a living object.
    let mut seed = 0;
    ids.retain(|id| {
        seed += 1;
        let lives = seed % 3 == 0;
        (!lives).then(|| store.release(*id));
        lives
    });
    let thin = used(&store);
    assert!(thin > 768, "{thin} of {full} slots hold a third of the pages");
    assert!(store.needs_repack());
    let mut writeback = WritebackScratch::new();
    while store.needs_repack() {
        assert!(store.repack(&mut writeback).may_go_on(), "as long as it is needed there is something to do");
    }
    assert!(used(&store) <= 768, "a quarter is free again: {} slots", used(&store));
    for (id, seed) in ids.iter().zip((0u64..).skip(2).step_by(3)) {
        check(&store, *id, &soft(seed), &mut Scratch::new());
        store.release(*id);
    }
    assert_eq!(used(&store), 0);
}

/// Readers of objects that are moved all the time, and whose places are given to others at once,
/// never see other bytes and find nothing damaged.
#[test]
fn pages_are_read_while_they_are_moved() {
    let store = store(8, vec![ram("disk", 2048), ram("other", 1024)]);
    store.tune(Tuning { eager_writeback: true, eager_repack: true, ..Tuning::default() });
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, over) = (&store, &over);
        let readers: Vec<_> = (0..3).map(|thread| scope.spawn(move || read_and_replace(store, thread))).collect();
        for _ in 0..2 {
            scope.spawn(|| {
                let mut scratch = WritebackScratch::new();
                while !over.load(Relaxed) {
                    store.repack(&mut scratch);
                    store.writeback(&mut scratch);
                }
            });
        }
        let results: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        over.store(true, Relaxed);
        results.into_iter().for_each(|result| result.expect("a reader"));
    });
    let stats = store.stats();
    assert!(stats.repacked_pages > 1000 && stats.written_back_pages > 1000, "{stats:?}");
    assert_eq!((stats.checksum_errors, used(&store)), (0, 0));
}

fn read_and_replace(store: &Store, thread: u64) {
    let (mut random, mut scratch, mut held) = (Random::new(thread + 1), Scratch::new(), Vec::new());
    let recipe = |seed: u64| page(seed, [40, 700, 1400, 2600, PAGE_SIZE][(seed % 5) as usize]);
    for _ in 0..6000 {
        let seed = random.next();
        if held.len() < 200 {
            held.extend(put(store, &recipe(seed), &mut scratch).map(|id| (id, seed)));
        }
        if held.is_empty() {
            continue;
        }
        let at = random.below(held.len() as u64) as usize;
        let (id, seed) = held[at];
        check(store, id, &recipe(seed), &mut scratch);
        if random.below(2) == 0 {
            store.release(id);
            held.swap_remove(at);
        }
    }
    held.into_iter().for_each(|(id, _)| store.release(id));
}

/// Pages that do not compress and packs lie on one device, and each finds its own.
#[test]
fn pages_and_packs_share_a_device() {
    let store = store(8, vec![ram("disk", 1024)]);
    let mut scratch = Scratch::new();
    let kinds = |seed: u64| if seed.is_multiple_of(3) { hard(seed) } else { soft(seed) };
    let ids: Vec<_> = (0..200).map(|seed| put(&store, &kinds(seed), &mut scratch).expect("room")).collect();
    write_all(&store);
    let disk = store.stats().devices[0].clone();
    assert_eq!((disk.packed_objects, disk.slots_used), (133, 67 + disk.packed_slots));
    let mut outs: Vec<_> = ids.iter().map(|_| Box::new([0; PAGE_SIZE])).collect();
    let mut results = Vec::new();
    store.load_many_blocking(&ids, &mut outs, &mut results, &mut scratch);
    for (seed, (out, result)) in outs.iter().zip(&results).enumerate() {
        assert_eq!(*result, Ok(()));
        assert!(**out == kinds(seed as u64));
    }
    assert!(store.pool_bytes() < SLAB);
    ids.into_iter().for_each(|id| store.release(id));
    assert_eq!(used(&store), 0);
}
