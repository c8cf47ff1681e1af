//! Lowering a pager thread below all ordinary threads, so that the thread it wakes stays on its
//! processor.
//!
//! The kernel puts a woken thread on an idle processor, and the processor on which its pager has
//! just served it is not idle: the pager runs there. So the thread is sent to another processor,
//! which must be interrupted out of its sleep, and the next fault comes from there. But the kernel
//! counts a processor that runs nothing but threads of the idle policy (`SCHED_IDLE`, sched(7)) as
//! idle, and lets an ordinary thread run there at once. With a pager thread of that policy, pager
//! and program alternate on one processor, and after its first fault the pager no longer sleeps: a
//! fault then costs two context switches.
//!
//! The price is that a lowered pager gets next to no time on a processor that other threads want to
//! use. It needs time when other threads wait for it, so it is *raised*, made an ordinary thread
//! again: by any thread that posts a message to it, before that thread takes a lock, and by the
//! governor in each of its rounds (a millisecond while memory is short). So no thread waits longer
//! than that for a lock that a lowered pager holds, or for the fault of a second thread. A pager
//! that finds itself raised lowers itself again at the end of its round.
//!
//! A raise that comes while the pager is lowering itself may be lost; the next one is not. Making
//! the thread ordinary again needs the right to the niceness that it had (`can_nice`): without that
//! right a pager is never lowered.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};

use uswap_sys::process;

/// Niceness of threads that other threads wait for.
pub const HURRIED: i32 = -10;
/// Time slice of the engine's threads, in nanoseconds: short, so that threads that wait for them
/// need not wait for the program.
pub const TURN: u64 = 100_000;

/// The scheduling class of one pager thread.
#[derive(Debug, Default)]
pub struct IdlePriority {
    /// The id of the thread; 0: unknown, or lowering is not permitted.
    thread: AtomicU32,
    /// The niceness of the thread while it is not lowered.
    niceness: AtomicI32,
    lowered: AtomicBool,
    raised: AtomicBool,
}

impl IdlePriority {
    /// Notes that the calling thread is the pager thread. Returns `false` if it must not be
    /// lowered, because it could not be raised again.
    pub fn adopt(&self) -> bool {
        let permitted = process::may_take_niceness(HURRIED);
        self.niceness.store(process::niceness_of(0).unwrap_or(0), SeqCst);
        self.thread.store(if permitted { process::this_thread() } else { 0 }, SeqCst);
        permitted
    }

    /// For the pager: runs below all other threads from now on.
    pub fn lower(&self) {
        if self.thread.load(SeqCst) == 0 || self.lowered.swap(true, SeqCst) {
            return;
        }
        self.raised.store(false, SeqCst);
        if !process::run_last() {
            self.lowered.store(false, SeqCst);
        }
    }

    /// For the pager, at the end of a round: lowers itself again if it was raised.
    pub fn keep(&self) {
        if self.raised.load(SeqCst) && self.lowered.load(SeqCst) {
            self.raised.store(false, SeqCst);
            process::run_last();
        }
    }

    /// For the pager: is an ordinary thread from now on.
    pub fn end(&self) {
        if self.lowered.swap(false, SeqCst) {
            process::run_ordinarily(0, self.niceness.load(SeqCst), TURN);
        }
    }

    /// For any thread that needs the pager: raises it. Returns whether it was lowered.
    pub fn raise(&self) -> bool {
        let lowered = self.is_lowered();
        if lowered {
            self.raised.store(true, SeqCst);
            process::run_ordinarily(self.thread.load(SeqCst), self.niceness.load(SeqCst), TURN);
        }
        lowered
    }

    /// For the governor: sets the niceness of the pager while it is not lowered. Returns the id of
    /// the thread, if it is known.
    pub fn take_niceness(&self, niceness: i32) -> Option<u32> {
        let thread = Some(self.thread.load(SeqCst)).filter(|thread| *thread != 0)?;
        self.niceness.store(niceness, SeqCst);
        self.raised.store(true, SeqCst);
        process::run_ordinarily(thread, niceness, TURN);
        Some(thread)
    }

    /// Whether the thread is lowered.
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
