//! Time per page of put and load, for pages that compress two to three times, one thread.
//!
//! `cargo run --release -p uswap-store --example store_speed [PAGES | FILE]`: with a file, its
//! pages (those that are neither same-filled nor incompressible) are measured instead.

use std::hint::black_box;
use std::time::Instant;

use uswap_core::{PAGE_SIZE, PageBuf, PageHasher};
use uswap_store::{Concurrency, Scratch, Store, StoreConfig, Tier};

/// A xorshift generator: the same pages every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A page like a heap: records of pointers with common high bytes, small integers, zeros and a
/// little noise.
fn heap_page(random: &mut Random) -> PageBuf {
    let mut page = [0; PAGE_SIZE];
    let base = 0x7f3a_0000_0000 | (random.next() & 0xffff_0000);
    for record in page.chunks_mut(32) {
        record[..8].copy_from_slice(&(base + (random.next() & 0xfff0)).to_ne_bytes());
        record[8..16].copy_from_slice(&(random.next() & 0xff).to_ne_bytes());
        if random.next().is_multiple_of(3) {
            record[16..24].copy_from_slice(&random.next().to_ne_bytes());
        }
    }
    page
}

/// Half of the page is noise, the rest one byte.
fn half_page(random: &mut Random) -> PageBuf {
    let mut page = [random.next() as u8; PAGE_SIZE];
    page[..PAGE_SIZE * 2 / 5].as_chunks_mut::<8>().0.iter_mut().for_each(|w| *w = random.next().to_ne_bytes());
    page
}

fn measure(name: &str, pages: &[PageBuf]) {
    let hasher = PageHasher::new(1);
    let reserve = 4 << 30;
    let config = StoreConfig {
        pool_limit_bytes: reserve,
        pool_reserve_bytes: reserve,
        hasher,
        devices: vec![],
        concurrency: Concurrency::default(),
        tier: Tier::default(),
    };
    let store = Store::new(config).expect("address space");
    let mut scratch = Scratch::new();
    let per_page = |start: Instant| start.elapsed().as_secs_f64() * 1e6 / pages.len() as f64;

    let start = Instant::now();
    let hashes: Vec<_> = pages.iter().map(|page| hasher.hash(page)).collect();
    let hash = per_page(start);

    let mut put = [0.0; 3];
    let mut load = [0.0; 3];
    let (mut release, mut ratio) = (0.0, 0.0);
    for round in 0..3 {
        let start = Instant::now();
        let ids: Vec<_> =
            pages.iter().zip(&hashes).map(|(page, &h)| store.put(page, h, &mut scratch).expect("room")).collect();
        put[round] = per_page(start);

        let mut out = [0; PAGE_SIZE];
        let start = Instant::now();
        for &id in &ids {
            store.load(id, &mut out).expect("stored");
            black_box(&out);
        }
        load[round] = per_page(start);
        let stats = store.stats();
        ratio = (pages.len() * PAGE_SIZE) as f64 / stats.pool_bytes as f64;
        let start = Instant::now();
        ids.into_iter().for_each(|id| store.release(id));
        release = per_page(start);
    }
    println!("{name:>6}: ratio {ratio:.2}  hash {hash:.2}  put {put:.2?}  load {load:.2?}  release {release:.2}  (µs)");
}

/// The pages of a file that go into the pool.
fn file_pages(path: &str) -> Vec<PageBuf> {
    let bytes = std::fs::read(path).expect("a number of pages or a readable file");
    let config = StoreConfig {
        pool_limit_bytes: 1 << 30,
        pool_reserve_bytes: 1 << 30,
        hasher: PageHasher::new(1),
        devices: vec![],
        concurrency: Concurrency::default(),
        tier: Tier::default(),
    };
    let (store, mut scratch) = (Store::new(config).expect("address space"), Scratch::new());
    let pages = bytes.as_chunks::<PAGE_SIZE>().0.iter().take(100_000);
    let soft = pages.filter(|&page| {
        let id = store.put(page, PageHasher::new(1).hash(page), &mut scratch);
        id.is_ok_and(|id| {
            let pooled = store.stats().same_filled_pages == 0;
            store.release(id);
            pooled
        })
    });
    soft.copied().collect()
}

fn main() {
    let argument = std::env::args().nth(1).unwrap_or("50000".into());
    let Ok(count) = argument.parse() else { return measure("file", &file_pages(&argument)) };
    let mut random = Random(88172645463325252);
    let heap: Vec<_> = (0..count).map(|_| heap_page(&mut random)).collect();
    measure("heap", &heap);
    drop(heap);
    let half: Vec<_> = (0..count).map(|_| half_page(&mut random)).collect();
    measure("half", &half);
}
