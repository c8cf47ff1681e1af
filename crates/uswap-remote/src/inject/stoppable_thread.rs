//! Chooses a thread that can be stopped for a moment without any effect that the program sees.
//!
//! Most system calls go on after an interruption without a handler; some return EINTR (signal(7),
//! "Interruption of system calls by stop signals"). A thread is chosen if it computes, or waits in
//! a call of the first kind. If there is none for a while, a thread in epoll_wait or sigwaitinfo
//! without a timeout is chosen, and its call is begun anew.

use std::fs;

/// How well a thread is suited to be stopped; the lowest is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fitness {
    /// It computes.
    Runs,
    /// It waits in a call that the kernel continues.
    Restarts,
    /// It waits in a call that can be begun anew.
    BeginsAnew,
}

mod number {
    pub const READ: u64 = 0;
    pub const WRITE: u64 = 1;
    pub const POLL: u64 = 7;
    pub const SELECT: u64 = 23;
    pub const PAUSE: u64 = 34;
    pub const NANOSLEEP: u64 = 35;
    pub const WAIT4: u64 = 61;
    pub const RT_SIGTIMEDWAIT: u64 = 128;
    pub const RT_SIGSUSPEND: u64 = 130;
    pub const FUTEX: u64 = 202;
    pub const CLOCK_NANOSLEEP: u64 = 230;
    pub const EPOLL_WAIT: u64 = 232;
    pub const WAITID: u64 = 247;
    pub const PSELECT6: u64 = 270;
    pub const PPOLL: u64 = 271;
    pub const EPOLL_PWAIT: u64 = 281;
    pub const EPOLL_PWAIT2: u64 = 441;
}

/// The best thread to stop. `patient`: no better one was found for a while, so a thread whose call
/// must be begun anew will do.
pub fn choose(pid: u32, threads: &[u32], patient: bool) -> Option<u32> {
    let mut best: Option<(Fitness, u32)> = None;
    for tid in threads {
        let Some(fitness) = fitness(pid, *tid) else { continue };
        if fitness == Fitness::Runs {
            return Some(*tid);
        }
        if best.is_none_or(|(known, _)| fitness < known) {
            best = Some((fitness, *tid));
        }
    }
    best.filter(|(fitness, _)| patient || *fitness < Fitness::BeginsAnew).map(|(_, tid)| tid)
}

fn fitness(pid: u32, tid: u32) -> Option<Fitness> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    judge(&text, |fd| {
        fs::read_link(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|path| path.to_string_lossy().starts_with("pipe:"))
    })
}

/// Judges a thread. `text`: the content of its /proc/TID/syscall (proc_pid_syscall(5)).
fn judge(text: &str, is_pipe: impl Fn(u64) -> bool) -> Option<Fitness> {
    let text = text.trim();
    if text == "running" {
        return Some(Fitness::Runs);
    }
    let mut words = text.split(' ');
    let number: u64 = words.next()?.parse().ok()?;
    let mut arguments = [0u64; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()?;
    }
    let forever = |timeout: u64| timeout as i32 == -1;
    match number {
        number::FUTEX
        | number::NANOSLEEP
        | number::CLOCK_NANOSLEEP
        | number::WAIT4
        | number::WAITID
        | number::POLL
        | number::SELECT
        | number::PAUSE => Some(Fitness::Restarts),
        number::READ | number::WRITE if is_pipe(arguments[0]) => Some(Fitness::Restarts),
        number::EPOLL_WAIT if forever(arguments[3]) => Some(Fitness::BeginsAnew),
        number::EPOLL_PWAIT if forever(arguments[3]) && arguments[4] == 0 => Some(Fitness::BeginsAnew),
        number::RT_SIGTIMEDWAIT if arguments[2] == 0 => Some(Fitness::BeginsAnew),
        _ => None,
    }
}

/// Whether the thread has another signal mask during this call.
pub fn swaps_signal_mask(number: u64, arguments: [u64; 6]) -> bool {
    match number {
        number::RT_SIGSUSPEND => true,
        number::PPOLL => arguments[3] != 0,
        number::PSELECT6 => arguments[5] != 0,
        number::EPOLL_PWAIT | number::EPOLL_PWAIT2 => arguments[4] != 0,
        _ => false,
    }
}

/// Whether a signal is pending for the thread: then the stop was not the only cause of the
/// interruption.
pub fn has_pending_signal(pid: u32, tid: u32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")) else { return false };
    let set = |field: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or(0)
    };
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitness_of(text: &str) -> Option<Fitness> {
        judge(text, |fd| fd == 3)
    }

    #[test]
    fn threads_are_judged_by_what_they_wait_in() {
        let rest = "0x7ffc 0x7f00";
        assert_eq!(fitness_of("running\n"), Some(Fitness::Runs));
        assert_eq!(fitness_of(&format!("202 0x1 0x80 0x0 0x0 0x0 0x0 {rest}")), Some(Fitness::Restarts));
        assert_eq!(fitness_of(&format!("0 0x3 0x1 0x1 0x0 0x0 0x0 {rest}")), Some(Fitness::Restarts));
        assert_eq!(fitness_of(&format!("0 0x4 0x1 0x1 0x0 0x0 0x0 {rest}")), None, "a socket may have a timeout");
        let forever = format!("232 0x4 0x1 0x1 0xffffffff 0x0 0x0 {rest}");
        assert_eq!(fitness_of(&forever), Some(Fitness::BeginsAnew));
        assert_eq!(fitness_of(&format!("232 0x4 0x1 0x1 0x64 0x0 0x0 {rest}")), None);
        assert_eq!(fitness_of(&format!("-1 {rest}")), None, "it waits for a page");
        assert_eq!(fitness_of(""), None);
        assert!(Fitness::Runs < Fitness::Restarts && Fitness::Restarts < Fitness::BeginsAnew);
    }

    #[test]
    fn masks_of_a_call_are_known() {
        assert!(swaps_signal_mask(130, [0; 6]));
        assert!(!swaps_signal_mask(281, [4, 0, 0, 0, 0, 8]) && swaps_signal_mask(281, [4, 0, 0, 0, 1, 8]));
        assert!(!swaps_signal_mask(202, [1; 6]));
    }
}
