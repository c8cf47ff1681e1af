//! Changes while a tree runs: devices are added (`uswap swapon`) and removed (`uswap swapoff`, see
//! `swapoff.rs`), the budget is set anew (`uswap limit`), pages are compressed by another
//! compressor (`uswap compressor`). Every order comes through the control socket.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uswap_core::util::size::human;
use uswap_device::{Delay, Device, Errno, Fail, SwapSpec, When};
use uswap_store::Compression;

use crate::control::last_swapoff::LastSwapoff;
use crate::control::protocol::answer::{CompressorAnswer, LimitAnswer, SwaponAnswer};
use crate::measure::cgroup::{Balance, Cgroup, machine_memory, without_cgroup};
use crate::shared::RunShared;
use uswap_pager::fault_points::FaultPoints;
use uswap_remote::EngineContext;

/// The least budget that can be ordered. It has room for the engine, its stacks and buffers, and a
/// working set with which a program makes progress.
pub const MIN_BUDGET: u64 = 16 << 20;

/// A swap file or other place without a given size may take this many times the budget.
const USUAL_BUDGETS: u64 = 4;

/// Orders and their outcome. Part of [`EngineContext`].
#[derive(Default)]
pub struct Orders {
    /// The budget that was ordered, in bytes; 0: the budget is as it was when the run started.
    pub limit: AtomicU64,
    /// A balance with the cgroup that was ordered; the governor takes it over.
    pub balance: Mutex<Option<Balance>>,
    /// The last swapoff.
    pub swapoff: LastSwapoff,
}

/// Opens the device that a specification names. A place without a size gets a multiple of the
/// budget, which is `limit` bytes.
///
/// # Errors
/// The reason why it cannot be used for swap, for the user.
pub fn open_device(spec: &SwapSpec, limit: u64) -> Result<Box<dyn Device>, String> {
    spec.open(USUAL_BUDGETS * limit)
}

/// Bytes that a swap file without a given size may take in this directory: half of the space that
/// is free there now, and no more than the limit of file sizes (`ulimit -f`).
///
/// # Errors
/// The directory is missing, or its file system does not tell its free space.
pub fn half_of_free(directory: &Path) -> std::io::Result<u64> {
    let free = uswap_sys::free_bytes(File::open(directory)?.as_fd())?;
    let most = uswap_sys::process::file_size_limit().map_or(u64::MAX, |limit| limit.soft);
    Ok((free / 2).min(most))
}

/// The device, wrapped as fault points demand.
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
pub fn swapon(shared: &Arc<EngineContext>, spec: &str) -> Result<SwaponAnswer, String> {
    let spec: SwapSpec = spec.parse().map_err(|error| format!("{spec}: {error}"))?;
    let device = open_device(&spec, (shared.budget.limit() as u64) << 12)?;
    let (name, size_bytes) = (device.name().to_owned(), u64::from(device.slots()) << 12);
    let device = slowed(device, &shared.faults);
    let added = shared.store.add_device(device, spec.priority());
    let number = added.ok_or("this run has had 255 swap devices, which is the most")?;
    uswap_pager::io::reader::threads::open(shared, number)
        .map_err(|error| format!("no threads to read from it: {error}"))?;
    shared.budget.exhausted.store(false, SeqCst);
    let priority = spec.priority();
    shared.notice(format!("swap on {name}, {}, priority {priority}", human(size_bytes)));
    Ok(SwaponAnswer { device: name, size_bytes, priority })
}

/// `uswap limit`: another budget from now on.
///
/// # Errors
/// For the user: the budget is too small.
pub fn limit(shared: &EngineContext, bytes: u64) -> Result<LimitAnswer, String> {
    if bytes < MIN_BUDGET {
        return Err(format!("{} is too little: the least that works is {}", human(bytes), human(MIN_BUDGET)));
    }
    RunShared::of(shared).orders.balance.lock().expect("balance").take();
    RunShared::of(shared).orders.limit.store(bytes, SeqCst);
    shared.budget.set_limit(bytes);
    let used = (shared.budget.usage().max(0) as u64) << 12;
    Ok(LimitAnswer { ram_limit_bytes: bytes, ram_bytes: Some(used), auto: None })
}

/// `uswap limit NAME auto`: the budget follows the cgroup's limit, as with `--ram auto`; without
/// such a limit it is most of the machine's memory.
///
/// # Errors
/// For the user: /proc/meminfo cannot be read.
pub fn limit_auto(shared: &EngineContext) -> Result<LimitAnswer, String> {
    let machine = machine_memory().ok_or("cannot read /proc/meminfo")?;
    let balance = Cgroup::of_process(shared.of_memory.tree.first()).map(Balance::new);
    let bytes = balance.as_ref().map_or(without_cgroup(machine), Balance::initial_limit);
    let follows = balance.is_some();
    *RunShared::of(shared).orders.balance.lock().expect("balance") = balance;
    // From its next look on the governor steers the budget. If there is no cgroup limit to follow
    // the value counts as an ordered limit.
    RunShared::of(shared).orders.limit.store(if follows { 0 } else { bytes }, SeqCst);
    shared.budget.set_limit(bytes);
    Ok(LimitAnswer { ram_limit_bytes: bytes, ram_bytes: None, auto: Some(follows) })
}

/// `uswap compressor`: new pages are compressed by this compressor from now on.
///
/// # Errors
/// For the user: there is no compressor of that name or level, or no memory for it. Nothing is
/// changed then.
pub fn compressor(shared: &EngineContext, name: &str) -> Result<CompressorAnswer, String> {
    let compression: Compression = name.parse()?;
    let before = shared.store.compression().to_string();
    shared.store.set_compression(compression)?;
    shared.notice(format!("compressor {compression}"));
    Ok(CompressorAnswer { compressor: compression.to_string(), before })
}
