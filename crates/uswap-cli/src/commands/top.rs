//! `uswap top`: shows the status of a run, once a second, until `q` or Ctrl-C.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use uswap_run::config::exit;
use uswap_run::control::protocol::status::RunStatus;
use uswap_sys::io::terminal::Keys;
use uswap_sys::process::signal;

use crate::client::{self, RunningRun};
use crate::commands::status;

const PERIOD: Duration = Duration::from_secs(1);
const CTRL_C: u8 = 3;
/// Moves the cursor to the first line and erases everything below it.
const CLEAR: &str = "\x1b[H\x1b[J";

#[derive(Args, Debug)]
pub struct TopArguments {
    /// Name of the run; may be left out if there is only one
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// Shows the status until the user ends the command or the run has ended; returns the exit status.
pub fn run(arguments: &TopArguments) -> i32 {
    match choose(arguments.name.as_deref()).and_then(|run| show(&run)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("uswap: {error}");
            exit::REFUSED
        }
    }
}

fn choose(name: Option<&str>) -> Result<RunningRun, String> {
    if let Some(name) = name {
        return client::find(name);
    }
    match &client::runs()[..] {
        [] => Err("nothing runs under uswap here".into()),
        [run] => Ok(run.clone()),
        several => {
            let names: Vec<&str> = several.iter().map(|run| run.name.as_str()).collect();
            Err(format!("there are several runs, name one: {}", names.join(", ")))
        }
    }
}

fn show(run: &RunningRun) -> Result<(), String> {
    let mut before: Option<RunStatus> = None;
    // A signal must not leave the terminal without echo.
    let _mask = signal::block_all();
    let mut keys = Keys::new();
    loop {
        let now = match client::status(run) {
            Ok(now) => now,
            // The run was there before, so it has ended.
            Err(_) if before.is_some() => return Ok(()),
            Err(error) => return Err(error),
        };
        let clear = if std::io::stdout().is_terminal() { CLEAR } else { "" };
        crate::print(&format!("{clear}{}", status::in_tables(&now, before.as_ref())));
        before = Some(now);
        if is_over(keys.as_mut()) {
            return Ok(());
        }
    }
}

/// Waits for the next round; `true`: the user has ended the command.
fn is_over(keys: Option<&mut Keys>) -> bool {
    const WINDOW_CHANGED: i32 = 28;
    match keys {
        Some(keys) => {
            matches!(keys.next(PERIOD), Some(b'q' | CTRL_C))
                || signal::take(Duration::ZERO).is_ok_and(|t| ends(t.signal))
        }
        None => signal::take(PERIOD).is_ok_and(|taken| taken.signal != WINDOW_CHANGED),
    }
}

fn ends(signal: i32) -> bool {
    const HANGUP_INTERRUPT_TERMINATE: [i32; 3] = [1, 2, 15];
    HANGUP_INTERRUPT_TERMINATE.contains(&signal)
}
