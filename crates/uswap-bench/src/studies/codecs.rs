//! Compressors and allocators of the pool on pages of real programs ([`crate::measure::sample`]).
//!
//! Each page is stored and loaded alone, through the store, as in the engine: same-filled test,
//! compression, an entry, memory; then lock, copy, decompression and checksum. The figures include
//! the time to read the clock, about 25 ns.

use std::fmt::Write;
use std::time::Instant;

use uswap_core::{PAGE_SIZE, PageBuf, PageHasher};
use uswap_store::{
    AllocatorKind, Compression, Concurrency, ObjectId, Scratch, Store, StoreConfig, Tier, WritebackScratch,
};

/// Memory of the pool in bytes: enough for all pages.
const ROOM: u64 = 1 << 30;
/// Width in bytes of one line of a distribution.
pub const BIN: usize = 32;

fn store(hasher: PageHasher, tier: Tier) -> Store {
    let concurrency = Concurrency::default();
    let config =
        StoreConfig { pool_limit_bytes: ROOM, pool_reserve_bytes: ROOM, hasher, devices: vec![], concurrency, tier };
    Store::new(config).expect("a gigabyte of address space")
}

/// The measurements of one compressor.
struct Timed {
    /// Nanoseconds for each page.
    store: Vec<u32>,
    load: Vec<u32>,
    /// Number of pages kept in the pool, and their compressed bytes.
    kept: usize,
    bytes: u64,
}

fn nanoseconds(since: Instant) -> u32 {
    since.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32
}

fn time(pages: &[PageBuf], compression: Compression) -> Timed {
    let hasher = PageHasher::new(7);
    let store = store(hasher, Tier { compression, ..Tier::default() });
    let (mut scratch, mut out) = (Scratch::new(), [0; PAGE_SIZE]);
    let mut timed = Timed { store: Vec::new(), load: Vec::new(), kept: 0, bytes: 0 };
    let mut ids = Vec::new();
    for page in pages {
        let hash = hasher.hash(page);
        let begin = Instant::now();
        let id = store.put(page, hash, &mut scratch);
        timed.store.push(nanoseconds(begin));
        ids.extend(id.ok().map(|id| (id, page)));
    }
    timed.bytes = store.stats().stored_bytes;
    timed.kept = ids.len();
    // Pages are loaded in another order than they were stored: when a page is loaded, none of it is
    // in the processor's caches.
    let step = (ids.len() * 5 / 8) | 1;
    for n in 0..ids.len() {
        let (id, page) = ids[n * step % ids.len()];
        let begin = Instant::now();
        let loaded = store.load(id, &mut out);
        timed.load.push(nanoseconds(begin));
        assert!(loaded.is_ok() && out == *page, "{compression}: a page came back different");
    }
    timed
}

fn percentile(sorted: &[u32], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |ns| f64::from(*ns) / 1e3)
}

/// The table of compressors, in Markdown.
pub fn compressors(pages: &[PageBuf]) -> String {
    let mut text = String::from(
        "| compressor | store p50 | p99 | load p50 | p99 | kept | ratio of these |\n|---|---|---|---|---|---|---|\n",
    );
    for compression in Compression::compared() {
        let mut timed = time(pages, compression);
        timed.store.sort_unstable();
        timed.load.sort_unstable();
        let _ = writeln!(
            text,
            "| {compression} | {:.1} us | {:.1} us | {:.1} us | {:.1} us | {:.1} % | {:.2} |",
            percentile(&timed.store, 50),
            percentile(&timed.store, 99),
            percentile(&timed.load, 50),
            percentile(&timed.load, 99),
            100.0 * timed.kept as f64 / pages.len() as f64,
            (timed.kept * PAGE_SIZE) as f64 / timed.bytes.max(1) as f64,
        );
    }
    text
}

/// Bytes of the pool divided by the compressed bytes in it.
fn density(store: &Store) -> f64 {
    let stats = store.stats();
    stats.pool_bytes as f64 / stats.stored_bytes.max(1) as f64
}

/// Density of the pool: just filled; after half of the pages were replaced in random order; after
/// thin slabs were then emptied; after a third was freed; and after thin slabs were emptied again.
fn densities(pages: &[PageBuf], tier: Tier) -> [f64; 5] {
    let hasher = PageHasher::new(7);
    let (store, mut scratch, mut state) = (store(hasher, tier), Scratch::new(), 1u64);
    let mut put = |n: usize| store.put(&pages[n], hasher.hash(&pages[n]), &mut scratch).ok();
    let mut held: Vec<ObjectId> = (0..pages.len()).filter_map(&mut put).collect();
    let full = density(&store);
    let mut chance = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for _ in 0..pages.len() / 2 {
        store.release(held.swap_remove(chance(held.len())));
        held.extend(put(chance(pages.len())));
    }
    let replaced = density(&store);
    let mut writeback = WritebackScratch::new();
    let mut compacted = |store: &Store| {
        while store.is_thin() && store.compact(&mut writeback) > 0 {}
        density(store)
    };
    let tidy = compacted(&store);
    for _ in 0..held.len() / 3 {
        store.release(held.swap_remove(chance(held.len())));
    }
    let freed = density(&store);
    let tidy_again = compacted(&store);
    held.into_iter().for_each(|id| store.release(id));
    [full, replaced, tidy, freed, tidy_again]
}

/// The table of allocators, in Markdown.
pub fn allocators(pages: &[PageBuf]) -> String {
    let mut text = String::from(
        "| allocator | compressor | filled | half replaced | compacted | a third freed | compacted |\n|---|---|---|---|---|---|---|\n",
    );
    for (name, allocator) in [("slab", AllocatorKind::Slab), ("zbud", AllocatorKind::Zbud)] {
        for compression in Compression::each() {
            let tier = Tier { allocator, compression };
            let [full, replaced, tidy, freed, tidy_again] = densities(pages, tier);
            let _ = writeln!(
                text,
                "| {name} | {compression} | {full:.3} | {replaced:.3} | {tidy:.3} | {freed:.3} | {tidy_again:.3} |"
            );
        }
    }
    text
}

/// Distribution of the compressed lengths: a line `BYTES COUNT` for each [`BIN`] bytes, where BYTES
/// is the longest length of the bin.
pub fn distribution(pages: &[PageBuf], compression: Compression) -> String {
    let hasher = PageHasher::new(7);
    let store = store(hasher, Tier { compression, ..Tier::default() });
    let (mut scratch, mut bins) = (Scratch::new(), [0u64; PAGE_SIZE / BIN]);
    for page in pages {
        if let Ok(id) = store.put(page, hasher.hash(page), &mut scratch) {
            bins[(store.stats().stored_bytes as usize - 1) / BIN] += 1;
            store.release(id);
        }
    }
    let filled = bins.iter().enumerate().filter(|(_, count)| **count > 0);
    filled.map(|(bin, count)| format!("{} {count}\n", (bin + 1) * BIN)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Vec<PageBuf> {
        let page = |n: usize| std::array::from_fn(|i| if i < n * 16 { ((i * i * n) >> 5) as u8 } else { n as u8 });
        (1..200).map(page).collect()
    }

    #[test]
    fn every_compressor_and_allocator_has_a_row() {
        let pages = pages();
        let table = compressors(&pages);
        assert!(Compression::compared().all(|name| table.contains(&format!("\n| {name} | "))), "{table}");
        assert_eq!(table.lines().count(), 2 + Compression::compared().count());
        let table = allocators(&pages);
        assert_eq!(
            table.lines().filter(|line| line.starts_with("| zbud") || line.starts_with("| slab")).count(),
            2 * Compression::each().count()
        );
        let counts: u64 = distribution(&pages, Compression::default())
            .lines()
            .map(|l| l.split(' ').nth(1).unwrap().parse::<u64>().unwrap())
            .sum();
        assert!(counts > 100 && counts <= 199, "{counts}");
    }
}
