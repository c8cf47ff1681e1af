//! The threads of the engine, and when each begins.
//!
//! ```text
//! from the start     pagers (serve faults), governor (measures), the recorder
//! once memory grows  workers (store what is evicted), writeback (the pool's limit, its density, room of devices), load control,
//!                    matcher (fork children)
//! when first asked   shares (reads what relatives share), attacher
//! ```
//! A process costs a tenth of a millisecond for each thread that is made, and most programs never
//! come near their budget. So the threads of the second row begin when half of the memory is in use
//! from which on memory is managed
//! ([`RunShared::is_expecting`](crate::shared::RunShared::is_expecting)), and then the engine's
//! memory is locked. The exact moment does not matter: their work waits for them.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use uswap_store::WritebackScratch;
use uswap_sys::process::thread::spawn;

use uswap_pager::io::reader;

use crate::config::RunConfig;
use crate::load_control::controller::Controller;
use crate::measure::governor::Governor;
use crate::supervisor::Channels;
use uswap_pager::reclaim::store_worker;
use uswap_remote::EngineContext;
use uswap_remote::Pager;
use uswap_remote::agent::image::AgentImage;
use uswap_remote::identity::lookup::MatchJob;
use uswap_remote::inject::AttacherHandle;
use uswap_remote::sched::boost::PriorityBoost;

const WORKERS: usize = 2;
/// Beside a slow device: each has a write of up to 256 KiB on its way, and these of 512 KiB.
pub const MAX_WORKERS: usize = 8;
const MAX_WRITERS: usize = 4;

/// The threads that begin once memory grows.
pub struct Later {
    shared: Arc<EngineContext>,
    stopping: Arc<AtomicBool>,
    controller: Option<Controller>,
    matches: Receiver<MatchJob>,
}

impl Later {
    /// Starts these threads.
    ///
    /// # Errors
    /// EAGAIN: no more threads are allowed.
    pub fn start(self) -> std::io::Result<()> {
        let Self { shared, stopping, controller, matches } = self;
        // Locks memory before there are more threads, since the lock covers their stacks too. Where
        // it is not permitted the kernel may swap the engine out; `doctor` tells the user.
        let _ = uswap_sys::process::lock_memory();
        let slow = is_slow(&shared);
        for number in 0..if slow { MAX_WORKERS } else { WORKERS } {
            let shared = shared.clone();
            spawn(format!("worker-{number}"), move || store_worker::run(&shared))?;
        }
        for number in 0..if slow { MAX_WRITERS } else { 1 } {
            let (shared, stop) = (shared.clone(), stopping.clone());
            spawn(format!("writeback-{number}"), move || write_back(&shared, &stop, number == 0))?;
        }
        let matcher = shared.clone();
        spawn("matcher".into(), move || uswap_remote::identity::lookup::run(&matcher, &matches))?;
        if let Some(mut controller) = controller {
            spawn("load".into(), move || controller.run(&stopping))?;
        }
        Ok(())
    }
}

/// Starts the threads that are needed from the start. Returns the later ones, and the governor.
///
/// # Errors
/// A thread cannot be started, or a file of /proc cannot be opened.
pub fn start(
    config: &RunConfig,
    shared: &Arc<EngineContext>,
    channels: Channels,
    stopping: &Arc<AtomicBool>,
    image: &AgentImage,
    hurry: PriorityBoost,
) -> std::io::Result<(Later, Arc<Mutex<Governor>>)> {
    for number in 0..shared.mailboxes.len() {
        let mut owner = Pager::new(number, shared.clone())?;
        spawn(format!("owner-{number}"), move || owner.run())?;
    }
    for device in shared.store.device_numbers() {
        reader::threads::open(shared, device)?;
    }
    let mut attacher = if config.attach {
        Some(AttacherHandle::new(shared.clone(), image.descriptor()?, stopping.clone()))
    } else {
        None
    };
    if config.target.is_some() {
        attacher.as_mut().map_or(Ok(()), AttacherHandle::begin)?;
    }
    let shortage = image.shortage()?;
    let governor = Governor::new(shared.clone(), config, shortage, attacher, hurry)?;
    let governor = Arc::new(Mutex::new(governor));
    let (measures, stop) = (governor.clone(), stopping.clone());
    spawn("governor".into(), move || Governor::run(&measures, &stop))?;
    let controls = config.load_control || shared.faults.crowd;
    let controller = controls.then(|| Controller::new(shared.clone(), channels.questions));
    Ok((Later { shared: shared.clone(), stopping: stopping.clone(), controller, matches: channels.matches }, governor))
}

/// Gives back memory of the pool that only holes take up, by emptying thin slabs, some at a time.
fn empty_thin_slabs(shared: &EngineContext, scratch: &mut WritebackScratch) {
    const SLABS: u32 = 32;
    for _ in 0..SLABS {
        if !shared.store.is_thin() || shared.store.compact(scratch) == 0 {
            break;
        }
    }
    shared.budget.set_pool(shared.store.pool_bytes());
}

/// Whether writes take so long that several should be under way at once.
fn is_slow(shared: &EngineContext) -> bool {
    shared.store.device_numbers().into_iter().any(|device| reader::threads::is_far(shared, device))
}

/// Runs a writeback thread, which keeps the pool below its limit. One of these threads also keeps
/// the pool dense, and makes room on the devices (`looks_after_room`).
fn write_back(shared: &EngineContext, stop: &AtomicBool, looks_after_room: bool) {
    let mut scratch = WritebackScratch::new();
    shared.faults.serve_without_growth();
    // Whether repacking freed something in this round, or has not been tried yet.
    let mut repacks = looks_after_room;
    let (mut tried_room, mut looked, mut tidied) = (Instant::now(), Instant::now(), Instant::now());
    while !stop.load(SeqCst) {
        let needs_repack = repacks && shared.store.needs_repack();
        if needs_repack {
            repacks = shared.store.repack(&mut scratch).may_go_on();
        }
        if shared.store.needs_writeback() {
            let report = shared.store.writeback(&mut scratch);
            shared.budget.set_pool(shared.store.pool_bytes());
            if !report.progressed() {
                // The other threads have all pages in their batches: there is nothing to do until
                // one batch is written.
                std::thread::sleep(Duration::from_millis(1));
            }
        } else if !needs_repack {
            std::thread::sleep(shared.quiet().max(Duration::from_millis(2)));
        }
        // Reading how many holes the pool has takes the lock of each size.
        if looks_after_room && looked.elapsed() > Duration::from_millis(10) {
            looked = Instant::now();
            if tidied.elapsed() > Duration::from_millis(100) || shared.store.is_quite_thin() {
                tidied = looked;
                empty_thin_slabs(shared, &mut scratch);
            }
        }
        if looks_after_room && tried_room.elapsed() > Duration::from_secs(1) {
            tried_room = Instant::now();
            repacks = true;
            shared.store.retry_room();
            shared.store.trim();
            shared.store.trim_table();
        }
    }
}
