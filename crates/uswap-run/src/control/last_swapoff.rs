//! The last swapoff of a run or of a mount: a thread of its own empties the device, callers see
//! the progress in the figures, and can stop it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

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
    /// Starts the next one. `begin` returns the number of pages on the device and what `empty`
    /// needs, which then works in a thread of its own.
    ///
    /// # Errors
    /// For the user: one is under way, the error of `begin`, or no more threads.
    pub fn start<D: Send + 'static>(
        &self,
        device: &str,
        begin: impl FnOnce() -> Result<(u64, D), String>,
        empty: impl FnOnce(&Swapoff, D) -> Result<(), String> + Send + 'static,
    ) -> Result<SwapoffBegun, String> {
        let mut last = self.0.lock().expect("swapoff");
        if let Some(running) = last.as_ref().filter(|job| job.is_running()) {
            return Err(format!("{} is being emptied; one after the other", running.device));
        }
        let (pages, drain) = begin()?;
        let job = Arc::new(Swapoff {
            device: device.to_owned(),
            pages,
            left: AtomicU64::new(pages),
            stop: AtomicBool::new(false),
            outcome: Mutex::default(),
        });
        let its = job.clone();
        let begun = uswap_sys::process::thread::spawn("swapoff".into(), move || {
            let outcome = empty(&its, drain);
            *its.outcome.lock().expect("outcome") = Some(outcome);
        });
        begun.map_err(|error| format!("no thread for it: {error}"))?;
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
