//! Processes that go over their own memory again and again, all at the same time: the case for load
//! control.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};

/// Options of `turns`.
#[derive(Args, Debug)]
pub struct TurnsArguments {
    /// Memory of all processes together, in MiB
    #[arg(long, default_value_t = 512)]
    mib: usize,
    /// Processes
    #[arg(long, default_value_t = 8)]
    processes: usize,
    /// How often each visits each of its pages, in order
    #[arg(long, default_value_t = 20)]
    rounds: usize,
}

/// Runs the workload; returns its results, which are printed as one line of JSON. Each process is
/// the workload `memory`, which checks what it reads.
///
/// # Errors
/// A process could not be started, or failed.
pub fn run(arguments: &TurnsArguments) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mib = (arguments.mib / arguments.processes.max(1)).max(1);
    let operations = (mib * 256 * arguments.rounds).to_string();
    let start = Instant::now();
    let start_one = |number: usize| {
        Command::new(&program)
            .args(["memory", "--mib", &mib.to_string(), "--pattern", "seq", "--operations", &operations])
            .args(["--seconds", "3600", "--check-seconds", "3600", "--seed", &number.to_string()])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("process {number}: {error}"))
    };
    let mut children = (0..arguments.processes).map(start_one).collect::<Result<Vec<Child>, _>>()?;
    let statuses: Vec<_> = children.iter_mut().map(Child::wait).collect();
    match statuses.iter().position(|status| !status.as_ref().is_ok_and(|status| status.success())) {
        Some(number) => Err(format!("process {number} of {} failed", arguments.processes)),
        None => Ok(json!({ "answer": "whole", "seconds": start.elapsed().as_secs_f64() })),
    }
}
