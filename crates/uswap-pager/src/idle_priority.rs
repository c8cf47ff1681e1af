//! Lowering an owner below all ordinary threads, so that the thread it wakes stays on its
//! processor.
//!
//! A woken thread goes where nobody runs, and beside an owner that is just serving it somebody
//! does: its owner. So it is sent to another processor, which must be interrupted out of its sleep,
//! and the next fault comes from there. But the kernel takes a processor that runs nothing but
//! threads of the idle policy (`SCHED_IDLE`, sched(7)) for idle, and lets an ordinary thread in at
//! once. With the owner of that policy, owner and program take turns on one processor, and after
//! its first fault the owner no longer sleeps: what remains of a fault are two switches of tasks.
//!
//! The price is that a lowered owner gets next to nothing of a processor on which others want to
//! run. It needs it when others wait for it, so it is *raised*, made an ordinary thread again, by
//! whoever posts a message to it, before taking any lock, and by the governor at each of its turns
//! (a millisecond while memory is short): nobody waits longer than that for a lock that a lowered
//! owner holds, or for a second thread's fault. An owner that finds itself raised lowers itself
//! again at the end of its turn.
//!
//! A raise that comes while the owner is lowering itself may be lost; the next one is not. To be
//! made ordinary again needs the right to the niceness it had (`can_nice`): without that right an
//! owner is never lowered.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};

use uswap_sys::process;

/// Niceness of threads that others wait for.
pub const HURRIED: i32 = -10;
/// How long the engine's threads run at a time, in nanoseconds: what waits for them should not wait
/// for the program.
pub const TURN: u64 = 100_000;

/// The rank of one owner's thread.
#[derive(Debug, Default)]
pub struct IdlePriority {
    /// 0: not known, or not permitted.
    thread: AtomicU32,
    /// What it is to have while it is not lowered.
    niceness: AtomicI32,
    lowered: AtomicBool,
    raised: AtomicBool,
}

impl IdlePriority {
    /// The calling thread is the owner. `false`: it may not be lowered, since it could not be
    /// raised.
    pub fn adopt(&self) -> bool {
        let permitted = process::may_take_niceness(HURRIED);
        self.niceness.store(process::niceness_of(0).unwrap_or(0), SeqCst);
        self.thread.store(if permitted { process::this_thread() } else { 0 }, SeqCst);
        permitted
    }

    /// Owner: runs below all others from now on.
    pub fn lower(&self) {
        if self.thread.load(SeqCst) == 0 || self.lowered.swap(true, SeqCst) {
            return;
        }
        self.raised.store(false, SeqCst);
        if !process::run_last() {
            self.lowered.store(false, SeqCst);
        }
    }

    /// Owner, at the end of a turn: lowers itself again if it was raised.
    pub fn keep(&self) {
        if self.raised.load(SeqCst) && self.lowered.load(SeqCst) {
            self.raised.store(false, SeqCst);
            process::run_last();
        }
    }

    /// Owner: is an ordinary thread from now on.
    pub fn end(&self) {
        if self.lowered.swap(false, SeqCst) {
            process::run_ordinarily(0, self.niceness.load(SeqCst), TURN);
        }
    }

    /// Anyone: the owner is needed. Says whether it was lowered.
    pub fn raise(&self) -> bool {
        let lowered = self.is_lowered();
        if lowered {
            self.raised.store(true, SeqCst);
            process::run_ordinarily(self.thread.load(SeqCst), self.niceness.load(SeqCst), TURN);
        }
        lowered
    }

    /// Governor: the niceness that the owner has from now on while it is not lowered. Says which
    /// thread it is, if it can be told.
    pub fn take_niceness(&self, niceness: i32) -> Option<u32> {
        let thread = Some(self.thread.load(SeqCst)).filter(|thread| *thread != 0)?;
        self.niceness.store(niceness, SeqCst);
        self.raised.store(true, SeqCst);
        process::run_ordinarily(thread, niceness, TURN);
        Some(thread)
    }

    /// Whether it runs below all others.
    pub fn is_lowered(&self) -> bool {
        self.lowered.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn policy(thread: u32) -> u32 {
        process::policy_of(thread).expect("a thread")
    }

    const ORDINARY: u32 = 0;
    const IDLE: u32 = 5;

    #[test]
    fn who_was_lowered_is_raised_by_others_and_lowers_itself_again() {
        let lowered = Arc::new(IdlePriority::default());
        let shared = lowered.clone();
        let owner = std::thread::spawn(move || {
            if !shared.adopt() {
                return;
            }
            let (me, niceness) = (process::this_thread(), process::niceness_of(0).expect("a niceness"));
            shared.raise();
            assert!(!shared.is_lowered() && policy(me) == ORDINARY, "nothing to raise");
            shared.lower();
            assert!(shared.is_lowered());
            assert_eq!(policy(me), IDLE);
            let other = shared.clone();
            assert!(std::thread::spawn(move || other.raise()).join().expect("raise"));
            assert_eq!(policy(me), ORDINARY);
            assert_eq!(process::niceness_of(me), Some(niceness), "nobody gains by it");
            for told in [HURRIED, niceness] {
                assert_eq!(shared.take_niceness(told), Some(me));
                assert_eq!((policy(me), process::niceness_of(me)), (ORDINARY, Some(told)));
                shared.keep();
                assert_eq!(policy(me), IDLE, "lowered again");
                shared.raise();
                assert_eq!((policy(me), process::niceness_of(me)), (ORDINARY, Some(told)));
            }
            shared.keep();
            assert_eq!(policy(me), IDLE);
            shared.end();
            assert_eq!(policy(me), ORDINARY);
            shared.keep();
            assert_eq!(policy(me), ORDINARY, "it is over");
        });
        owner.join().expect("owner");
    }

    #[test]
    fn without_permission_nothing_happens() {
        let lowered = IdlePriority::default();
        lowered.lower();
        assert!(!lowered.is_lowered());
        assert_eq!(policy(process::this_thread()), ORDINARY);
    }
}
