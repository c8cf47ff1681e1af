//! The page-fault test (`pft`, 2013): threads touch fresh memory as fast as they can. Its time
//! while memory is not short shows how much a pager adds to each first touch.

use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};

use crate::content::WORDS;

/// Options of `pft`.
#[derive(Args, Debug)]
pub struct PftArguments {
    /// Memory of all threads together, in MiB
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// How often the memory is taken, touched and given back
    #[arg(long, default_value_t = 12)]
    rounds: usize,
}

/// Runs the workload; returns its results, which are printed as one line of JSON.
///
/// # Errors
/// A fresh page was not zero.
pub fn run(arguments: &PftArguments) -> Result<Value, String> {
    let pages = (arguments.mib << 20) / (WORDS * 8) / arguments.threads.max(1);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..arguments.threads.max(1)).map(|_| scope.spawn(|| touch(pages, arguments.rounds))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread of the workload panicked"))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let (user, system) = processor_seconds();
    let faults = (pages * arguments.threads.max(1) * arguments.rounds) as f64;
    Ok(json!({
        "answer": "zero",
        "seconds": seconds,
        "threads": arguments.threads,
        "user_seconds": user,
        "system_seconds": system,
        "faults": faults,
        "faults_per_second": faults / seconds,
        "faults_per_processor_second": faults / (user + system).max(1e-9),
    }))
}

fn touch(pages: usize, rounds: usize) -> Result<(), String> {
    for round in 0..rounds {
        let mut memory = vec![0u64; pages * WORDS];
        for (page, words) in memory.chunks_mut(WORDS).enumerate() {
            if std::hint::black_box(words[0]) != 0 {
                return Err(format!("round {round}: fresh page {page} holds {:#x}", words[0]));
            }
            words[0] = 1;
        }
        std::hint::black_box(&memory);
    }
    Ok(())
}

/// User and system time of this process in seconds, to a hundredth of a second.
fn processor_seconds() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0) / 100.0;
    (ticks(11), ticks(12))
}
