//! Signals that ask a program to end, remembered in a flag: for a program that has things to put back first.
//!
//! The signal mask is left alone, so children start with the mask this program was started with.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// The last such signal, 0 when none came.
static ARRIVED: AtomicI32 = AtomicI32::new(0);

extern "C" fn remember(signal: libc::c_int) {
    ARRIVED.store(signal, SeqCst);
}

/// From now on SIGHUP, SIGINT, SIGQUIT and SIGTERM end nothing here and are told by [`arrived`]. A signal that was ignored
/// when the program was started stays ignored.
///
/// # Errors
/// None on Linux.
pub fn remember_requests_to_end() -> io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: both structures are valid and zero is a valid value of each field; the handler only stores to an
        // atomic, which is allowed in a signal handler.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            crate::check_int(libc::sigaction(signal, std::ptr::null(), &raw mut before))?;
            if before.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = remember as *const () as usize;
            libc::sigemptyset(&raw mut action.sa_mask);
            crate::check_int(libc::sigaction(signal, &raw const action, std::ptr::null_mut()))?;
        }
    }
    Ok(())
}

/// The signal that asked this program to end, if one did.
pub fn arrived() -> Option<i32> {
    match ARRIVED.load(SeqCst) {
        0 => None,
        signal => Some(signal),
    }
}
