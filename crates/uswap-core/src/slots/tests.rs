//! Tests of the slots: as a set, down to the last slot, and with many threads.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const LOCKINGS: [Locking; 3] = [Locking::Whole, Locking::Clusters, Locking::Caches];

fn new(total: u32) -> Slots {
    Slots::new(total, Locking::Caches)
}

fn take_as(slots: &Slots, worker: usize, count: u32) -> Vec<SlotRun> {
    let mut runs = Vec::new();
    slots.allocate(worker, count, &mut runs);
    runs
}

fn take(slots: &Slots, count: u32) -> Vec<SlotRun> {
    take_as(slots, 0, count)
}

/// The slots of runs, one by one.
fn slots_of(runs: &[SlotRun]) -> impl Iterator<Item = u32> {
    runs.iter().flat_map(|run| run.first..run.first + run.count)
}

fn free_one(slots: &Slots, worker: usize, slot: u32) {
    slots.free(worker, SlotRun { first: slot, count: 1 });
}

#[test]
fn batches_are_contiguous_and_the_device_fills_to_the_last_slot() {
    let slots = new(2000);
    assert_eq!(slots.total(), 1536);
    for i in 0..12 {
        assert_eq!(take(&slots, 128), [SlotRun { first: i * 128, count: 128 }]);
    }
    assert_eq!(slots.used(), 1536);
    assert!(take(&slots, 1).is_empty());
}

#[test]
fn a_batch_leaves_a_remnant_rather_than_split_and_the_remnant_is_used_last() {
    let slots = new(1024);
    take(&slots, 500);
    assert_eq!(take(&slots, 100), [SlotRun { first: 512, count: 100 }]);
    take(&slots, 412);
    assert_eq!(take(&slots, 100), [SlotRun { first: 500, count: 12 }]);
}

#[test]
fn freed_clusters_are_trimmed_and_come_back_clean() {
    let slots = new(1024);
    let run = take(&slots, 512)[0];
    take(&slots, 1);
    slots.free(0, run);
    assert_eq!(slots.take_trimmable(1), None);
    let trim = slots.take_trimmable(0).unwrap();
    assert_eq!(trim, run);
    assert_eq!(slots.take_trimmable(0), None);
    assert_eq!(take(&slots, 512).iter().map(|r| r.count).sum::<u32>(), 511, "a cluster out for trim is not given");
    slots.trimmed(trim);
    assert_eq!(take(&slots, 512), [run]);
}

#[test]
fn no_room_hands_out_only_slots_that_own_room() {
    let slots = new(4096);
    let good = take(&slots, 512)[0];
    let bad = take(&slots, 64)[0];
    slots.no_room(bad);
    assert_eq!(slots.used(), 512);
    assert!(!slots.has_room() && take(&slots, 1).is_empty());
    slots.free(0, SlotRun { first: good.first, count: 10 });
    assert!(slots.has_room());
    assert_eq!(take(&slots, 64), [SlotRun { first: good.first, count: 10 }]);
    slots.free(0, SlotRun { first: good.first, count: 256 });
    assert!(!slots.is_frozen());
    assert_eq!(take(&slots, 4096).iter().map(|r| r.count).sum::<u32>(), 4096 - 256);
}

#[test]
#[should_panic(expected = "free already")]
fn double_free_panics() {
    let slots = new(512);
    let run = take(&slots, 4)[0];
    slots.free(0, SlotRun { first: run.first, count: 2 });
    slots.free(0, SlotRun { first: run.first, count: 2 });
}

#[test]
#[should_panic(expected = "free already")]
fn double_free_is_found_when_the_cache_gives_back() {
    let slots = new(1024);
    let slot = take(&slots, 2)[0].first;
    free_one(&slots, 0, slot);
    free_one(&slots, 0, slot);
    slots.stop();
}

#[test]
fn small_requests_of_several_workers_each_get_neighbours() {
    let slots = new(16 * 1024);
    let mut runs = vec![Vec::new(); 4];
    for _ in 0..20 {
        for (worker, runs) in runs.iter_mut().enumerate() {
            runs.extend(slots_of(&take_as(&slots, worker, 10)));
        }
    }
    for mut slots in runs {
        let breaks = slots.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
        assert_eq!((slots.len(), breaks), (200, 0), "{slots:?}");
        slots.dedup();
        assert_eq!(slots.len(), 200);
    }
}

#[test]
fn freed_slots_go_back_in_batches() {
    let slots = new(16 * 1024);
    let all: Vec<u32> = slots_of(&take(&slots, 512)).collect();
    take(&slots, 1);
    let (last, rest) = all.split_last().unwrap();
    rest.iter().for_each(|slot| free_one(&slots, 3, *slot));
    assert_eq!(slots.used(), 2, "what lies in a cache is not in use");
    assert_eq!(slots.take_trimmable(0), None, "63 are still in the cache");
    free_one(&slots, 3, *last);
    assert_eq!(slots.take_trimmable(0), Some(SlotRun { first: all[0], count: CLUSTER_SLOTS }));
}

/// Each worker hides slots in its cache; one of them then wants all the rest.
#[test]
fn the_last_slot_is_had_though_others_hold_slots_ready_and_freed() {
    for total in [512, 1024, 4096, 16 * 1024] {
        let slots = new(total);
        let mut mine = BTreeSet::new();
        for worker in 0..20 {
            let got: Vec<u32> = slots_of(&take_as(&slots, worker, 7)).collect();
            got[..3].iter().for_each(|slot| free_one(&slots, worker, *slot));
            mine.extend(&got[3..]);
        }
        assert!(slots.has_room());
        for slot in slots_of(&take_as(&slots, 9, u32::MAX)) {
            assert!(mine.insert(slot), "slot {slot} is handed out twice");
        }
        assert_eq!((mine.len(), slots.used(), slots.has_room()), (total as usize, total, false));
        assert!((0..20).all(|worker| take_as(&slots, worker, 1).is_empty()));
        // One slot at a time, whichever worker frees it and whichever wants it.
        for slot in 0..200 {
            free_one(&slots, slot as usize, slot);
            assert_eq!(take_as(&slots, slot as usize + 1, 1), [SlotRun { first: slot, count: 1 }]);
        }
    }
}

#[test]
fn a_device_that_is_left_hands_out_nothing_and_its_caches_are_empty() {
    let slots = new(16 * 1024);
    let mut held = Vec::new();
    for worker in 0..10 {
        held.extend(slots_of(&take_as(&slots, worker, 20)));
        free_one(&slots, worker, held.pop().unwrap());
    }
    slots.stop();
    assert!((0..10).all(|worker| take_as(&slots, worker, 20).is_empty()));
    held.drain(..).for_each(|slot| free_one(&slots, slot as usize, slot));
    assert_eq!(slots.used(), 0);
    let dirty = std::iter::from_fn(|| slots.take_trimmable(0)).map(|run| run.count).sum::<u32>();
    assert_eq!(dirty, 10 * CLUSTER_SLOTS, "no slot lies in a cache");
    slots.resume();
    assert_eq!(take(&slots, 1).len(), 1);
}

/// The owner of each slot, kept in separate atomics.
struct Owners(Vec<std::sync::atomic::AtomicBool>);

impl Owners {
    fn take(&self, slot: u32) {
        let had = self.0[slot as usize].swap(true, std::sync::atomic::Ordering::SeqCst);
        assert!(!had, "slot {slot} is handed out twice");
    }

    fn leave(&self, slot: u32) {
        assert!(self.0[slot as usize].swap(false, std::sync::atomic::Ordering::SeqCst));
    }
}

/// Takes slots until there are none, and frees a part of them, again and again; at the end all that
/// is left is taken.
fn fill_and_free(slots: &Slots, owners: &Owners, worker: usize, rounds: u32, done: &std::sync::Barrier) -> usize {
    let (mut mine, mut random, mut runs) = (Vec::new(), worker as u32 + 1, Vec::new());
    let mut next = || {
        random = random.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        random >> 16
    };
    let mut fill = |mine: &mut Vec<u32>, want: u32| {
        runs.clear();
        let got = slots.allocate(worker, want, &mut runs);
        slots_of(&runs).for_each(|slot| owners.take(slot));
        mine.extend(slots_of(&runs));
        got == want
    };
    for _ in 0..rounds {
        let want = [1, 1, 3, 40, 90, 200][next() as usize % 6];
        fill(&mut mine, want);
        for _ in 0..(next() % 3) * want {
            if mine.is_empty() {
                break;
            }
            let slot = mine.swap_remove(next() as usize % mine.len());
            owners.leave(slot);
            free_one(slots, worker, slot);
        }
    }
    done.wait();
    while fill(&mut mine, 1) {}
    mine.len()
}

#[test]
fn threads_fill_the_device_to_the_last_slot_and_none_is_given_twice_or_lost() {
    for locking in LOCKINGS {
        for total in [512, 2048, 8 * 1024] {
            let slots = Slots::new(total, locking);
            let owners = Owners((0..total).map(|_| false.into()).collect());
            let done = std::sync::Barrier::new(6);
            let held: usize = std::thread::scope(|scope| {
                let fill = |worker| fill_and_free(&slots, &owners, worker, 800, &done);
                let threads: Vec<_> = (0..6).map(|worker| scope.spawn(move || fill(worker))).collect();
                threads.into_iter().map(|thread| thread.join().expect("a worker")).sum()
            });
            assert_eq!((held, slots.used()), (total as usize, total), "{locking:?}");
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Take(usize, u32),
    Free(usize, usize, u32),
    FreeSingly(usize, usize, u32),
    Trim,
    NoRoom(usize, u32),
    Thaw,
    StopAndGo,
}

fn op() -> impl Strategy<Value = Op> {
    let worker = 0usize..5;
    prop_oneof![
        8 => (worker.clone(), prop_oneof![1u32..4, 1u32..700]).prop_map(|(worker, n)| Op::Take(worker, n)),
        4 => (worker.clone(), any::<usize>(), 1u32..300).prop_map(|(worker, at, n)| Op::Free(worker, at, n)),
        4 => (worker.clone(), any::<usize>(), 1u32..300).prop_map(|(worker, at, n)| Op::FreeSingly(worker, at, n)),
        1 => Just(Op::Trim),
        1 => (worker, 1u32..128).prop_map(|(worker, n)| Op::NoRoom(worker, n)),
        1 => Just(Op::Thaw),
        1 => Just(Op::StopAndGo),
    ]
}

/// Takes up to `n` neighbours out of the model, from its `at`th slot on.
fn leave(model: &mut BTreeSet<u32>, at: usize, n: u32) -> SlotRun {
    let first = model.iter().nth(at % model.len().max(1)).copied().unwrap_or(0);
    SlotRun { first, count: (first..first + n).take_while(|slot| model.remove(slot)).count() as u32 }
}

fn apply(slots: &Slots, model: &mut BTreeSet<u32>, op: Op) -> Result<(), TestCaseError> {
    match op {
        Op::Take(worker, n) => {
            for slot in slots_of(&take_as(slots, worker, n)) {
                prop_assert!(slot < slots.total() && model.insert(slot));
            }
        }
        Op::Free(worker, at, n) => slots.free(worker, leave(model, at, n)),
        Op::FreeSingly(worker, at, n) => {
            slots_of(&[leave(model, at, n)]).for_each(|slot| free_one(slots, worker, slot));
        }
        Op::Trim => {
            if let Some(run) = slots.take_trimmable(0) {
                prop_assert!(slots_of(&[run]).all(|slot| !model.contains(&slot)));
                slots.trimmed(run);
            }
        }
        Op::NoRoom(worker, n) => take_as(slots, worker, n).into_iter().for_each(|run| slots.no_room(run)),
        Op::Thaw => slots.thaw(),
        Op::StopAndGo => {
            slots.stop();
            prop_assert!(take(slots, 1).is_empty());
            slots.resume();
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn behaves_as_a_set(which in 0usize..3, ops in prop::collection::vec(op(), 1..150)) {
        let slots = Slots::new(8 * CLUSTER_SLOTS, LOCKINGS[which]);
        let mut model = BTreeSet::new();
        for op in ops {
            apply(&slots, &mut model, op)?;
            prop_assert_eq!(slots.used() as usize, model.len());
            if !slots.is_frozen() {
                prop_assert_eq!(slots.has_room(), slots.used() < slots.total());
            }
        }
        if !slots.is_frozen() {
            let rest = take(&slots, u32::MAX).iter().map(|r| r.count).sum::<u32>();
            prop_assert_eq!(rest as usize + model.len(), slots.total() as usize, "every free slot can be had");
        }
    }
}
