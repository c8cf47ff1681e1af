//! `uswap mount` and `uswap umount`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use uswap_core::util::size::{Size, human};
use uswap_device::SwapSpec;
use uswap_mount::mount::{self, MountConfig};
use uswap_mount::{MIN_RAM, auto_ram};
use uswap_run::cgroup::{Cgroup, machine_memory};
use uswap_run::config::{Compression, Tier, exit};

use crate::commands::background;

/// Time in which a mount that nobody uses must have ended.
const END_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub struct MountArguments {
    /// The folder whose files are to be cached
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// The folder where they appear; it may be SOURCE itself
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Memory for the cache: a size like 512M, or a percentage of the limit of the memory cgroup
    /// (without one: of the machine's memory); auto is 25%, less while others need it, and follows
    /// the limit
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    ram: String,
    /// Most of that for compressed pages, in percent; 0: none
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = pool_percent)]
    pool: u64,
    /// Compressor of the pool
    #[arg(long, value_name = "NAME", default_value = "lz4")]
    compressor: Compression,
    /// A file or device for pages that leave memory, as for `uswap run`; may be given several times
    #[arg(long, value_name = "SPEC")]
    swap: Vec<SwapSpec>,
    /// Name for `uswap status` and its kin (default: the process id)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Seconds within which changes are seen that others make to files in SOURCE; at open they are
    /// seen at once
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    revalidate: f64,
    /// A file that says what the swap devices hold: the next mount of SOURCE with this FILE and
    /// these devices begins with what was cached
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
}

#[derive(Args, Debug)]
pub struct UmountArguments {
    /// The folder on which the mount is
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Let it leave the tree of folders at once, and end when nobody uses it any more
    #[arg(short, long)]
    lazy: bool,
}

/// Mounts; returns the exit status.
pub fn mount(arguments: &MountArguments) -> i32 {
    match prepare(arguments) {
        Ok(config) if arguments.foreground => in_foreground(&named(config)),
        Ok(config) => in_background(config),
        Err(error) => refuse(&error),
    }
}

fn pool_percent(text: &str) -> Result<u64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok();
    percent.filter(|percent| *percent <= 90).ok_or_else(|| "between 0 and 90 percent of the memory".into())
}

fn refuse(error: &str) -> i32 {
    eprintln!("uswap: {error}");
    exit::REFUSED
}

fn prepare(arguments: &MountArguments) -> Result<MountConfig, String> {
    let whole = |path: &Path| std::fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()));
    let machine = machine_memory().ok_or("cannot read /proc/meminfo")?;
    let base = Cgroup::of_this_process().map_or(machine, |cgroup| cgroup.limit().min(machine));
    let ram = match arguments.ram.as_str() {
        "auto" => auto_ram::first_share().ok_or("cannot read /proc/meminfo")?,
        size => size.parse::<Size>().map_err(|error| format!("--ram {size}: {error}"))?.of(base),
    };
    if ram < MIN_RAM {
        return Err(format!("--ram: {} is too little: the least that works is {}", human(ram), human(MIN_RAM)));
    }
    if !(0.0..=86_400.0).contains(&arguments.revalidate) {
        return Err(format!("--revalidate {}: give 0 to 86400 seconds", arguments.revalidate));
    }
    let keep = arguments.keep.as_deref().map(std::path::absolute).transpose();
    Ok(MountConfig {
        keep: keep.map_err(|error| format!("--keep: {error}"))?,
        source: whole(&arguments.source)?,
        mountpoint: whole(&arguments.mountpoint)?,
        ram,
        auto: arguments.ram == "auto",
        most_ram: machine.max(ram),
        pool: ram * arguments.pool / 100,
        tier: Tier { compression: arguments.compressor, ..Tier::default() },
        swap: arguments.swap.clone(),
        name: arguments.name.clone().unwrap_or_default(),
        revalidate: Duration::from_secs_f64(arguments.revalidate),
        ready: None,
    })
}

/// The name that was given, or the process id.
fn named(config: MountConfig) -> MountConfig {
    let name = if config.name.is_empty() { std::process::id().to_string() } else { config.name };
    MountConfig { name, ..config }
}

/// Returns once it is mounted, or has failed.
fn in_background(config: MountConfig) -> i32 {
    background::run(|ready| in_foreground(&named(MountConfig { ready: Some(ready), ..config })))
}

/// Returns when the mount has ended, or has failed.
fn in_foreground(config: &MountConfig) -> i32 {
    mount::run(config).map_or_else(|error| refuse(&error), |()| 0)
}

/// Unmounts; returns the exit status.
pub fn umount(arguments: &UmountArguments) -> i32 {
    // A mount whose process has died answers no question about its path, so the path is not
    // resolved through it.
    let path = &arguments.mountpoint;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let whole = match (std::fs::canonicalize(parent), path.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => path.clone(),
    };
    if !is_ours(&whole) {
        return refuse(&format!("{} is no mount of uswap", path.display()));
    }
    match mount::unmount(&whole, arguments.lazy) {
        Ok(()) => wait_for_end(&whole),
        Err(error) => refuse(&format!(
            "{}: {error}{}",
            path.display(),
            if error.kind() == std::io::ErrorKind::ResourceBusy { " (fuser -m tells who uses it; --lazy)" } else { "" }
        )),
    }
}

/// Whether a mount of uswap is on the folder.
fn is_ours(mountpoint: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let plain = |word: &str| word.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
    mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next().is_some_and(|target| Path::new(&plain(target)) == mountpoint) && words.next() == Some("fuse.uswap")
    })
}

/// Waits until the mount's process does not answer to its name any more.
fn wait_for_end(mountpoint: &Path) -> i32 {
    let begun = Instant::now();
    let lives = || {
        let statuses = crate::client::runs().into_iter().filter_map(|run| crate::client::status(&run).ok());
        let mut mounts = statuses.filter_map(|status| status.mount);
        mounts.any(|mount| Path::new(&mount.mountpoint) == mountpoint)
    };
    while lives() && !is_ours(mountpoint) && begun.elapsed() < END_TIMEOUT {
        std::thread::sleep(Duration::from_millis(10));
    }
    0
}
