//! `uswap swapoff` of a mount: a device is emptied and closed.
//!
//! Its pages move to the pool or to other devices (uswap-store, `background/drain.rs`). A cache may
//! lose any page, since the source has it: a page that finds no place, or cannot be read, is
//! dropped, and comes from the source when it is asked for again. So no swapoff is refused for want
//! of room, and none takes memory.
//!
//! **If a page does not leave**, because somebody reads it for longer than [`PATIENCE`], the device
//! is used again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uswap_core::util::size::human;
use uswap_run::control::last_swapoff::{LastSwapoff, Swapoff};
use uswap_run::control::protocol::answer::SwapoffBegun;
use uswap_store::Drain;

use crate::cache::FileCache;
use crate::cache::store_below::StoreBelow;

/// How long it goes on while no page leaves.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two rounds over all pages.
const PAUSE: Duration = Duration::from_millis(5);

/// Begins to empty the device.
///
/// # Errors
/// For the user: there is no such device, or it is being emptied already.
pub fn begin(cache: &Arc<FileCache>, last: &LastSwapoff, device: &str) -> Result<SwapoffBegun, String> {
    let below = cache.below().ok_or("it was mounted with --pool 0 and without --swap, and so has no store")?;
    let its = Arc::clone(cache);
    last.start((below.store(), u64::MAX), (device, "mount"), move |job, drain| match its.below() {
        Some(below) => empty(&its, below, job, drain),
        None => Ok(()),
    })
}

fn empty(cache: &FileCache, below: &StoreBelow, job: &Swapoff, mut drain: Drain) -> Result<(), String> {
    let store = below.store();
    let (mut least, mut since, mut stuck) = (u64::MAX, Instant::now(), 0);
    loop {
        let left = store.left_to_drain(&drain);
        job.tell_left(left);
        if left == 0 && store.end_drain(&drain) {
            return Ok(());
        }
        if left < least {
            (least, since) = (left, Instant::now());
        }
        let is_stopped = job.is_stopped();
        if is_stopped || since.elapsed() > PATIENCE {
            let why = if is_stopped { "interrupted" } else { "no page has left for 5 s" };
            store.cancel_drain(&drain);
            return Err(format!("{why}; {} are still there, and it is used again", human(left << 12)));
        }
        let report = store.drain_step(&mut drain);
        stuck += report.refused + report.unreadable;
        if report.round_done {
            if stuck > 0 {
                below.drop_on(cache, drain.device());
            }
            stuck = 0;
            std::thread::sleep(PAUSE);
        }
    }
}
