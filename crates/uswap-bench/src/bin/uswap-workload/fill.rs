//! Processes that fill memory in order, all at the same time, then read it back: the swap-out
//! throughput test of 2017.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};

use crate::content::{ContentKind, WORDS};

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

/// Runs the workload; returns its results, which are printed as one line of JSON.
///
/// # Errors
/// A page did not hold what was written to it, or a process could not be started or failed.
pub fn run(arguments: &FillArguments) -> Result<Value, String> {
    match arguments.child {
        Some(number) => fill(arguments, number),
        None => spread(arguments),
    }
}

/// Fills memory, reports that, and reads back once standard input ends, which tells that all other
/// processes have filled theirs too.
fn fill(arguments: &FillArguments, number: usize) -> Result<Value, String> {
    let pages = (arguments.mib << 20) / (WORDS * 8) / arguments.processes;
    let first = (number * pages) as u64;
    let mut memory = vec![0u64; pages * WORDS];
    for (i, page) in memory.chunks_mut(WORDS).enumerate() {
        ContentKind::Text.fill(page, first + i as u64, 0);
    }
    println!("filled");
    std::io::stdin().read_line(&mut String::new()).map_err(|error| error.to_string())?;
    for (i, page) in memory.chunks(WORDS).enumerate() {
        ContentKind::Text.check_all(page, first + i as u64, 0)?;
    }
    Ok(json!({ "answer": "whole" }))
}

fn spread(arguments: &FillArguments) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let start = Instant::now();
    let start_one = |number: usize| {
        Command::new(&program)
            .args(["fill", "--mib", &arguments.mib.to_string(), "--processes", &arguments.processes.to_string()])
            .args(["--child", &number.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("process {number}: {error}"))
    };
    let mut children = (0..arguments.processes).map(start_one).collect::<Result<Vec<_>, _>>()?;
    let all_filled = children.iter_mut().all(has_filled);
    let filled = start.elapsed().as_secs_f64();
    let mut failed = 0;
    let mut last = String::new();
    // The end of their standard input tells the processes to read back.
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    for (number, mut child) in children.into_iter().enumerate() {
        let status = child.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            failed += 1;
            last = format!("process {number}: {status}");
        }
    }
    if failed > 0 || !all_filled {
        return Err(format!("{failed} of {} processes failed, the last one {last}", arguments.processes));
    }
    Ok(json!({ "answer": "whole", "fill_seconds": filled, "seconds": start.elapsed().as_secs_f64() }))
}

/// Waits for the line that reports that a process has filled its memory; `false` when it ended
/// without the line.
fn has_filled(child: &mut Child) -> bool {
    let mut line = Vec::new();
    let Some(out) = child.stdout.as_mut() else { return false };
    let mut byte = [0];
    while out.read(&mut byte).is_ok_and(|n| n == 1) && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    line == b"filled"
}
