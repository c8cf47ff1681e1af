//! `uswap swapon`, `uswap swapoff`, `uswap limit`, `uswap compressor`: commands to a run, which
//! goes on meanwhile.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use uswap_core::util::size::{Size, human, unit_hint};
use uswap_device::kinds::help;
use uswap_device::{SwapSpec, spec};
use uswap_run::cgroup::machine_memory;
use uswap_run::config::{Compression, exit};
use uswap_run::control::protocol::answer::{CompressorAnswer, LimitAnswer, SwapoffBegun, SwapoffStopped, SwaponAnswer};
use uswap_run::control::protocol::request::NewBudget;
use uswap_run::control::protocol::status::SwapoffProgress;
use uswap_run::control::protocol::{Request, in_json};
use uswap_sys::process::interrupt;

use crate::client::{self, RunningRun};

/// Interval at which a run is asked for its progress.
const PERIOD: Duration = Duration::from_millis(100);
/// Exit status after SIGINT, as in shells.
const INTERRUPTED: i32 = 130;

#[derive(Args, Debug)]
pub struct SwaponArguments {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    // Its help lists the kinds of devices.
    #[arg(value_name = "SPEC", help = help_of_spec())]
    spec: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub struct SwapoffArguments {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// The device, as `uswap status` names it
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Print what came of it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub struct LimitArguments {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// The budget from now on: a size (512M), a part of the machine's memory (50%), or auto
    #[arg(value_name = "SIZE|PERCENT|auto", allow_hyphen_values = true)]
    ram: String,
    /// How long to wait for the run to get below it, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
    /// Print what came of it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub struct CompressorArguments {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    #[arg(value_name = "COMPRESSOR", help = Compression::choices())]
    compressor: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

fn help_of_spec() -> String {
    let mut text = help::places_as_things();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text + "; with options as for `run --swap`"
}

/// Sets the compressor for pages that are stored from now on; returns the exit status.
pub fn compressor(arguments: &CompressorArguments) -> i32 {
    let order = || {
        let run = client::find(&arguments.name)?;
        client::ask_for(&run, &Request::Compressor { compressor: arguments.compressor.clone() })
    };
    tell(order(), arguments.json, |answer: &CompressorAnswer| {
        format!("{}, {} before", answer.compressor, answer.before)
    })
}

/// Adds a device; returns the exit status.
pub fn swapon(arguments: &SwaponArguments) -> i32 {
    let order = || {
        let spec = &arguments.spec;
        spec.parse::<SwapSpec>().map_err(|error| format!("{spec}: {error}"))?;
        let run = client::find(&arguments.name)?;
        client::ask_for(&run, &Request::Swapon { spec: seen_from_elsewhere(spec) })
    };
    tell(order(), arguments.json, |answer: &SwaponAnswer| {
        format!("{}: {}, priority {}", answer.device, human(answer.size_bytes), answer.priority)
    })
}

/// Empties a device and removes it; returns the exit status.
pub fn swapoff(arguments: &SwapoffArguments) -> i32 {
    // An interrupt must be passed on to the run; it must not only end this command.
    if let Err(error) = interrupt::remember_requests_to_end() {
        eprintln!("uswap: {error}");
        return exit::REFUSED;
    }
    let order = || {
        let run = client::find(&arguments.name).map_err(refused)?;
        let device = seen_from_elsewhere(&arguments.device);
        // The name of an unnamed file is that of its directory, which must not be completed: so the
        // name is first tried as the user wrote it.
        let asked = |name: &str| -> Result<SwapoffBegun, String> {
            client::ask_for(&run, &Request::Swapoff { device: name.to_string() })
        };
        let other = |first| if device == arguments.device { Err(first) } else { asked(&device) };
        asked(&arguments.device).or_else(other).map_err(refused)?;
        watch(&run)
    };
    match order() {
        Err((error, status)) => {
            eprintln!("uswap: {error}");
            status
        }
        Ok(outcome) => tell(Ok(outcome), arguments.json, |outcome| format!("{}: off", outcome.device)),
    }
}

fn refused(error: String) -> (String, i32) {
    (error, exit::REFUSED)
}

/// Waits until the swapoff is over. A signal that asks this command to end stops the swapoff first.
fn watch(run: &RunningRun) -> Result<SwapoffProgress, (String, i32)> {
    let mut stopped = false;
    loop {
        let swapoff = client::status(run).map_err(refused)?.figures.swapoff.unwrap_or_default();
        progress(swapoff.running, swapoff.pages, swapoff.pages_left);
        if !swapoff.running {
            return match swapoff.error {
                None => Ok(swapoff),
                Some(error) => Err((error, if stopped { INTERRUPTED } else { exit::REFUSED })),
            };
        }
        if interrupt::arrived().is_some() && !stopped {
            stopped = true;
            // The swapoff may have ended at this moment: the next status shows it.
            let _ = client::ask_for::<SwapoffStopped>(run, &Request::SwapoffStop {});
        }
        std::thread::sleep(PERIOD);
    }
}

/// Shows progress on one line that is overwritten, on a terminal only.
fn progress(running: bool, pages: u64, left: u64) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    if running {
        let done = pages.saturating_sub(left);
        let percent = 100 * done / pages.max(1);
        eprint!("\r{} of {} moved ({percent} %) ", human(done << 12), human(pages << 12));
    } else {
        eprint!("\r\x1b[K");
    }
}

/// Sets the budget and waits until the run keeps it; returns the exit status.
pub fn limit(arguments: &LimitArguments) -> i32 {
    let order = || {
        let machine = machine_memory().ok_or("cannot read /proc/meminfo")?;
        let bytes = match arguments.ram.as_str() {
            "auto" => NewBudget::Auto,
            text => NewBudget::Bytes(text.parse::<Size>().map_err(|error| format!("{text}: {error}"))?.of(machine)),
        };
        let run = client::find(&arguments.name)?;
        let hint = || unit_hint(&arguments.ram, "the machine's memory");
        let ordered = client::ask_for::<LimitAnswer>(&run, &Request::Limit { bytes });
        ordered.map_err(|error| error + &hint())?;
        let deadline = Instant::now() + Duration::from_secs(arguments.wait);
        loop {
            let figures = client::status(&run)?.figures;
            let (used, limit) = (figures.ram_bytes, figures.ram_limit_bytes);
            if used <= limit {
                return Ok(LimitAnswer { ram_limit_bytes: limit, ram_bytes: Some(used), auto: None });
            }
            wait_until(deadline, used, limit)?;
        }
    };
    tell(order(), arguments.json, |answer| {
        format!("{}, {} in use", human(answer.ram_limit_bytes), human(answer.ram_bytes.unwrap_or(0)))
    })
}

/// Sleeps for one interval, for callers that wait until a limit is kept.
///
/// # Errors
/// A message for the user: the deadline has passed.
pub fn wait_until(deadline: Instant, used: u64, limit: u64) -> Result<(), String> {
    if Instant::now() >= deadline {
        let [used, limit] = [used, limit].map(human);
        return Err(format!("the limit is {limit} now, but {used} are still in use: what is left cannot be evicted"));
    }
    std::thread::sleep(PERIOD);
    Ok(())
}

/// Prints the result of a command; returns the exit status.
pub fn tell<T: Serialize>(outcome: Result<T, String>, json: bool, text: impl Fn(&T) -> String) -> i32 {
    match outcome {
        Ok(answer) => {
            crate::print(&if json { in_json(&answer) } else { text(&answer) + "\n" });
            0
        }
        Err(error) => {
            eprintln!("uswap: {error}");
            exit::REFUSED
        }
    }
}

/// A specification, or the name of a device, with absolute paths: the engine runs in another
/// directory.
fn seen_from_elsewhere(spec: &str) -> String {
    std::env::current_dir().map_or_else(|_| spec.to_string(), |here| spec::absolute(spec, &here))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_places_are_completed_and_others_left() {
        let here = std::env::current_dir().expect("a directory");
        assert_eq!(seen_from_elsewhere("a/b,prio=1"), format!("{}/a/b,prio=1", here.display()));
        assert_eq!(seen_from_elsewhere("nbd://h/x,mirror=b"), format!("nbd://h/x,mirror={}/b", here.display()));
        for same in ["/a,size=1G", "ram", "ram,size=1M", "nbd://h/x", "", ",prio=1"] {
            assert_eq!(seen_from_elsewhere(same), same);
        }
    }
}
