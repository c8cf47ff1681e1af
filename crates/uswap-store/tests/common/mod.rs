//! Pages and stores for the tests of the store.
#![allow(dead_code, reason = "each test file uses its part")]

use uswap_core::{PAGE_SIZE, PageBuf, PageHasher};
use uswap_device::Device;
use uswap_store::{Compression, Concurrency, ObjectId, PutError, Scratch, Store, StoreConfig, Tier};

pub const HASHER_SECRET: u64 = 0x5eed;
/// Bytes in a slab of the pool.
pub const SLAB: u64 = 64 << 10;

pub fn hasher() -> PageHasher {
    PageHasher::new(HASHER_SECRET)
}

/// A store whose pool has `slabs` slabs.
pub fn store(slabs: u64, devices: Vec<Box<dyn Device>>) -> Store {
    // Used in the order given.
    let devices = devices.into_iter().zip((0..).step_by(1)).map(|(device, place)| (device, -place)).collect();
    store_with(slabs, devices, Concurrency::default())
}

/// Devices with their priorities.
type Devices = Vec<(Box<dyn Device>, i32)>;

/// The same with locks of another kind.
pub fn store_with(slabs: u64, devices: Devices, concurrency: Concurrency) -> Store {
    make(slabs, devices, concurrency, Tier::default())
}

/// The same with another tier in memory.
pub fn store_in(slabs: u64, tier: Tier, devices: Devices) -> Store {
    make(slabs, devices, Concurrency::default(), tier)
}

fn make(slabs: u64, devices: Devices, concurrency: Concurrency, tier: Tier) -> Store {
    let (pool_limit_bytes, pool_reserve_bytes) = (slabs * SLAB, 64 << 20);
    let config = StoreConfig { pool_limit_bytes, pool_reserve_bytes, hasher: hasher(), devices, concurrency, tier };
    Store::new(config).expect("address space")
}

/// Each compressor of the registry: at its lowest level, the usual one and the highest.
pub fn compressors() -> Vec<Compression> {
    let all: Vec<_> = Compression::all().collect();
    let mut chosen = Vec::new();
    for levels in all.chunk_by(|a, b| a.name() == b.name()) {
        let usual = levels[0].name().parse().expect("a compressor's own name");
        chosen.extend([levels[0], usual, levels[levels.len() - 1]]);
    }
    chosen.dedup();
    chosen
}

/// A small random generator.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A page whose first `noise` bytes do not compress; the rest is one byte.
pub fn page(seed: u64, noise: usize) -> PageBuf {
    let mut random = Random::new(seed);
    let mut page = [random.next() as u8; PAGE_SIZE];
    page[..noise].iter_mut().for_each(|b| *b = (random.next() >> 32) as u8);
    page
}

/// Compresses to about 1.1 KiB.
pub fn soft(seed: u64) -> PageBuf {
    page(seed, 1024)
}

/// Does not compress.
pub fn hard(seed: u64) -> PageBuf {
    page(seed, PAGE_SIZE)
}

pub fn put(store: &Store, page: &PageBuf, scratch: &mut Scratch) -> Result<ObjectId, PutError> {
    store.put(page, hasher().hash(page), scratch)
}

/// Loads and compares.
pub fn check(store: &Store, id: ObjectId, page: &PageBuf, scratch: &mut Scratch) {
    let mut out = [0xA5; PAGE_SIZE];
    store.load_blocking(id, &mut out, scratch).expect("a referenced page can be loaded");
    assert!(out == *page, "{id:?} came back different");
}
