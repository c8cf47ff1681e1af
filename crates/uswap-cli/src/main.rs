//! `uswap`: swap in user space.

mod client;
mod commands;
mod host;
mod ui;

use std::io::Write;

use clap::{Parser, Subcommand};

/// Aborts when a thread that serves pages allocates outside a named purpose
/// (`uswap_core::util::growth`).
#[global_allocator]
static ALLOCATOR: uswap_sys::GuardedAllocator = uswap_sys::GuardedAllocator;

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
    #[command(override_usage = "uswap run [OPTIONS] -- CMD [ARG...]")]
    Run(commands::run::RunArguments),
    /// Give a program that runs already a memory budget; Ctrl-C lets go of it
    Attach(commands::attach::AttachArguments),
    /// Let go of a program that was attached to: all its memory comes back
    Detach(commands::attach::DetachArguments),
    /// Show what a run uses, evicts and brings back
    Status(commands::status::StatusArguments),
    /// Show the status of a run once a second; q ends
    Top(commands::top::TopArguments),
    /// Give a run another swap file or device
    Swapon(commands::orders::SwaponArguments),
    /// Empty a swap file or device of a run (into the pool, onto others, or back into memory) and
    /// let it go
    Swapoff(commands::orders::SwapoffArguments),
    /// Change the budget of a run
    Limit(commands::orders::LimitArguments),
    /// Change the compressor of a run; what is stored stays as it is
    Compressor(commands::orders::CompressorArguments),
    /// Write a core file of a managed process, with what is evicted; the program goes on
    Core(commands::core_file::CoreArguments),
    /// Divide the budget of a run among groups of its processes
    Group(commands::groups::GroupArguments),
    /// Mount a folder with a cache of its own, which one big scan does not flush
    Mount(commands::mount::MountArguments),
    /// End a mount
    Umount(commands::mount::UmountArguments),
    /// Tell what works here, and how to get what does not
    Doctor(commands::doctor::DoctorArguments),
    /// Compare eviction policies on traces
    Lab(commands::lab::LabArguments),
    /// Print shell completions
    Completions(ui::manual::CompletionsArguments),
    /// Print the man page
    #[command(hide = true)]
    Man,
}

/// The grammar with `run` alone: what is not asked for is not built (0.4 ms of 5 at the start of a
/// run).
#[derive(Parser)]
#[command(name = "uswap")]
struct RunAlone {
    #[command(subcommand)]
    command: RunCommand,
}

#[derive(Subcommand)]
enum RunCommand {
    #[command(override_usage = "uswap run [OPTIONS] -- CMD [ARG...]")]
    Run(commands::run::RunArguments),
}

fn main() {
    std::process::exit(perform(parse()))
}

/// Parses the command line. `uswap run` is parsed by its own grammar; if that refuses, or help is
/// asked for, the whole grammar answers.
fn parse() -> Command {
    if std::env::args_os().nth(1).is_some_and(|word| word == "run")
        && let Ok(RunAlone { command: RunCommand::Run(arguments) }) = RunAlone::try_parse()
    {
        return Command::Run(arguments);
    }
    Cli::try_parse().unwrap_or_else(|error| refuse(&error)).command
}

/// Executes one command; returns its exit status.
fn perform(command: Command) -> i32 {
    match command {
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Attach(arguments) => commands::attach::attach(&arguments),
        Command::Detach(arguments) => commands::attach::detach(&arguments),
        Command::Status(arguments) => commands::status::run(&arguments),
        Command::Top(arguments) => commands::top::run(&arguments),
        Command::Swapon(arguments) => commands::orders::swapon(&arguments),
        Command::Swapoff(arguments) => commands::orders::swapoff(&arguments),
        Command::Limit(arguments) => commands::orders::limit(&arguments),
        Command::Compressor(arguments) => commands::orders::compressor(&arguments),
        Command::Core(arguments) => commands::core_file::run(&arguments),
        Command::Group(arguments) => commands::groups::run(&arguments),
        Command::Mount(arguments) => commands::mount::mount(&arguments),
        Command::Umount(arguments) => commands::mount::umount(&arguments),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Lab(arguments) => commands::lab::run(&arguments),
        Command::Completions(arguments) => ui::manual::print_completions(&arguments),
        Command::Man => ui::manual::print_man_page(),
    }
}

/// Help and version were asked for; every other reason to stop the parser is wrong usage.
fn refuse(error: &clap::Error) -> ! {
    let status = if error.use_stderr() { uswap_run::config::exit::REFUSED } else { 0 };
    // If printing fails, there is no way to report it.
    let _ = error.print();
    std::process::exit(status)
}

/// Writes to standard output. If the reader has ended (`| head`), that is no error and no panic;
/// any other failure ends this process with a message, since a report that is cut off is useless.
fn print(text: &str) {
    let mut output = std::io::stdout();
    let Err(error) = output.write_all(text.as_bytes()).and_then(|()| output.flush()) else { return };
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    eprintln!("uswap: standard output: {error}");
    std::process::exit(uswap_run::config::exit::REFUSED)
}
