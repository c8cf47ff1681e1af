//! `uswap swapoff`: a device is emptied and closed. A separate thread does it, and callers see the
//! progress in the figures.
//!
//! A swapoff works in rounds over all pages on the device. Each round moves the pages that pool and
//! other devices can take. If a round leaves pages behind, the pager threads are told to bring them
//! into memory (`unuse.rs`), and rounds continue at the same time, since room may appear in the
//! pool or on other devices. The swapoff ends when the device is empty, when it is interrupted,
//! when no page has left the device for [`PROGRESS_TIMEOUT`], or when programs wait for room that
//! only the device could give ([`STARVED`]). In all cases but the first the device is used again
//! (unless the pages that are left cannot be read: then it gets no more pages), and every page is
//! at a place that its pager thread knows.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use uswap_core::util::size::human;
use uswap_store::{Drain, DrainReport};

use crate::control::last_swapoff::Swapoff;
use crate::control::protocol::answer::SwapoffBegun;
use crate::shared::RunShared;
use uswap_pager::io::unuse::BringIn;
use uswap_remote::{EngineContext, Message};

/// How long a swapoff goes on without progress. Pages that are being written when it begins become
/// movable in that time.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(5);
/// How long programs may wait for room while nothing can take their pages. (The tree is killed for
/// that only after a longer time.)
const STARVED: Duration = Duration::from_millis(500);
/// Pauses between two rounds: while pool or other devices have room, and while pager threads bring
/// pages in.
const SHORT_PAUSE: Duration = Duration::from_millis(2);
const LONG_PAUSE: Duration = Duration::from_millis(20);

/// `uswap swapoff`: begins to empty a device.
///
/// # Errors
/// For the user: the device does not exist or is being emptied, or there is no room for its pages.
/// Nothing is changed then.
pub fn begin(shared: &Arc<EngineContext>, device: &str) -> Result<SwapoffBegun, String> {
    let memory = shared.budget.free() as u64;
    let its = shared.clone();
    RunShared::of(shared)
        .orders
        .swapoff
        .start((&shared.store, memory), (device, "run"), move |job, drain| empty(&its, job, drain))
}

/// Empties the device, until it is closed or the swapoff has failed.
fn empty(shared: &EngineContext, job: &Swapoff, mut drain: Drain) -> Result<(), String> {
    let outcome = work(shared, job, &mut drain);
    match &outcome {
        Ok(()) => shared.notice(format!("swap off {}", job.device())),
        Err(error) => shared.notice(format!("swapoff of {}: {error}", job.device())),
    }
    outcome
}

fn work(shared: &EngineContext, job: &Swapoff, drain: &mut Drain) -> Result<(), String> {
    let order = Arc::new(BringIn::new(drain.device()));
    shared.mailboxes.iter().for_each(|mailbox| mailbox.post(Message::BringIn(order.clone())));
    let outcome = go_in_rounds(shared, job, drain, &order);
    order.end();
    outcome
}

fn go_in_rounds(shared: &EngineContext, job: &Swapoff, drain: &mut Drain, order: &BringIn) -> Result<(), String> {
    let store = &shared.store;
    let mut progress = Progress::new(job.pages());
    loop {
        let left = store.left_to_drain(drain);
        job.tell_left(left);
        if left == 0 && let_go(shared, drain) {
            return Ok(());
        }
        if job.is_stopped() {
            store.cancel_drain(drain);
            return Err(format!("interrupted; {} are still there, and it is used again", human(left << 12)));
        }
        if progress.is_starved(shared) {
            store.cancel_drain(drain);
            let left = human(left << 12);
            return Err(format!("programs need the room that the last {left} would take; it is used again"));
        }
        shared.faults.pause(shared.faults.delay_drain);
        let report = store.drain_step(drain);
        shared.budget.set_pool(store.pool_bytes());
        progress.note(left, &report);
        if report.round_done {
            if progress.at.elapsed() > PROGRESS_TIMEOUT {
                return Err(give_up(shared, drain, &progress, order));
            }
            std::thread::sleep(progress.end_round(shared, order));
        }
    }
}

/// Closes the device; `false` while pages still lie on it.
fn let_go(shared: &EngineContext, drain: &Drain) -> bool {
    let gone = shared.store.end_drain(drain);
    if gone {
        shared.readers.close(drain.device());
        shared.mailboxes.iter().for_each(|mailbox| mailbox.post(Message::DeviceGone(drain.device())));
    }
    gone
}

/// Progress of a swapoff.
struct Progress {
    least: u64,
    /// When a page left the device last.
    at: Instant,
    /// Pages of this round that could not be read, and pages that neither pool nor another device
    /// took.
    unreadable: u32,
    refused: u32,
    /// The same two numbers of the last round.
    last: (u32, u32),
    starved_since: Option<Instant>,
    /// Hindrances since a page left the device last: memory was short; pages could not be brought
    /// in.
    short_of_memory: bool,
    could_not_bring: bool,
}

impl Progress {
    fn new(pages: u64) -> Self {
        Self {
            least: pages,
            at: Instant::now(),
            unreadable: 0,
            refused: 0,
            last: (0, 0),
            starved_since: None,
            short_of_memory: false,
            could_not_bring: false,
        }
    }

    fn note(&mut self, left: u64, report: &DrainReport) {
        self.unreadable += report.unreadable;
        self.refused += report.refused;
        if report.moved > 0 || left < self.least {
            (self.least, self.at) = (self.least.min(left), Instant::now());
            (self.short_of_memory, self.could_not_bring) = (false, false);
        }
    }

    /// Tells the pager threads whether they have to bring pages in. Returns the pause before the
    /// next round.
    fn end_round(&mut self, shared: &EngineContext, order: &BringIn) -> Duration {
        self.last = (self.unreadable, self.refused);
        (self.unreadable, self.refused) = (0, 0);
        let is_left = self.last.1 > 0;
        if order.want(is_left) && is_left {
            shared.mailboxes.iter().for_each(|mailbox| mailbox.post(Message::Balance));
        }
        let (short, unreadable) = order.hindrances();
        self.short_of_memory |= short;
        self.could_not_bring |= unreadable;
        if is_left { LONG_PAUSE } else { SHORT_PAUSE }
    }

    /// Whether faults have waited for some time for room that does not appear, or a group outgrows
    /// its limit, because eviction finds everything full. A group between its high mark and its
    /// hard limit does not count: pages of it are to be evicted, but no fault waits for that.
    fn is_starved(&mut self, shared: &EngineContext) -> bool {
        let budget = &shared.budget;
        let is_short = || !budget.has_room(1) || shared.groups.in_use() && shared.groups.lack_room();
        if !budget.exhausted.load(SeqCst) || !is_short() {
            self.starved_since = None;
            return false;
        }
        self.starved_since.get_or_insert_with(Instant::now).elapsed() > STARVED
    }
}

/// Ends a swapoff without progress. If the pages that are left cannot be read the device gets no
/// more pages; if there is no room for them it is used again.
fn give_up(shared: &EngineContext, drain: &Drain, progress: &Progress, order: &BringIn) -> String {
    let left = human(shared.store.left_to_drain(drain) << 12);
    let (unreadable, refused) = progress.last;
    let (short, could_not_bring) = order.hindrances();
    let short = progress.short_of_memory || short;
    let lost = progress.could_not_bring || could_not_bring;
    if unreadable > 0 && refused == 0 {
        return format!("{unreadable} pages cannot be read; the device stays with {left} and gets no more pages");
    }
    if lost && !short {
        return format!("the last {left} cannot be read; the device stays with them and gets no more pages");
    }
    let pages = shared.store.left_to_drain(drain);
    shared.store.cancel_drain(drain);
    let free = shared.budget.free() as u64;
    let why = match short {
        true if free > pages => " (their processes are in groups that are at their limits)".into(),
        true => format!(" (the budget has {})", human(free << 12)),
        false => String::new(),
    };
    format!("nobody has room for the last {left}{why}; it is used again")
}
