use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proptest::prelude::*;

use super::*;
use crate::PAGE_SIZE;

/// A piece that overwrites the memory that it gives back, and counts it.
struct Memory {
    bytes: Vec<u8>,
    released: Arc<AtomicU64>,
}

impl PoolPiece for Memory {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn release(&mut self, range: Range<usize>) {
        self.released.fetch_add((range.len() / PAGE_SIZE) as u64, Relaxed);
        self.bytes[range].fill(0xEE);
    }
}

/// A supply with enough pieces for one begun slab of each class, so that the limit is reached
/// before the pieces run out.
fn supply(kib: usize, piece: usize) -> (Supply<Memory>, Arc<AtomicU64>) {
    let released = Arc::new(AtomicU64::new(0));
    let counter = released.clone();
    let memory = move |_| Memory { bytes: vec![0; piece], released: counter.clone() };
    let more = if piece == SLAB_SIZE { Slabs::<Memory>::CLASSES } else { 0 };
    let pieces = (0..(kib << 10) / piece + more).map(memory);
    (Supply::new(pieces, piece, (kib << 10) as u64), released)
}

fn slabs(kib: usize) -> Slabs<Memory> {
    Slabs::new(supply(kib, SLAB_SIZE).0)
}

fn zbud(kib: usize) -> Zbud<Memory> {
    Zbud::new(supply(kib, PAGE_SIZE).0)
}

fn both(kib: usize) -> [Box<dyn Allocator>; 2] {
    [Box::new(slabs(kib)), Box::new(zbud(kib))]
}

fn read(pool: &dyn Allocator, handle: Handle) -> Vec<u8> {
    let mut bytes = Vec::new();
    pool.read(handle, &mut |seen| bytes.extend_from_slice(seen));
    bytes
}

/// The longest object that zbud takes.
const ZBUD_MOST: usize = 63 * 64 - HEADER;

#[test]
fn every_length_comes_back_and_nothing_stays() {
    for pool in both(32 << 10) {
        let most = if pool.name() == "zbud" { ZBUD_MOST } else { MAX_OBJECT };
        let handles: Vec<_> = (0..=most).map(|n| pool.alloc(&vec![n as u8; n]).unwrap()).collect();
        for (n, &handle) in handles.iter().enumerate() {
            assert_eq!(read(&*pool, handle), vec![n as u8; n]);
        }
        assert_eq!(pool.usage().objects, most as u64 + 1);
        handles.into_iter().for_each(|handle| pool.free(handle));
        let usage = pool.usage();
        assert_eq!((usage.stored_bytes, usage.objects, usage.used_bytes, usage.hole_bytes), (0, 0, 0, 0));
        assert!(usage.used_max_bytes > 0);
    }
    assert_eq!(zbud(64).alloc(&[0; ZBUD_MOST + 1]), Err(AllocError::NoMemory));
}

#[test]
fn limit_is_exact_to_the_page() {
    for pool in both(256) {
        for (limit, lengths) in [(17 * 4096 + 100, [3000, 700, 90]), (4096, [60, 60, 60]), (0, [1, 1, 1])] {
            pool.set_limit(limit);
            let mut objects = Vec::new();
            for length in lengths.iter().cycle() {
                match pool.alloc(&vec![1; *length]) {
                    Ok(handle) => objects.push(handle),
                    Err(error) => {
                        assert_eq!(error, AllocError::Limit);
                        break;
                    }
                }
                assert!(pool.used_bytes() <= limit);
            }
            assert_eq!(pool.usage().limit_bytes, limit / 4096 * 4096);
            assert!(pool.used_bytes() + 2 * 4096 > limit, "{} of {limit}", pool.used_bytes());
            objects.into_iter().for_each(|handle| pool.free(handle));
            assert_eq!(pool.used_bytes(), 0);
        }
    }
}

#[test]
fn lowered_limit_refuses_until_below() {
    for pool in both(256) {
        let objects: Vec<_> = std::iter::from_fn(|| pool.alloc(&[1; 4000]).ok()).collect();
        let full = pool.used_bytes();
        pool.set_limit(128 << 10);
        assert_eq!((pool.used_bytes(), full), (256 << 10, 256 << 10));
        assert_eq!(pool.alloc(&[1; 4000]), Err(AllocError::Limit));
        objects.into_iter().for_each(|handle| pool.free(handle));
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.alloc(&[1; 10]).is_ok());
    }
}

/// At the limit the allocator finds a hole, even if the slab that it tries first has only places
/// that were never used.
#[test]
fn holes_are_used_at_the_limit() {
    let pool = slabs(1024);
    let size = 1000;
    let mut objects: Vec<_> = (0..100).map(|_| pool.alloc(&vec![1; size]).unwrap()).collect();
    while objects.len() < 130 && pool.used_bytes() % SLAB_SIZE as u64 != 8 * 4096 {
        objects.push(pool.alloc(&vec![1; size]).unwrap());
    }
    pool.set_limit(pool.used_bytes());
    while let Ok(handle) = pool.alloc(&vec![1; size]) {
        objects.push(handle);
    }
    let freed: Vec<_> = objects.drain(..20).collect();
    freed.iter().for_each(|&handle| pool.free(handle));
    for n in 0..20 {
        assert!(pool.alloc(&vec![2; size]).is_ok(), "hole {n}");
    }
    assert_eq!(pool.alloc(&vec![2; size]), Err(AllocError::Limit));
}

#[test]
fn an_empty_slab_goes_back_at_once_and_a_new_one_costs_a_page() {
    let (supply, released) = supply(256, SLAB_SIZE);
    let pool = Slabs::new(supply);
    let first = pool.alloc(&[1; 1000]).unwrap();
    assert_eq!(pool.used_bytes(), 4096);
    let others: Vec<_> = (0..7).map(|_| pool.alloc(&[1; 1000]).unwrap()).collect();
    assert_eq!(pool.used_bytes(), 8192 + if pool.used_bytes() > 8192 { 4096 } else { 0 });
    others.into_iter().for_each(|handle| pool.free(handle));
    assert_eq!(released.load(Relaxed), 0);
    let pages = pool.used_bytes() / 4096;
    pool.free(first);
    assert_eq!((released.load(Relaxed), pool.used_bytes()), (pages, 0));
}

/// Fills slabs of one size; returns the objects by slab.
fn filled(pool: &Slabs<Memory>, slabs: usize) -> Vec<Vec<Handle>> {
    let first = pool.alloc(&[0; 1000]).unwrap();
    let per_slab = SLAB_SIZE / 1008;
    let mut all = vec![first];
    all.extend((1..slabs * per_slab).map(|i| pool.alloc(&[i as u8; 1000]).unwrap()));
    assert_eq!(pool.used_bytes(), (slabs * SLAB_SIZE) as u64);
    all.chunks(per_slab).map(<[Handle]>::to_vec).collect()
}

#[test]
fn thin_slabs_run_empty() {
    let pool = slabs(1 << 12);
    let by_slab = filled(&pool, 8);
    for (slab, objects) in by_slab.iter().enumerate() {
        let keep = if slab < 4 { objects.len() * 3 / 4 } else { 2 };
        objects[keep..].iter().for_each(|&handle| pool.free(handle));
    }
    for objects in &by_slab[4..] {
        for &thin in &objects[..2] {
            pool.alloc(&[3; 1000]).expect("the fuller slabs have room");
            pool.free(thin);
        }
    }
    assert_eq!(pool.used_bytes(), (4 * SLAB_SIZE) as u64, "new objects went to the fuller slabs");
}

#[test]
fn compaction_gives_slabs_back() {
    let pool = slabs(1 << 12);
    let by_slab = filled(&pool, 16);
    let mut kept = BTreeMap::new();
    for (i, handle) in by_slab.into_iter().flatten().enumerate() {
        match i % 5 {
            0 => assert!(kept.insert(handle, i as u8).is_none()),
            _ => pool.free(handle),
        }
    }
    assert_eq!(pool.used_bytes(), (16 * SLAB_SIZE) as u64);
    assert!(pool.usage().hole_bytes > 12 * SLAB_SIZE as u64);
    while compact(&pool, 0, |old, new| {
        let byte = kept.remove(&old).unwrap();
        kept.insert(new, byte);
    }) {}
    assert!(kept.iter().all(|(&handle, &byte)| read(&pool, handle) == [byte; 1000]));
    let (usage, size) = (pool.usage(), SLAB_SIZE / (SLAB_SIZE / 1002));
    assert!(usage.used_bytes <= (kept.len() * size).next_multiple_of(4096) as u64 + 4096, "{usage:?}");
    assert_eq!(usage.compacted_pages, 16 * 16 - usage.used_bytes / 4096);
    assert!(usage.hole_bytes < 4096);
}

/// A slab with holes gives back the pages behind its objects, and grows again.
#[test]
fn a_slab_is_cut_to_what_it_holds() {
    let pool = slabs(1 << 12);
    let mut objects = filled(&pool, 1).remove(0);
    // Every other object is freed, then all of the second half.
    let gone: Vec<Handle> =
        objects.iter().enumerate().filter(|(i, _)| i % 2 == 0 || *i > 40).map(|(_, h)| *h).collect();
    objects.retain(|handle| !gone.contains(handle));
    gone.iter().for_each(|&handle| pool.free(handle));
    let mut bytes: Vec<Vec<u8>> = objects.iter().map(|&handle| read(&pool, handle)).collect();
    let mut rounds = 0;
    while compact(&pool, 0, |old, new| *objects.iter_mut().find(|handle| **handle == old).unwrap() = new) {
        rounds += 1;
        assert!(rounds < 100, "it ends");
    }
    assert_eq!(pool.used_bytes(), (objects.len() * 1008).next_multiple_of(4096) as u64);
    assert_eq!(objects.iter().map(|&handle| read(&pool, handle)).collect::<Vec<_>>(), bytes);
    while pool.used_bytes() < SLAB_SIZE as u64 {
        objects.push(pool.alloc(&[9; 1000]).unwrap());
        bytes.push(vec![9; 1000]);
    }
    assert!(objects.iter().zip(&bytes).all(|(&handle, bytes)| read(&pool, handle) == *bytes));
    objects.into_iter().for_each(|handle| pool.free(handle));
    assert_eq!((pool.used_bytes(), pool.usage().hole_bytes), (0, 0));
}

/// One step of compaction; returns whether there was anything to do.
fn compact(pool: &dyn Allocator, turn: usize, mut moved: impl FnMut(Handle, Handle)) -> bool {
    let mut thin = Vec::new();
    let found = pool.pick_thin(turn, &mut |handle, bytes| thin.push((handle, bytes.to_vec())));
    assert_eq!(found, !thin.is_empty());
    for (handle, bytes) in thin {
        // Objects at the end of a slab stay once those before them have filled its holes.
        let new = pool.relocate(handle).unwrap_or(handle);
        assert_eq!(read(pool, new), bytes);
        moved(handle, new);
    }
    found
}

#[test]
fn zbud_holds_two_objects_a_page_and_no_more() {
    let pool = zbud(64);
    let small: Vec<_> = (0..8).map(|i| pool.alloc(&[i; 100]).unwrap()).collect();
    assert_eq!(pool.used_bytes(), 4 * 4096, "eight small objects take four pages");
    for (i, &handle) in small.iter().enumerate() {
        assert_eq!(read(&pool, handle), [i as u8; 100]);
    }
    // A page with one object left takes an object that fits beside it, at either end.
    pool.free(small[0]);
    pool.free(small[3]);
    let large = [0, 1].map(|i| pool.alloc(&[40 + i; 3800]).unwrap());
    assert_eq!(pool.used_bytes(), 4 * 4096);
    assert_eq!((read(&pool, large[0]), read(&pool, small[2])), (vec![40; 3800], vec![2; 100]));
    assert_eq!((read(&pool, large[1]), read(&pool, small[1])), (vec![41; 3800], vec![1; 100]));
    pool.free(large[0]);
    pool.free(small[2]);
    assert_eq!(pool.used_bytes(), 3 * 4096, "an empty page goes at once");
    assert!(!pool.pick_thin(0, &mut |_, _| panic!("zbud moves nothing")));
    assert_eq!(pool.relocate(large[1]), None);
}

#[test]
fn double_free_panics() {
    for pool in both(256) {
        let (_keep, gone) = (pool.alloc(&[1; 8]).unwrap(), pool.alloc(&[1; 8]).unwrap());
        pool.free(gone);
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.free(gone)));
        assert!(again.is_err(), "{}", pool.name());
    }
}

/// Threads that share every slab see their own bytes, while one of them moves objects away under
/// its own lock.
#[test]
fn threads_share_slabs() {
    for pool in both(8 << 10) {
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let pool = &pool;
                scope.spawn(move || {
                    let (mut held, mut state) = (Vec::new(), u64::from(thread) * 7919 + 1);
                    for step in 0..4000u64 {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let length = (state >> 33) as usize % 3000;
                        let byte = (step as u8) ^ thread.wrapping_mul(61);
                        held.extend(pool.alloc(&vec![byte; length]).ok().map(|handle| (handle, byte, length)));
                        if held.len() > 300 {
                            let (handle, byte, length) = held.swap_remove((state >> 20) as usize % held.len());
                            assert!(read(&**pool, handle) == vec![byte; length], "{}", pool.name());
                            pool.free(handle);
                        }
                    }
                    for (handle, byte, length) in held {
                        let handle = pool.relocate(handle).unwrap_or(handle);
                        assert!(read(&**pool, handle) == vec![byte; length], "{}", pool.name());
                        pool.free(handle);
                    }
                });
            }
        });
        let usage = pool.usage();
        assert_eq!((usage.objects, usage.stored_bytes, usage.used_bytes, usage.hole_bytes), (0, 0, 0, 0));
    }
}

/// Random lengths, distributed like those of a build's compressed pages (build_sizes.txt says how
/// these were measured).
struct Build {
    /// For each bin its longest length, and the number of pages up to it.
    bins: Vec<(usize, u64)>,
    state: u64,
}

impl Build {
    /// Bytes of the tag that the store puts before the compressed bytes.
    const TAG: usize = 4;

    fn new() -> Self {
        let text = include_str!("build_sizes.txt").lines().filter(|line| !line.starts_with('#'));
        let mut sum = 0;
        let bins = text.map(|line| {
            let (bytes, count) = line.split_once(' ').expect("two numbers");
            sum += count.parse::<u64>().expect("a count");
            (bytes.parse().expect("a length"), sum)
        });
        Self { bins: bins.collect(), state: 1 }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) % n
    }

    fn object(&mut self) -> Vec<u8> {
        let number = self.below(self.bins.last().expect("a bin").1);
        let bin = self.bins.partition_point(|(_, sum)| *sum <= number);
        let length = self.bins[bin].0 - self.below(32) as usize;
        vec![length as u8; Self::TAG + length]
    }
}

/// Ratio of the memory taken to the compressed bytes without the tag.
fn density(pool: &dyn Allocator) -> f64 {
    let usage = pool.usage();
    usage.used_bytes as f64 / (usage.stored_bytes - usage.objects * Build::TAG as u64) as f64
}

/// The density of a filled pool, and the density after a third was replaced and thin slabs were
/// emptied.
fn densities_of_a_build(pool: &dyn Allocator) -> [f64; 2] {
    let mut build = Build::new();
    let mut held: Vec<Handle> = (0..20_000).map(|_| pool.alloc(&build.object()).expect("room")).collect();
    let filled = density(pool);
    for _ in 0..held.len() / 3 {
        pool.free(held.swap_remove(build.below(held.len() as u64) as usize));
    }
    for _ in 0..3_000 {
        held.push(pool.alloc(&build.object()).expect("room"));
    }
    while pool.usage().hole_bytes * 64 > pool.usage().used_bytes && compact(pool, 0, |_, _| {}) {}
    [filled, density(pool)]
}

#[test]
fn a_build_is_stored_densely() {
    let [filled, compacted] = densities_of_a_build(&slabs(64 << 10));
    assert!(filled <= 1.06 && compacted <= 1.06, "{filled:.3}, {compacted:.3}");
    let [two_a_page, later] = densities_of_a_build(&zbud(128 << 10));
    assert!(two_a_page > 1.5 && later > 1.5, "{two_a_page:.3}, {later:.3}");
}

#[derive(Clone, Debug)]
enum Op {
    Alloc(usize, u8),
    Free(usize),
    Limit(u64),
    Compact(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let length = prop_oneof![0..=MAX_OBJECT, 0..200usize, 900..1500usize, 1000..1010usize];
    prop_oneof![
        6 => (length, any::<u8>()).prop_map(|(n, b)| Op::Alloc(n, b)),
        5 => any::<usize>().prop_map(Op::Free),
        1 => (0u64..160).prop_map(Op::Limit),
        1 => any::<usize>().prop_map(Op::Compact),
    ]
}

/// The objects that an allocator must hold.
type Model = BTreeMap<Handle, Vec<u8>>;

fn step(pool: &dyn Allocator, model: &mut Model, op: &Op) {
    let before = pool.used_bytes();
    match *op {
        Op::Alloc(n, byte) => {
            let bytes = vec![byte; n];
            match pool.alloc(&bytes) {
                Ok(handle) => assert!(model.insert(handle, bytes).is_none(), "a live name was given out"),
                Err(AllocError::NoMemory) => assert!(pool.name() == "zbud" && n > ZBUD_MOST),
                Err(AllocError::Limit) => {
                    assert!(before + 2 * 4096 > pool.usage().limit_bytes, "refused below the limit")
                }
            }
            assert!(pool.used_bytes() <= pool.usage().limit_bytes.max(before));
        }
        Op::Free(pick) if !model.is_empty() => {
            let handle = *model.keys().nth(pick % model.len()).unwrap();
            assert_eq!(read(pool, handle), model.remove(&handle).unwrap());
            pool.free(handle);
        }
        Op::Free(_) => {}
        Op::Compact(turn) => {
            compact(pool, turn % 64, |old, new| {
                let bytes = model.remove(&old).expect("only live objects are picked");
                assert!(model.insert(new, bytes).is_none());
            });
        }
        Op::Limit(pages) => pool.set_limit(pages * 4096),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn both_behave_as_a_map(ops in prop::collection::vec(op(), 1..400)) {
        for pool in both(640) {
            let mut model = Model::new();
            for op in &ops {
                step(&*pool, &mut model, op);
                let usage = pool.usage();
                prop_assert_eq!(usage.objects, model.len() as u64);
                prop_assert_eq!(usage.stored_bytes, model.values().map(|b| b.len() as u64).sum::<u64>());
                prop_assert!(usage.used_bytes >= usage.stored_bytes + usage.hole_bytes);
                prop_assert!(usage.used_max_bytes >= usage.used_bytes);
            }
            for (&handle, bytes) in &model {
                prop_assert_eq!(&read(&*pool, handle), bytes);
            }
        }
    }
}
