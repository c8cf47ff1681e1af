//! Signals that ask a program to end, remembered in a flag, for a program that has to restore
//! something first.
//!
//! The signal mask stays as it is, so children start with the mask that this program was started
//! with.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// The last such signal; 0 when none has arrived.
static ARRIVED: AtomicI32 = AtomicI32::new(0);

extern "C" fn remember(signal: libc::c_int) {
    ARRIVED.store(signal, SeqCst);
}

/// From now on SIGHUP, SIGINT, SIGQUIT and SIGTERM do not end this process; [`arrived`] returns
/// them. A signal that was ignored when the program was started stays ignored.
///
/// # Errors
/// None on Linux.
pub fn remember_requests_to_end() -> io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: both structures are valid and zero is a valid value of each field; the handler
        // only stores to an atomic, which is allowed in a signal handler.
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

/// The signal that asked this program to end, if one has arrived.
pub fn arrived() -> Option<i32> {
    match ARRIVED.load(SeqCst) {
        0 => None,
        signal => Some(signal),
    }
}

/// Of SIGHUP, SIGINT and SIGQUIT, this process may ignore some (shells make background jobs ignore
/// them, and so does nohup). The programs that it starts from now on do not ignore them: an ignored
/// signal stays ignored in a new program, but one with a handler gets its default action back. This
/// process goes on as if it ignored the signals.
///
/// # Errors
/// None on Linux.
pub fn heed_in_children() -> io::Result<()> {
    extern "C" fn ignore(_: libc::c_int) {}
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: both structures are valid and zero is a valid value of each field; the handler
        // does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            crate::check_int(libc::sigaction(signal, std::ptr::null(), &raw mut action))?;
            if action.sa_sigaction == libc::SIG_IGN {
                action.sa_sigaction = ignore as *const () as usize;
                action.sa_flags = libc::SA_RESTART;
                crate::check_int(libc::sigaction(signal, &raw const action, std::ptr::null_mut()))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// Runs in a process of its own, since signal actions belong to all threads of this test
    /// process.
    #[test]
    fn who_is_started_by_one_that_ignores_interrupts_heeds_them() {
        const INSIDE: &str = "USWAP_TEST_IGNORES_INTERRUPTS";
        if std::env::var_os(INSIDE).is_some() {
            super::heed_in_children().expect("signals");
            let status = Command::new("sh").args(["-c", "kill -INT $$; exit 3"]).status().expect("a shell");
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2), "{status}");
            return;
        }
        let me = std::env::current_exe().expect("this test");
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' INT; \"$0\" who_is_started; s=$?; kill -INT $$; exit $s"]).arg(me);
        let output = shell.env(INSIDE, "1").output().expect("a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }
}
