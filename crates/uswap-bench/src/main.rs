//! `uswap-bench`; see the library.

use clap::Parser;
use uswap_bench::command_line::{CommandLine, run};

fn main() -> std::process::ExitCode {
    let status = run(&CommandLine::parse());
    std::process::ExitCode::from(u8::try_from(status).unwrap_or(1))
}
