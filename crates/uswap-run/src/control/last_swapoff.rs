//! The last swapoff of a run or of a mount: a thread of its own empties the device, callers see
//! the progress in the figures, and can stop it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use uswap_core::util::size::human;
use uswap_store::{Drain, DrainRefusal, Store};

use crate::control::protocol::answer::{SwapoffBegun, SwapoffStopped};
use crate::control::protocol::status::SwapoffProgress;

/// One swapoff, under way or over.
#[derive(Debug)]
pub struct Swapoff {
    device: String,
    pages: u64,
    left: AtomicU64,
    stop: AtomicBool,
    /// `Some` once it is over, with the error if it failed.
    outcome: Mutex<Option<Result<(), String>>>,
}

impl Swapoff {
    /// The name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Number of pages that lay on the device when it began.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Tells how many pages are left.
    pub fn tell_left(&self, pages: u64) {
        self.left.store(pages, SeqCst);
    }

    /// Whether somebody has asked it to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }

    fn is_running(&self) -> bool {
        self.outcome.lock().expect("outcome").is_none()
    }
}

/// The last swapoff, if there was one.
#[derive(Debug, Default)]
pub struct LastSwapoff(Mutex<Option<Arc<Swapoff>>>);

impl LastSwapoff {
    /// Starts the next one, of a device of this store: `empty` works in a thread of its own.
    /// `memory`: pages that could come back into memory. `whose`: run or mount.
    ///
    /// # Errors
    /// For the user: one is under way, there is no such device, there is no room for its pages, or
    /// no more threads.
    pub fn start(
        &self,
        (store, memory): (&Store, u64),
        (device, whose): (&str, &str),
        empty: impl FnOnce(&Swapoff, Drain) -> Result<(), String> + Send + 'static,
    ) -> Result<SwapoffBegun, String> {
        let mut last = self.0.lock().expect("swapoff");
        if let Some(running) = last.as_ref().filter(|job| job.is_running()) {
            return Err(format!("{} is being emptied; one after the other", running.device));
        }
        let drain = store.begin_drain(device, memory).map_err(|refusal| refused(device, whose, &refusal))?;
        let pages = store.left_to_drain(&drain);
        let job = Arc::new(Swapoff {
            device: device.to_owned(),
            pages,
            left: AtomicU64::new(pages),
            stop: AtomicBool::new(false),
            outcome: Mutex::default(),
        });
        let its = job.clone();
        let (give, take) = std::sync::mpsc::sync_channel(1);
        let begun = uswap_sys::process::thread::spawn("swapoff".into(), move || {
            let Ok(drain) = take.recv() else { return };
            let outcome = empty(&its, drain);
            *its.outcome.lock().expect("outcome") = Some(outcome);
        });
        if let Err(error) = begun {
            store.cancel_drain(&drain);
            return Err(format!("no thread for it: {error}; the device is used as before"));
        }
        // The thread waits for it.
        let _ = give.send(drain);
        *last = Some(job);
        Ok(SwapoffBegun { device: device.to_owned(), pages })
    }

    /// Stops the swapoff that is under way; its device is used again.
    ///
    /// # Errors
    /// For the user: no swapoff is under way.
    pub fn stop(&self) -> Result<SwapoffStopped, String> {
        let last = self.0.lock().expect("swapoff");
        let running = last.as_ref().filter(|job| job.is_running());
        let job = running.ok_or("no device is being emptied")?;
        job.stop.store(true, SeqCst);
        Ok(SwapoffStopped { device: job.device.clone() })
    }

    /// Its progress, for the figures.
    pub fn figures(&self) -> Option<SwapoffProgress> {
        let last = self.0.lock().expect("swapoff").clone()?;
        let outcome = last.outcome.lock().expect("outcome");
        Some(SwapoffProgress {
            device: last.device.clone(),
            pages: last.pages,
            pages_left: last.left.load(SeqCst),
            running: outcome.is_none(),
            error: outcome.as_ref().and_then(|outcome| outcome.as_ref().err().cloned()),
        })
    }
}

fn refused(device: &str, whose: &str, refusal: &DrainRefusal) -> String {
    match refusal {
        DrainRefusal::Unknown(known) if known.is_empty() => format!("{device} is no swap device here; there is none"),
        DrainRefusal::Unknown(known) => {
            format!("{device} is no swap device of this {whose}; there is: {}", known.join(", "))
        }
        DrainRefusal::Busy => format!("{device} is being emptied already"),
        DrainRefusal::NoRoom { slots, pages, room } => {
            let [slots, pages] = [slots, pages].map(|n| human(n << 12));
            let [pool, devices, memory] = [room.pool, room.devices, room.memory].map(|n| human(n << 12));
            format!(
                "{device} holds {slots} ({pages} in memory), of which the pool can take {pool}, other devices {devices}, and \
                 the budget has room for {memory}; add another one first, or raise the limit"
            )
        }
    }
}
