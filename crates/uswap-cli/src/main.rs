//! `uswap`: swap in user space.

mod run;

use clap::{Parser, Subcommand};

/// Run programs in less memory than they need, without kernel swap.
#[derive(Parser)]
#[command(name = "uswap", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command and all its children within a memory budget
    Run(run::RunArguments),
}

fn main() {
    let cli = Cli::parse();
    let status = match cli.command {
        Command::Run(arguments) => run::run(&arguments),
    };
    std::process::exit(status);
}
