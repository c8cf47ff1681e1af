//! The pool against a BTreeMap, and the promises on memory that the model cannot see.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;

use super::*;

/// Backing that poisons what was released, so that a read of it shows.
struct Memory {
    bytes: Vec<u8>,
    released: usize,
}

impl Memory {
    fn new(slabs: usize) -> Self {
        Self { bytes: vec![0; slabs * SLAB_SIZE], released: 0 }
    }
}

impl Backing for Memory {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn release(&mut self, range: Range<usize>) {
        self.released += 1;
        self.bytes[range].fill(0xEE);
    }
}

fn pool(slabs: usize) -> Pool<Memory> {
    Pool::new(Memory::new(slabs), (slabs * SLAB_SIZE) as u64)
}

#[test]
fn every_length_comes_back() {
    let mut pool = pool(256);
    let handles: Vec<_> = (0..=MAX_OBJECT).map(|n| pool.alloc(&vec![n as u8; n]).unwrap()).collect();
    for (n, &handle) in handles.iter().enumerate() {
        assert_eq!(pool.read(handle), vec![n as u8; n]);
    }
    handles.into_iter().for_each(|h| pool.free(h));
    assert_eq!((pool.stored_bytes(), pool.objects()), (0, 0));
    assert!(pool.used_bytes() <= (CLASSES * SLAB_SIZE) as u64, "only one spare a class stays");
}

#[test]
fn limit_is_exact_and_spares_give_way() {
    let mut pool = pool(4);
    let big: Vec<_> = std::iter::from_fn(|| pool.alloc(&[1; 4000])).collect();
    assert_eq!(big.len(), 4 * (SLAB_SIZE / 4032));
    assert_eq!(pool.used_bytes(), pool.limit_bytes());
    assert!(pool.alloc(&[2; 100]).is_none());
    big.into_iter().for_each(|h| pool.free(h));
    assert_eq!(pool.used_bytes(), SLAB_SIZE as u64);
    let small: Vec<_> = std::iter::from_fn(|| pool.alloc(&[2; 100])).collect();
    assert_eq!(small.len(), 4 * (SLAB_SIZE / 128), "the spare of the other class was taken");
}

#[test]
fn lowered_limit_refuses_until_below() {
    let mut pool = pool(4);
    let objects: Vec<_> = std::iter::from_fn(|| pool.alloc(&[1; 4000])).collect();
    pool.set_limit(2 * SLAB_SIZE as u64);
    assert_eq!(pool.used_bytes(), 4 * SLAB_SIZE as u64);
    assert!(pool.alloc(&[1; 10]).is_none());
    objects.into_iter().for_each(|h| pool.free(h));
    assert!(pool.used_bytes() <= 2 * SLAB_SIZE as u64);
    assert!(pool.alloc(&[1; 10]).is_some());
}

#[test]
fn thin_slabs_run_empty() {
    let mut pool = pool(64);
    let per_slab = SLAB_SIZE / 1024;
    let mut objects: Vec<_> = (0..8 * per_slab).map(|_| pool.alloc(&[3; 1000]).unwrap()).collect();
    let mut kept = Vec::new();
    for (i, handle) in objects.drain(..).enumerate() {
        if i % per_slab < if i < 4 * per_slab { per_slab * 3 / 4 } else { 2 } {
            kept.push(handle);
        } else {
            pool.free(handle);
        }
    }
    let thin = kept.split_off(4 * (per_slab * 3 / 4));
    for handle in thin {
        let moved = pool.alloc(&[3; 1000]).unwrap();
        assert!(moved.slab() < 4, "new objects go to the fuller slabs");
        pool.free(handle);
    }
    assert_eq!(pool.used_bytes(), 5 * SLAB_SIZE as u64);
    assert_eq!(pool.backing.released, 3);
}

#[test]
fn compaction_gives_slabs_back() {
    let mut pool = pool(64);
    let per_slab = SLAB_SIZE / 1024;
    let objects: Vec<_> = (0..16 * per_slab).map(|i| pool.alloc(&[i as u8; 1000]).unwrap()).collect();
    let mut kept = BTreeMap::new();
    for (i, handle) in objects.into_iter().enumerate() {
        match i % 5 {
            0 => assert!(kept.insert(handle, i as u8).is_none()),
            _ => pool.free(handle),
        }
    }
    assert_eq!(pool.used_bytes(), 16 * SLAB_SIZE as u64);
    let mut thin = Vec::new();
    while pool.pick_thin(0, &mut thin) {
        for handle in thin.drain(..) {
            let byte = kept.remove(&handle).unwrap();
            kept.insert(pool.relocate(handle).unwrap(), byte);
        }
    }
    assert!(kept.iter().all(|(&handle, &byte)| pool.read(handle) == [byte; 1000]));
    assert!(pool.used_bytes() <= 5 * SLAB_SIZE as u64, "four slabs hold what is left, and one is spare");
}

#[test]
#[should_panic(expected = "not live")]
fn double_free_panics() {
    let mut pool = pool(1);
    let (_keep, gone) = (pool.alloc(&[1; 8]).unwrap(), pool.alloc(&[1; 8]).unwrap());
    pool.free(gone);
    pool.free(gone);
}

#[derive(Clone, Debug)]
enum Op {
    Alloc(usize, u8),
    Free(usize),
    Limit(u64),
    Compact(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (prop_oneof![0..=MAX_OBJECT, 0..200usize, 900..1500usize], any::<u8>()).prop_map(|(n, b)| Op::Alloc(n, b)),
        5 => any::<usize>().prop_map(Op::Free),
        1 => (0u64..12).prop_map(Op::Limit),
        1 => any::<usize>().prop_map(Op::Compact),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn behaves_as_a_map(ops in prop::collection::vec(op(), 1..400)) {
        let mut pool = pool(10);
        let mut model: BTreeMap<Handle, Vec<u8>> = BTreeMap::new();
        for op in ops {
            let before = pool.used_bytes();
            match op {
                Op::Alloc(n, byte) => {
                    let bytes = vec![byte; n];
                    if let Some(handle) = pool.alloc(&bytes) {
                        prop_assert!(model.insert(handle, bytes).is_none());
                    }
                    prop_assert!(pool.used_bytes() <= pool.limit_bytes().max(before));
                }
                Op::Free(pick) if !model.is_empty() => {
                    let handle = *model.keys().nth(pick % model.len()).unwrap();
                    prop_assert_eq!(pool.read(handle), &model.remove(&handle).unwrap()[..]);
                    pool.free(handle);
                }
                Op::Free(_) => {}
                Op::Compact(turn) => {
                    let mut handles = Vec::new();
                    let found = pool.pick_thin(turn % CLASSES, &mut handles);
                    prop_assert_eq!(found, !handles.is_empty());
                    for handle in handles {
                        let moved = pool.relocate(handle).expect("the holes suffice");
                        let bytes = model.remove(&handle).expect("only live objects are picked");
                        prop_assert!(model.insert(moved, bytes).is_none());
                    }
                    prop_assert!(pool.used_bytes() <= before);
                }
                Op::Limit(slabs) => pool.set_limit(slabs * SLAB_SIZE as u64),
            }
            prop_assert_eq!(pool.objects(), model.len() as u64);
            prop_assert_eq!(pool.stored_bytes(), model.values().map(|b| b.len() as u64).sum::<u64>());
            prop_assert!(pool.used_bytes() >= pool.stored_bytes());
        }
        for (handle, bytes) in &model {
            prop_assert_eq!(pool.read(*handle), &bytes[..]);
        }
    }
}
