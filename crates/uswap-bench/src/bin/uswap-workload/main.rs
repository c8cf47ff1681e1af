//! Workloads of `uswap-bench` that need a program of their own. Each workload checks what it reads,
//! prints one line of JSON and exits with 0; when it finds an error, it reports it on standard
//! error and exits with 1. Wrong usage exits with 2.
//!
//! This is an ordinary program, which does not know what pages its memory.

mod content;
mod fill;
mod memory;
mod pattern;
mod pft;
mod redis;
mod sequence;
mod turns;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser, Debug)]
#[command(version, about = "Workloads of uswap-bench: each checks its own memory and prints one line of JSON")]
struct Arguments {
    #[command(subcommand)]
    workload: WorkloadCommand,
}

#[derive(Subcommand, Debug)]
enum WorkloadCommand {
    /// Fills memory and visits its pages by a pattern, with the latency of each visit
    Memory(memory::MemoryArguments),
    /// Processes that each fill a share of the memory in order, then read it back
    Fill(fill::FillArguments),
    /// Page-fault test: threads touch fresh memory, give it back, and again
    Pft(pft::PftArguments),
    /// Processes that each go over their own memory again and again
    Turns(turns::TurnsArguments),
    /// Load on a Redis server: SET and GET of keys by a zipf distribution
    Redis(redis::RedisArguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().workload {
        WorkloadCommand::Memory(arguments) => memory::run(&arguments),
        WorkloadCommand::Fill(arguments) => fill::run(&arguments),
        WorkloadCommand::Turns(arguments) => turns::run(&arguments),
        WorkloadCommand::Pft(arguments) => pft::run(&arguments),
        WorkloadCommand::Redis(arguments) => redis::run(&arguments),
    };
    match outcome {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("uswap-workload: {wrong}");
            ExitCode::from(1)
        }
    }
}
