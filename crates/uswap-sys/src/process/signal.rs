//! Signals: keeper and engine block them and take them one by one; the command gets the original
//! mask.

use std::io;
use std::time::Duration;

/// The signal mask of a thread.
#[derive(Clone, Copy)]
pub struct Mask(libc::sigset_t);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

/// A signal that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// The number of the signal.
    pub signal: i32,
    /// The signal came from the kernel (the terminal, a timer) and not from kill(2).
    pub from_kernel: bool,
    /// The process id of the sender.
    pub sender: u32,
}

/// Blocks every signal that can be blocked in this thread (and in those that it starts); returns
/// the previous mask.
pub fn block_all() -> Mask {
    let mut everything = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are written before they are read.
    unsafe {
        libc::sigfillset(everything.as_mut_ptr());
        libc::sigprocmask(libc::SIG_BLOCK, everything.as_ptr(), before.as_mut_ptr());
        Mask(before.assume_init())
    }
}

/// Sets the mask of this thread.
pub fn restore(mask: &Mask) {
    // SAFETY: a valid set.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const mask.0, std::ptr::null_mut()) };
}

/// Makes the command start with this mask, not with that of the thread that starts it.
pub fn begins_with(command: &mut std::process::Command, mask: Mask) {
    // SAFETY: all that is done between fork and exec is one system call.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(command, move || {
            restore(&mask);
            Ok(())
        });
    }
}

/// Takes one pending signal, waiting at most `timeout`.
///
/// # Errors
/// EAGAIN: no signal came.
pub fn take(timeout: Duration) -> io::Result<Taken> {
    let mut everything = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let time = libc::timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    // SAFETY: the set is filled before use, the info is written by the kernel or zero.
    unsafe {
        libc::sigfillset(everything.as_mut_ptr());
        let signal = libc::sigtimedwait(everything.as_ptr(), info.as_mut_ptr(), &raw const time);
        let signal = crate::check_int(signal)?;
        let info = info.assume_init();
        Ok(Taken { signal, from_kernel: info.si_code > 0, sender: info.si_pid() as u32 })
    }
}

/// Stops this process as the terminal would, so that the shell that waits for it notices.
pub fn stop_self() {
    // SAFETY: no pointers.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}

/// Restores the default action of SIGPIPE, which the start-up code of Rust ignores. Other ignored
/// signals stay ignored.
pub fn default_sigpipe() {
    // SAFETY: SIG_DFL is always valid.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
