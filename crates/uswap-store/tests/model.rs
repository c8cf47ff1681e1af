//! Random sequences of operations on a store and on a BTreeMap that says what must come back.

mod common;

use std::collections::BTreeMap;

use common::{check, compressors, hard, hasher, page, put, soft, store};
use proptest::prelude::*;
use uswap_core::{PAGE_SIZE, PageBuf};
use uswap_device::RamDevice;
use uswap_store::{Compression, LoadError, ObjectId, Scratch, Store, WritebackScratch};

const SLOTS: u32 = 512;

#[derive(Clone, Debug)]
enum Op {
    Put(u64, Kind),
    PutBatch(u64, usize),
    Load(usize),
    LoadMany(usize, usize),
    Retain(usize),
    Release(usize),
    MakeCached(usize),
    RetainCached(usize),
    ReleaseCached(usize),
    Reuse(usize, bool),
    Writeback,
    Limit(u64),
    Compressor(usize),
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Filled,
    Noise(usize),
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![1 => Just(Kind::Filled), 6 => (1usize..2900).prop_map(Kind::Noise), 2 => Just(Kind::Noise(PAGE_SIZE))]
}

fn op() -> impl Strategy<Value = Op> {
    let pick = any::<usize>;
    prop_oneof![
        8 => (0..1000u64, kind()).prop_map(|(seed, kind)| Op::Put(seed, kind)),
        3 => (0..1000u64, 1usize..60).prop_map(|(seed, n)| Op::PutBatch(seed, n)),
        4 => pick().prop_map(Op::Load),
        2 => (pick(), 1usize..100).prop_map(|(at, n)| Op::LoadMany(at, n)),
        2 => pick().prop_map(Op::Retain),
        5 => pick().prop_map(Op::Release),
        5 => pick().prop_map(Op::MakeCached),
        2 => pick().prop_map(Op::RetainCached),
        3 => pick().prop_map(Op::ReleaseCached),
        4 => (pick(), any::<bool>()).prop_map(|(at, equal)| Op::Reuse(at, equal)),
        4 => Just(Op::Writeback),
        1 => (1..12u64).prop_map(Op::Limit),
        2 => pick().prop_map(Op::Compressor),
    ]
}

struct Object {
    page: PageBuf,
    authoritative: u32,
    cached: u32,
}

struct Model {
    store: Store,
    scratch: Scratch,
    writeback: WritebackScratch,
    objects: BTreeMap<ObjectId, Object>,
    compressors: Vec<Compression>,
}

impl Model {
    fn new() -> Self {
        Self {
            store: store(6, vec![Box::new(RamDevice::new("ram", SLOTS))]),
            scratch: Scratch::new(),
            writeback: WritebackScratch::new(),
            objects: BTreeMap::new(),
            compressors: compressors(),
        }
    }

    /// An object for which `fits` holds, chosen by `at`.
    fn pick(&self, at: usize, fits: impl Fn(&Object) -> bool) -> Option<ObjectId> {
        let ids: Vec<_> = self.objects.iter().filter(|(_, o)| fits(o)).map(|(&id, _)| id).collect();
        (!ids.is_empty()).then(|| ids[at % ids.len()])
    }

    fn stored(&mut self, result: Result<ObjectId, uswap_store::PutError>, page: PageBuf) {
        match result {
            Ok(id) => {
                let old = self.objects.insert(id, Object { page, authoritative: 1, cached: 0 });
                assert!(old.is_none(), "{id:?} was given out while in use");
            }
            // The last slots of a device with packs are for what moves.
            Err(_) => {
                let used = self.store.stats().devices[0].slots_used;
                assert!(used >= (SLOTS - SLOTS / 16) as u64, "full means full, but for a sixteenth: {used}");
            }
        }
    }

    fn change(&mut self, id: ObjectId, authoritative: i32, cached: i32) {
        let object = self.objects.get_mut(&id).unwrap();
        object.authoritative = object.authoritative.checked_add_signed(authoritative).unwrap();
        object.cached = object.cached.checked_add_signed(cached).unwrap();
        if object.authoritative + object.cached == 0 {
            self.objects.remove(&id);
        }
    }

    fn load(&mut self, id: ObjectId) {
        let mut out = [0xA5; PAGE_SIZE];
        let result = self.store.load_blocking(id, &mut out, &mut self.scratch);
        self.verdict(id, &result, &out);
    }

    fn verdict(&self, id: ObjectId, result: &Result<(), LoadError>, out: &PageBuf) {
        let object = &self.objects[&id];
        match result {
            Ok(()) => assert!(*out == object.page),
            Err(LoadError::Gone) => assert_eq!(object.authoritative, 0),
            Err(other) => panic!("{other}"),
        }
    }

    fn load_many(&mut self, at: usize, n: usize) {
        let ids: Vec<_> = self.objects.keys().copied().cycle().skip(at % 50).take(n.min(self.objects.len())).collect();
        let mut outs: Vec<_> = ids.iter().map(|_| Box::new([0; PAGE_SIZE])).collect();
        let mut results = Vec::new();
        self.store.load_many_blocking(&ids, &mut outs, &mut results, &mut self.scratch);
        for ((id, out), result) in ids.iter().zip(&outs).zip(&results) {
            self.verdict(*id, result, out);
        }
    }

    fn reuse(&mut self, id: ObjectId, equal: bool) {
        let page = if equal { self.objects[&id].page } else { page(5000, 33) };
        let reused = self.store.reuse_cached(id, &page, hasher().hash(&page));
        assert!(!reused || equal);
        assert!(reused || !equal || self.objects[&id].authoritative == 0, "a copy in use cannot be gone");
        self.change(id, reused as i32, -1);
    }

    fn apply(&mut self, op: Op) {
        let authoritative = |o: &Object| o.authoritative > 0;
        let cached = |o: &Object| o.cached > 0;
        match op {
            Op::Put(seed, kind) => {
                let page = match kind {
                    Kind::Filled => [seed as u8; PAGE_SIZE],
                    Kind::Noise(n) => page(seed, n),
                };
                let result = put(&self.store, &page, &mut self.scratch);
                self.stored(result, page);
            }
            Op::PutBatch(seed, n) => self.put_batch(seed, n),
            Op::Load(at) => drop(self.pick(at, |_| true).map(|id| self.load(id))),
            Op::LoadMany(at, n) => self.load_many(at, n),
            Op::Retain(at) => self.on(at, authoritative, Store::retain, (1, 0)),
            Op::Release(at) => self.on(at, authoritative, Store::release, (-1, 0)),
            Op::MakeCached(at) => self.on(at, authoritative, Store::make_cached, (-1, 1)),
            Op::RetainCached(at) => self.on(at, cached, Store::retain_cached, (0, 1)),
            Op::ReleaseCached(at) => self.on(at, cached, Store::release_cached, (0, -1)),
            Op::Reuse(at, equal) => drop(self.pick(at, cached).map(|id| self.reuse(id, equal))),
            Op::Writeback => drop(self.store.writeback(&mut self.writeback)),
            Op::Limit(slabs) => self.store.set_pool_limit(slabs * common::SLAB),
            Op::Compressor(at) => {
                let compression = self.compressors[at % self.compressors.len()];
                self.store.set_compression(compression).expect("memory for it");
            }
        }
    }

    fn on(&mut self, at: usize, fits: impl Fn(&Object) -> bool, call: fn(&Store, ObjectId), (a, c): (i32, i32)) {
        if let Some(id) = self.pick(at, fits) {
            call(&self.store, id);
            self.change(id, a, c);
        }
    }

    fn put_batch(&mut self, seed: u64, n: usize) {
        let pages: Vec<_> = (0..n as u64).map(|i| if i % 3 == 0 { soft(seed + i) } else { hard(seed + i) }).collect();
        let batch: Vec<_> = pages.iter().map(|p| (p, hasher().hash(p))).collect();
        let mut out = Vec::new();
        self.store.put_batch(&batch, &mut out, &mut self.scratch);
        assert_eq!(out.len(), n);
        for (result, &page) in out.into_iter().zip(&pages) {
            // Full is judged at the end of the batch: single puts after it see the same.
            if result.is_ok() {
                self.stored(result, page);
            }
        }
    }

    fn finish(mut self) {
        let ids: Vec<_> = self.objects.keys().copied().collect();
        for id in ids {
            self.load(id);
            let object = self.objects.remove(&id).unwrap();
            if object.authoritative > 0 {
                check(&self.store, id, &object.page, &mut self.scratch);
            }
            (0..object.cached).for_each(|_| self.store.release_cached(id));
            (0..object.authoritative).for_each(|_| self.store.release(id));
        }
        let stats = self.store.stats();
        assert_eq!((stats.stored_pages, stats.stored_bytes, stats.devices[0].slots_used), (0, 0, 0));
        assert_eq!(stats.checksum_errors, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn store_behaves_as_a_map(ops in prop::collection::vec(op(), 1..250)) {
        let mut model = Model::new();
        for op in ops {
            let before = model.store.pool_bytes();
            model.apply(op);
            let stats = model.store.stats();
            prop_assert!(stats.pool_bytes <= stats.pool_limit_bytes.max(before), "the limit holds");
            prop_assert_eq!(stats.pool_bytes, model.store.pool_bytes());
        }
        model.finish();
    }
}
