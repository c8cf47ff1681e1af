//! blocks - threads that keep checked blocks in a heap of many sizes, replace them at random, and check all at the end.
//! For a Rust program without a C library that loads anything (the target x86_64-unknown-linux-musl).
//!
//!     blocks MIB SECONDS

use std::time::{Duration, Instant};

const THREADS: usize = 4;

/// xorshift: the next random number.
fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

struct Block {
    seed: u64,
    words: Vec<u64>,
}

impl Block {
    fn new(seed: u64) -> Self {
        let mut random = seed | 1;
        let length = 16 + next(&mut random) as usize % 4096;
        Self { seed, words: (0..length).map(|_| next(&mut random)).collect() }
    }

    fn check(&self) {
        assert!(self.words == Block::new(self.seed).words, "block {:#x} came back wrong", self.seed);
    }
}

fn churn(thread: usize, bytes: usize, until: Instant) -> u64 {
    let mut random = 0x9e37_79b9_7f4a_7c15 ^ thread as u64;
    let mut blocks: Vec<Block> = Vec::new();
    while blocks.iter().map(|block| block.words.len() * 8).sum::<usize>() < bytes {
        blocks.extend((0..64).map(|_| Block::new(next(&mut random))));
    }
    let mut checked = 0;
    while Instant::now() < until {
        let index = next(&mut random) as usize % blocks.len();
        blocks[index].check();
        if next(&mut random) % 4 == 0 {
            blocks[index] = Block::new(next(&mut random));
        }
        checked += 1;
    }
    blocks.iter().for_each(Block::check);
    checked
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|word| word.parse().expect("a number")).collect();
    let bytes = ((numbers[0] << 20) as usize) / THREADS;
    let until = Instant::now() + Duration::from_secs(numbers[1]);
    let threads: Vec<_> = (0..THREADS).map(|number| std::thread::spawn(move || churn(number, bytes, until))).collect();
    let checked: u64 = threads.into_iter().map(|thread| thread.join().expect("a thread")).sum();
    println!("ok: {checked} blocks checked");
}
