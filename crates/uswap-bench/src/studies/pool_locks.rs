//! Measures the cost of the pool's locks: one lock around the whole pool, as in an earlier version,
//! beside one lock per size class, as now.
//!
//! Threads store pages that compress to many sizes and free the oldest ones, each thread with its
//! own window of pages, through the store; a second table allocates and frees only objects of these
//! sizes, where no compression hides the cost of the locks.

use std::collections::VecDeque;
use std::sync::Arc;

use uswap_core::{Allocator, OneLock, PAGE_SIZE, PageBuf, PageHasher, SLAB_SIZE, Slabs, Supply, worker_number};
use uswap_store::{Concurrency, PoolMemory, Scratch, Store, StoreConfig, Tier};
use uswap_sys::Reservation;

use crate::studies::locks::{LocksCell, LocksPlan, LocksSample, in_words, noise, rounds, run, table, window};

/// The rows: the name, and whether one lock is around the whole pool.
const ROWS: [(&str, bool); 2] = [("one lock", true), ("a lock for each size", false)];
/// Number of pages of different content, and of objects of different length, per thread.
const CONTENTS: usize = 64;
/// Memory of the pool in bytes: enough for all windows.
const POOL: usize = 256 << 20;

/// Number of bytes of a page that do not compress: from 150 to 2800.
fn hard_bytes(n: usize) -> usize {
    150 + n * 2650 / CONTENTS
}

fn soft_page(n: usize) -> Box<PageBuf> {
    let mut page = noise(worker_number() as u64 * 1000 + n as u64);
    page[hard_bytes(n)..].fill(n as u8);
    page
}

fn store_pages(threads: u32, seconds: f64, one_pool_lock: bool) -> LocksSample {
    let (window, hasher) = (window(threads), PageHasher::new(1));
    let concurrency = Concurrency { one_pool_lock, ..Concurrency::default() };
    let (pool_limit_bytes, pool_reserve_bytes, devices) = (POOL as u64, POOL as u64, vec![]);
    let config =
        StoreConfig { pool_limit_bytes, pool_reserve_bytes, hasher, devices, concurrency, tier: Tier::default() };
    let store = Arc::new(Store::new(config).expect("address space"));
    run(threads, seconds, &|| {
        let (store, mut scratch, mut held) = (store.clone(), Scratch::new(), VecDeque::with_capacity(window + 1));
        let contents: Vec<_> = (0..CONTENTS).map(soft_page).collect();
        let hashes: Vec<_> = contents.iter().map(|page| hasher.hash(page)).collect();
        let (mut turn, mut out) = (worker_number() * 7, [0; PAGE_SIZE]);
        Box::new(move || {
            turn = (turn + 5) % CONTENTS;
            let id = store.put(&contents[turn], hashes[turn], &mut scratch).expect("the pool has room");
            held.push_back(id);
            if held.len() > window {
                let oldest = held.pop_front().expect("more than a window");
                store.load(oldest, &mut out).expect("it is in the pool");
                store.release(oldest);
            }
        })
    })
}

fn pool_alone(threads: u32, seconds: f64, one_pool_lock: bool) -> LocksSample {
    let pieces = Reservation::in_pieces(POOL, SLAB_SIZE).expect("address space");
    let slabs = Slabs::new(Supply::new(pieces.map(PoolMemory), SLAB_SIZE, POOL as u64));
    let window = window(threads);
    let pool: Arc<dyn Allocator> = if one_pool_lock { Arc::new(OneLock::new(slabs)) } else { Arc::new(slabs) };
    run(threads, seconds, &|| {
        let (pool, mut held) = (pool.clone(), VecDeque::with_capacity(window + 1));
        let (mut turn, bytes) = (worker_number() * 7, noise(1));
        Box::new(move || {
            turn = (turn + 5) % CONTENTS;
            held.push_back(pool.alloc(&bytes[..hard_bytes(turn)]).expect("the pool has room"));
            if held.len() > window {
                pool.free(held.pop_front().expect("more than a window"));
            }
        })
    })
}

/// Measures both tables and returns them as Markdown.
pub fn measure(plan: &LocksPlan) -> String {
    let names = ROWS.map(|(name, _)| name);
    let stored = rounds(plan, &names, |threads, row| store_pages(threads, plan.seconds, ROWS[row].1));
    let alone = rounds(plan, &names, |threads, row| pool_alone(threads, plan.seconds, ROWS[row].1));
    let words = |cells: &[LocksCell]| in_words(cells, ROWS[1].0);
    format!(
        "## Pages in the pool\nPages that compress to 0.2 to 2.8 KiB are stored in the pool, one by one, and the oldest ones \
         loaded and freed.\n\n{}\n{}\n## The pool alone\nAn object of such a size is stored and an old one freed.\n\n{}\n{}",
        table(&stored),
        words(&stored),
        table(&alone),
        words(&alone),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_rows_store_and_free() {
        let text = measure(&LocksPlan { threads: vec![1, 3], rounds: 2, seconds: 0.02 });
        assert_eq!(text.lines().filter(|line| line.starts_with("| 3 |")).count(), 2 + 2, "{text}");
    }
}
