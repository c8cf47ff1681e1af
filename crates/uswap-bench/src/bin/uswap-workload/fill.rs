//! Processes that fill memory in order, all at once, then read it back: the swap-out throughput test of 2017.

use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};

use crate::content::{Kind, WORDS};

/// Options of `fill`.
#[derive(Args, Debug)]
pub struct FillArguments {
    /// Memory of all processes together, in MiB
    #[arg(long, default_value_t = 512)]
    mib: usize,
    /// Processes
    #[arg(long, default_value_t = 32)]
    processes: usize,
    /// One of the processes, with its number
    #[arg(long, hide = true)]
    child: Option<usize>,
}

/// Runs the workload; what it tells is one line of JSON.
///
/// # Errors
/// A page that did not hold what was written to it, or a process that could not be started or failed.
pub fn run(arguments: &FillArguments) -> Result<Value, String> {
    match arguments.child {
        Some(number) => fill(arguments, number),
        None => spread(arguments),
    }
}

fn fill(arguments: &FillArguments, number: usize) -> Result<Value, String> {
    let pages = (arguments.mib << 20) / (WORDS * 8) / arguments.processes;
    let first = (number * pages) as u64;
    let mut memory = vec![0u64; pages * WORDS];
    let start = Instant::now();
    for (i, page) in memory.chunks_mut(WORDS).enumerate() {
        Kind::Text.fill(page, first + i as u64, 0);
    }
    let filled = start.elapsed().as_secs_f64();
    for (i, page) in memory.chunks(WORDS).enumerate() {
        Kind::Text.check_all(page, first + i as u64, 0)?;
    }
    Ok(json!({ "fill_seconds": filled, "seconds": start.elapsed().as_secs_f64() }))
}

fn spread(arguments: &FillArguments) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let start = Instant::now();
    let start_one = |number: usize| {
        Command::new(&program)
            .args(["fill", "--mib", &arguments.mib.to_string(), "--processes", &arguments.processes.to_string()])
            .args(["--child", &number.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("process {number}: {error}"))
    };
    let children = (0..arguments.processes).map(start_one).collect::<Result<Vec<_>, _>>()?;
    let mut longest_fill: f64 = 0.0;
    let mut failed = Vec::new();
    for (number, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let told: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        match told.filter(|_| output.status.success()).and_then(|told| told["fill_seconds"].as_f64()) {
            Some(seconds) => longest_fill = longest_fill.max(seconds),
            None => failed.push(format!("process {number}: {}", output.status)),
        }
    }
    if !failed.is_empty() {
        return Err(failed.join("; "));
    }
    Ok(json!({ "answer": "whole", "fill_seconds": longest_fill, "seconds": start.elapsed().as_secs_f64() }))
}
