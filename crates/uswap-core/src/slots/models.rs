//! The slot caches under every interleaving that the memory model allows, up to three preemptions:
//! `RUSTFLAGS="--cfg loom" cargo test -p uswap-core --release`.
//!
//! One cluster, two lanes, batches of two. The models try what caching promises: no slot is handed
//! out twice, none is lost, a request falls short only if no slot is hidden in a cache, and the
//! thread that stops the device sees which slots are in use.

use loom::sync::Arc;
use loom::thread;

use super::*;

const TOTAL: u32 = CLUSTER_SLOTS;

fn model(work: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(work);
}

fn caching() -> Slots {
    let slots = Slots::with_lanes(TOTAL, 2, 2);
    assert!(slots.caching.load(Relaxed));
    slots
}

fn take(slots: &Slots, worker: usize, count: u32) -> Vec<u32> {
    let mut runs = Vec::new();
    slots.allocate(worker, count, &mut runs);
    runs.iter().flat_map(|run| run.first..run.first + run.count).collect()
}

fn free(slots: &Slots, worker: usize, slot: u32) {
    slots.free(worker, SlotRun { first: slot, count: 1 });
}

/// The slots of `mine` and those that can still be taken are all slots, each once.
fn complete(slots: &Slots, mut mine: Vec<u32>) {
    assert_eq!(slots.used() as usize, mine.len());
    mine.extend(take(slots, 0, u32::MAX));
    mine.sort_unstable();
    assert!(mine.iter().copied().eq(0..TOTAL), "a slot is lost, or was handed out twice: {mine:?}");
}

#[test]
fn two_workers_take_and_free() {
    model(|| {
        let slots = Arc::new(caching());
        let other = {
            let slots = slots.clone();
            thread::spawn(move || {
                let mine = take(&slots, 1, 1);
                free(&slots, 1, mine[0]);
                take(&slots, 1, 1)
            })
        };
        let mut mine = take(&slots, 0, 3);
        free(&slots, 1, mine.pop().expect("three"));
        mine.extend(other.join().expect("the other worker"));
        complete(&slots, mine);
    });
}

/// One thread wants all slots while the other fills its cache and takes slots from it. Caching ends
/// in between, because few slots are left.
fn everything_beside_a_cache(mistake: SlotMistake) {
    model(move || {
        let slots = Arc::new(Slots { mistake, ..caching() });
        let enough = slots.scarce() + 2;
        let before = take(&slots, 0, TOTAL - enough);
        let other = {
            let slots = slots.clone();
            thread::spawn(move || take(&slots, 1, 1))
        };
        let few = take(&slots, 0, 4);
        let rest = take(&slots, 0, u32::MAX);
        let its = other.join().expect("the other worker");
        let all = before.len() + few.len() + rest.len() + its.len();
        assert_eq!(all, TOTAL as usize, "a request fell short while slots lay in a cache");
    });
}

#[test]
fn a_request_falls_short_only_when_nothing_is_hidden() {
    everything_beside_a_cache(SlotMistake::None);
}

#[test]
#[should_panic(expected = "while slots lay in a cache")]
fn looking_before_saying_is_found() {
    everything_beside_a_cache(SlotMistake::LooksBeforeItSays);
}

#[test]
fn what_is_freed_into_a_cache_meanwhile_is_not_lost() {
    model(|| {
        let slots = Arc::new(caching());
        let mut first = take(&slots, 1, 2);
        let slot = first.pop().expect("two");
        let other = {
            let slots = slots.clone();
            thread::spawn(move || free(&slots, 1, slot))
        };
        first.extend(take(&slots, 0, u32::MAX));
        other.join().expect("the other worker");
        complete(&slots, first);
    });
}

#[test]
fn who_stops_the_device_sees_all_that_is_in_use() {
    model(|| {
        let slots = Arc::new(caching());
        let other = {
            let slots = slots.clone();
            thread::spawn(move || take(&slots, 1, 1))
        };
        slots.stop();
        let used = slots.used();
        let its = other.join().expect("the other worker");
        assert_eq!((used as usize, slots.used()), (its.len(), used), "a slot was handed out after the stop");
        slots.resume();
        complete(&slots, its);
    });
}

#[test]
fn a_full_disk_is_found_while_another_takes() {
    model(|| {
        let slots = Arc::new(caching());
        let failed = take(&slots, 0, 2);
        let other = {
            let slots = slots.clone();
            thread::spawn(move || take(&slots, 1, 1))
        };
        slots.no_room(SlotRun { first: failed[0], count: 2 });
        let its = other.join().expect("the other worker");
        slots.thaw();
        complete(&slots, its);
    });
}
