//! `uswap run`: makes a [`RunConfig`] from the command line, and refuses early what cannot work.

use std::ffi::{CString, OsStr, OsString};
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use uswap_core::util::size::{Size, human, unit_hint};
use uswap_device::SwapSpec;
use uswap_device::kinds::help;
use uswap_run::cgroup::{Balance, Cgroup, machine_memory, without_cgroup};
use uswap_run::config::{Compression, Ram, RunConfig, Target, Tier, exit};
use uswap_run::control::check_name;
use uswap_run::fd_budget::check_limit;
use uswap_run::swapon::MIN_BUDGET;
use uswap_run::{EVENT_FEATURES, STAGING_FEATURES, keeper};
use uswap_sys::userfaultfd::Userfaultfd;

/// What an engine is told, whatever it serves.
#[derive(Args, Debug)]
pub struct EngineArguments {
    /// Memory budget: a size (512M), a part of the machine's memory (50%), or auto
    #[arg(
        short = 'm',
        long,
        visible_alias = "memory",
        allow_hyphen_values = true,
        value_name = "SIZE|PERCENT|auto",
        default_value = "auto"
    )]
    ram: String,
    /// Most of the budget for the compressed pool, in percent; auto: between 20 and 90, by what
    /// faults cost; auto:PERCENT: the same, and this at most
    #[arg(long, allow_hyphen_values = true, value_name = "PERCENT|auto[:PERCENT]", default_value = "auto")]
    pool: String,
    #[arg(long, value_name = "NAME[:LEVEL]", default_value = Compression::default().name(),
          help = format!("Compressor of the pool: {}", Compression::choices_in_short()))]
    compressor: String,
    /// Allocator of the pool: slab (dense), or zbud (two objects a page, for comparison)
    #[arg(long, value_name = "slab|zbud", default_value = "slab")]
    allocator: String,
    // Its help lists the kinds of devices.
    #[arg(long, value_name = "SPEC", help = help_of_swap())]
    swap: Vec<String>,
    /// Write all figures to this file at the end, as JSON
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Name for `uswap status` and its kin (default: the process id)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print no summary and no notices, except of lost pages and why a tree was killed
    #[arg(short, long)]
    pub quiet: bool,
    /// Say what happens: the budget and where it comes from, the swap places, when memory becomes
    /// managed, who stays unmanaged and why, new limits; twice: the figures too, once a second
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Args, Debug)]
pub struct RunArguments {
    #[command(flatten)]
    pub engine: EngineArguments,
    /// Whether processes whose memory does not fit together take turns, so that not all wait for
    /// pages all the time
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = ["on", "off"])]
    load_control: String,
    /// Leave programs alone that have not loaded the agent (static ones, cleared environments)
    #[arg(long)]
    no_attach: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

fn help_of_swap() -> String {
    let (places, options) = (help::written_places(), help::options_in_one_line());
    format!(
        "Where pages go that do not fit: {places}; with {options}. May be repeated (default: a file in $TMPDIR or \
         /var/tmp, which may grow to half of the free disk)"
    )
}

/// A refusal: the message, and the exit status.
pub type RunRefusal = (String, i32);

/// Runs the command; returns the exit status.
pub fn run(arguments: &RunArguments) -> i32 {
    match prepare(arguments) {
        Ok(config) => keeper::run(&config),
        Err((text, status)) => {
            eprintln!("uswap: {text}");
            status
        }
    }
}

pub fn prepare(arguments: &RunArguments) -> Result<RunConfig, RunRefusal> {
    let program = find_program(&arguments.command[0])?;
    let c_string = |text: &OsStr| CString::new(text.as_bytes()).map_err(|_| refuse("an argument holds a NUL".into()));
    let engine = prepare_engine(&arguments.engine, None)?;
    Ok(RunConfig {
        load_control: arguments.load_control == "on",
        attach: !arguments.no_attach,
        program: c_string(program.as_os_str())?,
        arguments: arguments.command.iter().map(|text| c_string(text)).collect::<Result<_, _>>()?,
        ..engine
    })
}

fn refuse(text: String) -> RunRefusal {
    (text, exit::REFUSED)
}

/// The configuration of an engine for a command that is set later, or for a program that is running
/// already.
pub fn prepare_engine(arguments: &EngineArguments, target: Option<Target>) -> Result<RunConfig, RunRefusal> {
    if let Ok(name) = std::env::var("USWAP_NAME") {
        return Err(refuse(format!("this is already inside the run {name:?}; a run inside a run is not supported")));
    }
    let process = target.map_or_else(std::process::id, |target| target.pid);
    let name = arguments.name.clone().unwrap_or_else(|| process.to_string());
    check_name(&name).map_err(|error| refuse(format!("--name {name:?}: {error}")))?;
    check_limit().map_err(refuse)?;
    check_userfaultfd().map_err(refuse)?;
    let (ram, limit, origin) = budget(&arguments.ram, process).map_err(refuse)?;
    let pool_share = arguments.pool.parse().map_err(|error| refuse(format!("--pool {}: {error}", arguments.pool)))?;
    let tier = Tier {
        allocator: arguments.allocator.parse().map_err(|error| refuse(format!("--allocator: {error}")))?,
        compression: arguments.compressor.parse().map_err(|error| refuse(format!("--compressor: {error}")))?,
    };
    let parse = |spec: &String| spec.parse().map_err(|error| format!("--swap {spec}: {error}"));
    let mut swap: Vec<SwapSpec> = arguments.swap.iter().map(parse).collect::<Result<_, _>>().map_err(refuse)?;
    arguments.stats.as_deref().map_or(Ok(()), check_writable).map_err(refuse)?;
    swap.sort_by_key(|spec| std::cmp::Reverse(spec.priority()));
    Ok(RunConfig {
        ram,
        limit,
        origin,
        pool_share,
        tier,
        load_control: false,
        swap,
        stats: arguments.stats.clone(),
        attach: true,
        target,
        ready: None,
        name,
        verbosity: if arguments.quiet { 0 } else { 1 + arguments.verbose },
        program: CString::default(),
        arguments: Vec::new(),
        record: None,
        fault_points: std::env::var("USWAP_FAULT_POINTS").unwrap_or_default(),
    })
}

/// The path of a program, found as by a shell: status 127 when there is none, 126 when it may not
/// be executed.
pub fn find_program(name: &OsStr) -> Result<PathBuf, RunRefusal> {
    let shown = name.to_string_lossy();
    let not_found = (format!("{shown}: command not found"), exit::NOT_FOUND);
    let forbidden = |path: &Path| (format!("{}: permission denied", path.display()), exit::NOT_EXECUTABLE);
    if name.is_empty() {
        return Err(not_found);
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Some(true) => Ok(path),
            Some(false) => Err(forbidden(&path)),
            None => Err(not_found),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut seen = None;
    for candidate in std::env::split_paths(&path).map(|directory| directory.join(name)) {
        match executable(&candidate) {
            Some(true) => return Ok(candidate),
            Some(false) => seen = Some(candidate),
            None => {}
        }
    }
    Err(seen.map_or(not_found, |path| forbidden(&path)))
}

/// Whether the file may be executed; `None` when it does not exist.
fn executable(path: &Path) -> Option<bool> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Whether the kernel and the permissions of this process allow what a run needs.
fn check_userfaultfd() -> Result<(), String> {
    let help = "run needs userfaultfd with fork events: as root, or with the capability SYS_PTRACE \
                (docker run --cap-add SYS_PTRACE --device /dev/userfaultfd; sysctl vm.unprivileged_userfaultfd=1 \
                alone does not give fork events). `uswap doctor` tells more";
    let events =
        Userfaultfd::for_this_process().map_err(|error| format!("userfaultfd is not permitted: {error}; {help}"))?;
    events.handshake(EVENT_FEATURES).map_err(|error| match error.raw_os_error() {
        Some(22) => "this kernel lacks a userfaultfd feature that run needs (Linux 6.11 or later)".to_string(),
        _ => format!("userfaultfd fork events are not permitted: {error}; {help}"),
    })?;
    if crate::host::is_opaque() {
        let text = "the programs could not load the agent: this process holds capabilities that they would not have \
                    (setcap on its binary?). `uswap doctor` tells more";
        return Err(text.into());
    }
    let staging = Userfaultfd::for_this_process().map_err(|error| error.to_string())?;
    staging.handshake(STAGING_FEATURES).map_err(|error| format!("userfaultfd: {error}"))
}

/// Whether the statistics can be written at the end. The check changes nothing and leaves no file:
/// the run may be refused for another reason.
fn check_writable(path: &Path) -> Result<(), String> {
    let tried = match std::fs::metadata(path) {
        // The reader of a pipe may come later.
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        Ok(_) => OpenOptions::new().write(true).open(path).map(drop),
        Err(_) => match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(_) => std::fs::remove_file(path),
            Err(error) => Err(error),
        },
    };
    tried.map_err(|error| format!("--stats {}: {error}", path.display()))
}

/// The initial budget of `--ram auto`, in bytes.
pub fn automatic_budget(machine: u64, cgroup: Option<Cgroup>) -> u64 {
    cgroup.map_or(without_cgroup(machine), |cgroup| Balance::new(cgroup).initial_limit())
}

/// The budget, its initial value in bytes, and its origin in words.
fn budget(text: &str, process: u32) -> Result<(Ram, u64, String), String> {
    let machine = machine_memory().ok_or("cannot read /proc/meminfo")?;
    if text == "auto" {
        let cgroup = Cgroup::of_process(process);
        let origin = match &cgroup {
            Some(cgroup) => {
                let (limit, place) = (human(cgroup.limit()), cgroup.directory().display());
                format!("--ram auto: the limit of the cgroup {place} is {limit}")
            }
            None => format!("--ram auto: there is no cgroup with a limit, and the machine has {}", human(machine)),
        };
        return Ok((Ram::Auto, automatic_budget(machine, cgroup), origin));
    }
    let size: Size = text.parse().map_err(|error| format!("--ram: {error}"))?;
    let bytes = size.of(machine);
    if bytes < MIN_BUDGET {
        return Err(format!(
            "--ram {text} is {}: the least that works is {}{}",
            human(bytes),
            human(MIN_BUDGET),
            unit_hint(text, "the machine's memory")
        ));
    }
    if bytes > 64 * machine {
        return Err(format!("--ram {text} is far more than this machine's {}", human(machine)));
    }
    let origin = match size {
        Size::Percent(_) => format!("--ram {text} of the machine's {}", human(machine)),
        Size::Bytes(_) => format!("--ram {text}"),
    };
    Ok((Ram::Bytes(bytes), bytes, origin))
}
