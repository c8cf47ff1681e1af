//! `uswap attach` gives a running program an engine; `uswap detach` takes the program away from it.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use uswap_core::util::size::human;
use uswap_run::config::{RunConfig, Target, exit};
use uswap_run::control::protocol::Request;
use uswap_run::control::protocol::answer::DetachBegun;
use uswap_run::{eligibility, keeper};
use uswap_sys::process::interrupt;

use crate::client::{self, RunningRun};
use crate::commands::background;
use crate::commands::orders::tell;
use crate::commands::run::{EngineArguments, RunRefusal, prepare_engine};

/// Interval at which the engine is asked for its progress.
const PERIOD: Duration = Duration::from_millis(50);

/// Maximum number of requests in a row without an answer.
const MAX_SILENT: u32 = 40;

#[derive(Args, Debug)]
pub struct AttachArguments {
    #[command(flatten)]
    engine: EngineArguments,
    /// With all its descendants, not only those that it forks from now on
    #[arg(long)]
    tree: bool,
    /// Go to the background once the program is attached to; uswap detach ends it
    #[arg(short, long)]
    detach: bool,
    /// The program's process id
    #[arg(value_name = "PID")]
    pid: u32,
}

#[derive(Args, Debug)]
pub struct DetachArguments {
    /// What `attach` was named: the process id, if nothing else was said
    #[arg(value_name = "NAME")]
    name: String,
    /// Print what came of it as JSON
    #[arg(long)]
    json: bool,
}

/// Attaches, and serves the program until it ends or is detached; returns the exit status.
pub fn attach(arguments: &AttachArguments) -> i32 {
    match prepare(arguments) {
        Ok(config) if arguments.detach => in_background(config),
        Ok(config) => keeper::run(&config),
        Err((text, status)) => {
            eprintln!("uswap: {text}");
            status
        }
    }
}

fn prepare(arguments: &AttachArguments) -> Result<RunConfig, RunRefusal> {
    let refuse = |text: String| (text, exit::REFUSED);
    eligibility::check(arguments.pid).map_err(refuse)?;
    let program = Target { pid: arguments.pid, tree: arguments.tree };
    let config = prepare_engine(&arguments.engine, Some(program))?;
    let words = eligibility::command_line(arguments.pid).into_iter();
    // Each argument without the NUL at its end.
    Ok(RunConfig { arguments: words.filter_map(|word| std::ffi::CString::new(word).ok()).collect(), ..config })
}

/// Returns once the program is attached, or attaching has failed.
fn in_background(config: RunConfig) -> i32 {
    background::run(|ready| keeper::run(&RunConfig { ready: Some(Arc::new(ready)), ..config }))
}

/// Detaches from a program; returns the exit status.
pub fn detach(arguments: &DetachArguments) -> i32 {
    // A detach must not stop half-way: the engine completes it even if this command is interrupted.
    if let Err(error) = interrupt::remember_requests_to_end() {
        eprintln!("uswap: {error}");
        return exit::REFUSED;
    }
    let order = || {
        let run = client::find(&arguments.name)?;
        let engine = client::status(&run)?.engine_pid;
        let answer: DetachBegun = client::ask_for(&run, &Request::Detach {})?;
        watch(&run, engine)?;
        Ok(answer)
    };
    tell(order(), arguments.json, |answer| {
        format!("{}: {} came back into memory", arguments.name, human(answer.pages << 12))
    })
}

/// Waits until the engine has ended, or has given up.
fn watch(run: &RunningRun, engine: u32) -> Result<(), String> {
    let mut silent = 0;
    loop {
        let status = match client::status(run) {
            // Another run may have taken the name already.
            Ok(status) if status.engine_pid == engine => status,
            Ok(_) => return Ok(()),
            Err(_) if client::find(&run.name).is_err() => return Ok(()),
            // The engine may be about to end.
            Err(_) if silent < MAX_SILENT => {
                silent += 1;
                std::thread::sleep(PERIOD);
                continue;
            }
            Err(error) => return Err(error),
        };
        let detach = status.figures.detach.unwrap_or_default();
        if !detach.running {
            return Err(detach.error.unwrap_or_else(|| "it was given up".into()));
        }
        if interrupt::arrived().is_some() {
            return Err("interrupted; it goes on by itself (uswap status tells how far it is)".into());
        }
        std::thread::sleep(PERIOD);
    }
}
