//! The life of a mount: from the empty folder to the end of the session.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use uswap_device::{Device, SwapSpec};
use uswap_store::Tier;
use uswap_sys::fs::{fuse, inode};
use uswap_sys::process::thread::spawn;
use uswap_sys::process::{open_files_limit, raise_open_files, random_word, report_and_fall_silent, signal, user};

use crate::auto_ram::AutoRam;
use crate::cache::FileCache;
use crate::cache::keep::CacheKeeper;
use crate::cache::store_below::StoreBelow;
use crate::control::{MountControl, MountIdentity};
use crate::fuse::session::{self, Threads};
use crate::tree::SourceTree;
use crate::warnings::WarningKind;

/// Intervals at which memory is divided anew, the cgroup is looked at, and forgotten files are
/// looked for.
const BALANCE: Duration = Duration::from_millis(100);
const FOLLOW: Duration = Duration::from_secs(1);
const SWEEP: Duration = Duration::from_secs(10);
/// The most descriptors for files that nobody has open: each holds about 1 KiB of the kernel's
/// memory.
const MOST_DESCRIPTORS: u64 = 1 << 16;
/// Signals that end a mount.
const ENDING: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

/// A mount as it was asked for.
#[derive(Debug)]
pub struct MountConfig {
    /// The folder whose files are cached.
    pub source: PathBuf,
    /// Where they appear.
    pub mountpoint: PathBuf,
    /// Memory in bytes.
    pub ram: u64,
    /// The memory follows the cgroup.
    pub auto: bool,
    /// The most memory that it may be given later.
    pub most_ram: u64,
    /// The most of it for compressed pages.
    pub pool: u64,
    /// How they are compressed.
    pub tier: Tier,
    /// Files and devices for pages that leave memory.
    pub swap: Vec<SwapSpec>,
    /// Its name for `uswap status`.
    pub name: String,
    /// Time within which changes by others are seen.
    pub revalidate: Duration,
    /// The file that says what the devices hold, for the next mount.
    pub keep: Option<PathBuf>,
    /// Written to once it is mounted, and then the standard streams are let go.
    pub ready: Option<OwnedFd>,
}

/// Mounts, and serves until it is unmounted.
///
/// # Errors
/// For the user: why nothing was mounted.
pub fn run(config: &MountConfig) -> Result<(), String> {
    let source = open_source(&config.source)?;
    if !config.mountpoint.is_dir() {
        return Err(format!("{} is no folder", config.mountpoint.display()));
    }
    let text = |path: &Path| path.display().to_string();
    let identity =
        MountIdentity { name: config.name.clone(), source: text(&config.source), mountpoint: text(&config.mountpoint) };
    let auto = Arc::new(AutoRam::new(config.auto));
    let control = MountControl::bind(identity, Arc::clone(&auto))?;
    let mut keeper = keeper(config, &source)?;
    let cache = Arc::new(make_cache(config, keeper.as_ref().and_then(CacheKeeper::seed))?);
    if let Some(keeper) = &mut keeper {
        keeper.restore(&cache)?;
    }
    let keeper = keeper.map(|keeper| Arc::new(Mutex::new(keeper)));
    raise_open_files();
    inode::mask_nothing();
    // Before other threads are made: they inherit it, and one thread takes the signals.
    let _mask = signal::block_all();
    let device = mount(config)?;
    let begun = session::begin(&device).and_then(|negotiated| {
        let tree =
            SourceTree::new(source, descriptors(), Arc::clone(&cache), config.revalidate, negotiated.maps_direct)?;
        let tree = Arc::new(tree);
        Ok((Threads::new(device, tree.clone()), tree))
    });
    let begun = begun.and_then(|(threads, tree)| {
        control.start(Arc::clone(&cache), Arc::clone(&tree))?;
        Ok((threads, tree))
    });
    let (threads, tree) = begun.map_err(|error| {
        // The folder must not stay behind a mount that nobody serves.
        let _ = unmount(&config.mountpoint, true);
        format!("{}: {error}", config.mountpoint.display())
    })?;
    let stop = Arc::new(AtomicBool::new(false));
    start_helpers(&tree, &cache, &stop, auto, &config.mountpoint).map_err(|error| error.to_string())?;
    if let Some(keeper) = keeper.clone() {
        let (cache, stop) = (Arc::clone(&cache), Arc::clone(&stop));
        spawn("keep".into(), move || keep(&keeper, &cache, &stop)).map_err(|error| error.to_string())?;
    }
    if let Some(ready) = &config.ready {
        report_and_fall_silent(ready);
    }
    threads.serve();
    stop.store(true, SeqCst);
    if let Some(keeper) = keeper {
        keeper.lock().expect("keeper").close(&cache).map_err(|error| format!("--keep: {error}"))?;
    }
    Ok(())
}

/// How many descriptors there may be for files that nobody has open: half of those that this
/// process may have.
fn descriptors() -> usize {
    open_files_limit().map_or(0, |limit| limit.soft / 2).min(MOST_DESCRIPTORS) as usize
}

fn keeper(config: &MountConfig, source: &OwnedFd) -> Result<Option<CacheKeeper>, String> {
    let Some(path) = &config.keep else { return Ok(None) };
    let status = inode::status(source.as_fd()).map_err(|error| format!("{}: {error}", config.source.display()))?;
    CacheKeeper::open(path, config.source.as_os_str().as_bytes(), status.device).map(Some)
}

/// Writes the file of what is kept, now and then. For a thread of its own.
fn keep(keeper: &Mutex<CacheKeeper>, cache: &FileCache, stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        std::thread::sleep(BALANCE);
        match keeper.lock().expect("keeper").save_now_and_then(cache) {
            Ok(false) => {}
            Ok(true) => cache.warnings.withdraw(WarningKind::Keep),
            Err(error) => cache
                .warnings
                .tell(WarningKind::Keep, || format!("--keep: {error}; the file stays as it was, and is tried again")),
        }
    }
}

fn open_source(path: &Path) -> Result<OwnedFd, String> {
    let opened = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path);
    opened.map(OwnedFd::from).map_err(|error| format!("{}: {error}", path.display()))
}

/// `seed`: that of pages that were kept.
fn make_cache(config: &MountConfig, seed: Option<u64>) -> Result<FileCache, String> {
    let mut devices: Vec<(Box<dyn Device>, i32)> = Vec::new();
    for spec in &config.swap {
        devices.push((crate::open_device(spec, config.ram)?, spec.priority()));
    }
    let below = if config.pool > 0 || !devices.is_empty() {
        let random = || random_word().map_err(|error| format!("no random numbers: {error}"));
        let seed = seed.map_or_else(random, Ok)?;
        Some(StoreBelow::new(config.pool, devices, config.tier, seed).map_err(|error| error.to_string())?)
    } else {
        None
    };
    FileCache::new(config.ram, config.most_ram, config.revalidate, below)
        .map_err(|error| format!("address space for the cache: {error}"))
}

/// Threads beside those that serve: they store, write back, divide memory and take signals.
fn start_helpers(
    tree: &Arc<SourceTree>,
    cache: &Arc<FileCache>,
    stop: &Arc<AtomicBool>,
    auto: Arc<AutoRam>,
    mountpoint: &Path,
) -> io::Result<()> {
    let with = || (Arc::clone(cache), Arc::clone(stop));
    let (stored, stops) = with();
    spawn("store".into(), move || StoreBelow::store_offered(&stored, &stops))?;
    let (written, stops) = with();
    spawn("writeback".into(), move || StoreBelow::write_back(&written, &stops))?;
    let ((balanced, stops), tree) = (with(), Arc::clone(tree));
    spawn("balance".into(), move || {
        let (mut swept, mut followed) = (Instant::now(), Instant::now());
        while !stops.load(SeqCst) {
            std::thread::sleep(BALANCE);
            balanced.set_names(tree.name_bytes());
            balanced.balance();
            tree.sort_now_and_then();
            if followed.elapsed() > FOLLOW {
                followed = Instant::now();
                auto.follow(&balanced);
            }
            if swept.elapsed() > SWEEP {
                swept = Instant::now();
                balanced.sweep();
            }
        }
    })?;
    let (stops, mountpoint) = (Arc::clone(stop), mountpoint.to_path_buf());
    spawn("signals".into(), move || {
        while !stops.load(SeqCst) {
            let ends = signal::take(Duration::from_secs(1)).is_ok_and(|taken| ENDING.contains(&taken.signal));
            // In use: it leaves the tree of folders now, and ends with its last user.
            if ends && unmount(&mountpoint, false).is_err() {
                let _ = unmount(&mountpoint, true);
            }
        }
    })
}

fn help_with(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT) => " (in a container: --device /dev/fuse; else: modprobe fuse)",
        Some(libc::EACCES | libc::EPERM) => " (in a container: --device /dev/fuse)",
        _ => "",
    }
}

/// Connects the FUSE device with the folder: as root directly, else through fusermount3.
fn mount(config: &MountConfig) -> Result<File, String> {
    let named = format!("{}: ", config.mountpoint.display());
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|_| format!("{named}a zero byte in a path"));
    if user() != 0 {
        // The helper opens the device, which others may not be permitted to do.
        return mount_by_helper(config).map_err(|error| named.clone() + &error);
    }
    let device = fuse::open().map_err(|error| format!("/dev/fuse: {error}{}", help_with(&error)))?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other,max_read={}",
        device.as_raw_fd(),
        session::MOST_PAGES * uswap_core::PAGE_SIZE
    );
    let source = c_string(config.source.as_os_str().as_bytes())?;
    let target = c_string(config.mountpoint.as_os_str().as_bytes())?;
    fuse::mount(&source, &target, &c_string(options.as_bytes())?).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => format!("{named}{error} (in a container: --cap-add SYS_ADMIN)"),
        _ => format!("{named}{error}"),
    })?;
    Ok(device)
}

fn mount_by_helper(config: &MountConfig) -> Result<File, String> {
    let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
    let theirs = fuse::inheritable(&theirs).map_err(|error| error.to_string())?;
    let source = config.source.display().to_string().replace([',', '\\'], "_");
    let options = format!(
        "rw,nosuid,nodev,default_permissions,fsname={source},subtype=uswap,max_read={}",
        session::MOST_PAGES * uswap_core::PAGE_SIZE
    );
    let mut helper = Command::new("fusermount3");
    helper.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string()).args(["-o", &options, "--"]).arg(&config.mountpoint);
    let status = helper
        .status()
        .map_err(|error| format!("fusermount3: {error}; a user other than root needs it (package fuse3)"))?;
    drop(theirs);
    if !status.success() {
        return Err("fusermount3 refused".into());
    }
    fuse::from_helper(&ours).map_err(|error| format!("fusermount3 gave no connection: {error}"))
}

/// Ends the mount on a folder. `lazily`: it leaves the tree of folders at once, and ends when
/// nobody uses it any more.
///
/// # Errors
/// Of umount2(2) or fusermount3: EBUSY, EINVAL (nothing is mounted there), EPERM.
pub fn unmount(mountpoint: &Path, lazily: bool) -> io::Result<()> {
    let target = CString::new(mountpoint.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
    match fuse::unmount(&target, lazily) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let mut helper = Command::new("fusermount3");
            helper.arg("-u").args(lazily.then_some("-z")).arg("--").arg(mountpoint);
            let helped = helper.status().is_ok_and(|status| status.success());
            if helped { Ok(()) } else { Err(error) }
        }
        result => result,
    }
}
