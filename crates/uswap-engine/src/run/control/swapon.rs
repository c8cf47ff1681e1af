//! What changes while a tree runs: devices come (`uswap swapon`) and go (`uswap swapoff`), the budget is set anew
//! (`uswap limit`), pages are compressed by another compressor (`uswap compressor`). Every order comes through the control socket. What a swapoff
//! does is told in `swapoff.rs`.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uswap_core::util::size::human;
use uswap_device::nbd::{NbdDevice, NbdOptions};
use uswap_device::{Delay, Device, Errno, Fail, FileDevice, IoBackend, Mirror, RamDevice, When};
use uswap_store::Compression;

use crate::pager::fault_points::FaultPoints;
use crate::remote::Shared;
use crate::run::config::{SwapPlace, SwapSpec};
use crate::run::control::protocol::answer::{CompressorAnswer, LimitAnswer, SwaponAnswer};
use crate::run::control::swapoff::Swapoff;
use crate::run::measure::cgroup::{Balance, Cgroup, machine_memory, without_cgroup};

/// The least budget that can be ordered: the engine, its stacks and buffers, and a working set that makes progress.
pub const MIN_BUDGET: u64 = 16 << 20;

/// The least that is taken for a device in memory, as of all others: a cluster of slots.
const MIN_IN_RAM: u64 = 2 << 20;

/// What is ordered, and what became of it. Part of [`Shared`].
#[derive(Default)]
pub struct Orders {
    /// The budget that was ordered, in bytes; 0: as the run was started.
    pub limit: AtomicU64,
    /// A balance with the cgroup that was ordered, for the governor to take over.
    pub balance: Mutex<Option<Balance>>,
    /// The last swapoff.
    pub swapoff: Mutex<Option<Arc<Swapoff>>>,
}

/// Opens what a spec names; a file without a size gets `usual` bytes.
///
/// # Errors
/// For the user: why it cannot be swapped to.
pub fn open_device(spec: &SwapSpec, usual: u64) -> Result<Box<dyn Device>, String> {
    let device = open_place(&spec.place, spec, usual)?;
    match &spec.mirror {
        None => Ok(device),
        Some(place) => Ok(Box::new(Mirror::new(device, open_place(place, spec, usual)?))),
    }
}

fn open_place(place: &SwapPlace, spec: &SwapSpec, usual: u64) -> Result<Box<dyn Device>, String> {
    let size = spec.size.unwrap_or(usual);
    Ok(match place {
        SwapPlace::UnnamedIn(directory) => {
            Box::new(FileDevice::unnamed(directory, size, IoBackend::Auto).map_err(|e| e.to_string())?)
        }
        SwapPlace::Path(path) => {
            Box::new(FileDevice::open(path, Some(size), IoBackend::Auto).map_err(|e| e.to_string())?)
        }
        SwapPlace::Nbd(uri) => {
            let usual = NbdOptions::default();
            let timeout = spec.timeout.unwrap_or(usual.timeout);
            let options = NbdOptions { timeout, connections: spec.connections, size: spec.size };
            Box::new(NbdDevice::open(uri, options).map_err(|e| e.to_string())?)
        }
        SwapPlace::Ram => {
            if size < MIN_IN_RAM {
                return Err(format!("ram has room for less than {}", human(MIN_IN_RAM)));
            }
            let slots = (size >> 12).min(u64::from(u32::MAX)) as u32;
            Box::new(RamDevice::try_new("ram", slots).map_err(|e| format!("ram: {e}"))?)
        }
    })
}

/// What a swap file in this directory may take when nobody says how much: half of what is free there now, and no more than
/// files may have (`ulimit -f`).
///
/// # Errors
/// The directory is missing, or its file system does not tell.
pub fn half_of_free(directory: &Path) -> std::io::Result<u64> {
    let free = uswap_sys::free_bytes(File::open(directory)?.as_fd())?;
    let most = uswap_sys::process::file_size_limit().map_or(u64::MAX, |limit| limit.soft);
    Ok((free / 2).min(most))
}

/// The device as fault points make it.
pub fn slowed(device: Box<dyn Device>, faults: &FaultPoints) -> Box<dyn Device> {
    let device = match faults.write_fail {
        0 => device,
        n => {
            let failing = Fail::new(Arc::<dyn Device>::from(device));
            failing.fail_writes(When::Every(n), Errno::IO);
            Box::new(failing)
        }
    };
    let [read, write] = [faults.delay_read, faults.delay_write].map(Duration::from_micros);
    if read.is_zero() && write.is_zero() {
        device
    } else {
        Box::new(Delay::new(Arc::<dyn Device>::from(device), read, write))
    }
}

/// `uswap swapon`: adds a device. Answers with its name and size.
///
/// # Errors
/// For the user; nothing is changed then.
pub fn swapon(shared: &Arc<Shared>, spec: &str) -> Result<SwaponAnswer, String> {
    let spec: SwapSpec = spec.parse().map_err(|error| format!("{spec}: {error}"))?;
    let device = open_device(&spec, 4 * ((shared.budget.limit() as u64) << 12))?;
    let (name, size_bytes) = (device.name().to_owned(), u64::from(device.slots()) << 12);
    let device = slowed(device, &shared.faults);
    let added = shared.store.add_device(device, spec.priority);
    let number = added.ok_or("this run has had 255 swap devices, which is the most")?;
    crate::pager::io::reader::open(shared, number).map_err(|error| format!("no threads to read from it: {error}"))?;
    shared.budget.exhausted.store(false, SeqCst);
    shared.notice(format!("swap on {name}, {}, priority {}", human(size_bytes), spec.priority));
    Ok(SwaponAnswer { device: name, size_bytes, priority: spec.priority })
}

/// `uswap limit`: another budget from now on.
///
/// # Errors
/// For the user: too little.
pub fn limit(shared: &Shared, bytes: u64) -> Result<LimitAnswer, String> {
    if bytes < MIN_BUDGET {
        return Err(format!("{} is too little: the least that works is {}", human(bytes), human(MIN_BUDGET)));
    }
    shared.of_memory.run.orders.balance.lock().expect("balance").take();
    shared.of_memory.run.orders.limit.store(bytes, SeqCst);
    shared.budget.set_limit(bytes);
    let used = (shared.budget.usage().max(0) as u64) << 12;
    Ok(LimitAnswer { ram_limit_bytes: bytes, ram_bytes: Some(used), auto: None })
}

/// `uswap limit NAME auto`: the budget follows the cgroup's limit, as with `--ram auto`; where there is none it is most of the
/// machine's memory.
///
/// # Errors
/// For the user: /proc/meminfo cannot be read.
pub fn limit_auto(shared: &Shared) -> Result<LimitAnswer, String> {
    let machine = machine_memory().ok_or("cannot read /proc/meminfo")?;
    let balance = Cgroup::of_process(shared.of_memory.tree.first()).map(Balance::new);
    let bytes = balance.as_ref().map_or(without_cgroup(machine), Balance::initial_limit);
    let follows = balance.is_some();
    *shared.of_memory.run.orders.balance.lock().expect("balance") = balance;
    // The governor steers from its next turn on, and a limit that was ordered stands where nothing is to be followed.
    shared.of_memory.run.orders.limit.store(if follows { 0 } else { bytes }, SeqCst);
    shared.budget.set_limit(bytes);
    Ok(LimitAnswer { ram_limit_bytes: bytes, ram_bytes: None, auto: Some(follows) })
}

/// `uswap compressor`: pages are stored by this one from now on.
///
/// # Errors
/// For the user: there is none of that name or level, or no memory for it. Nothing is changed then.
pub fn compressor(shared: &Shared, name: &str) -> Result<CompressorAnswer, String> {
    let compression: Compression = name.parse()?;
    let before = shared.store.compression().to_string();
    shared.store.set_compression(compression)?;
    shared.notice(format!("compressor {compression}"));
    Ok(CompressorAnswer { compressor: compression.to_string(), before })
}
