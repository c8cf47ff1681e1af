//! The gate: every MOVE is wholly before or wholly after every event of its userfaultfd.
//!
//! `UFFDIO_MOVE` does not check that its source is still registered. Were the agent to execute an
//! order that was decided before an unmap event and run after it, the pages of a *new* mapping at
//! that address would be taken from a program that has no idea. So the two sides take turns, in the
//! manner of Dekker:
//!
//! ```text
//! agent                                    owner of the userfaultfd
//! busy = 1                                 reads_started += 1
//! fence                                    fence
//! reads_started != reads_done ?            wait until busy == 0
//!   yes: busy = 0, try later               absorb the results in the ring
//!   no:  is the order cancelled?           read, apply all events, cancel the orders they touch
//!        MOVE through the event fd         reads_done += 1
//!        write the result
//! busy = 0
//! ```
//!
//! Each side first writes its own word and then, behind a sequentially consistent fence, reads the
//! other's: at least one of them sees the other. What the agent did inside is seen by the owner
//! because `busy = 0` is a release that the owner acquires, and the other way round by
//! `reads_done`. `models.rs` tries every interleaving.
//!
//! The owner's wait is bounded by one ioctl of 64 pages, or, when the agent is stopped inside it,
//! taken up again later by the owner (the gate stays closed meanwhile).

use crate::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// The three words of the gate, in memory shared by agent and owner.
#[repr(C)]
#[derive(Debug)]
pub struct Gate {
    busy: AtomicU32,
    reads_started: AtomicU32,
    reads_done: AtomicU32,
}

impl Gate {
    /// An open gate with nobody inside.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { busy: AtomicU32::new(0), reads_started: AtomicU32::new(0), reads_done: AtomicU32::new(0) }
    }

    /// An open gate with nobody inside.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { busy: AtomicU32::new(0), reads_started: AtomicU32::new(0), reads_done: AtomicU32::new(0) }
    }

    /// Agent: goes in. `false` when the owner is reading events: do nothing and try later.
    #[must_use]
    pub fn enter(&self) -> bool {
        self.busy.store(1, Relaxed);
        fence(SeqCst);
        if self.reads_started.load(Relaxed) == self.reads_done.load(Acquire) {
            return true;
        }
        self.leave();
        false
    }

    /// Agent: goes out, after the result of the MOVE was written.
    pub fn leave(&self) {
        self.busy.store(0, Release);
    }

    /// Owner: from now on no agent goes in. To be followed by [`Gate::is_quiet`] until that is
    /// true.
    pub fn close(&self) {
        self.reads_started.fetch_add(1, Relaxed);
        fence(SeqCst);
    }

    /// Owner: whether the agent is outside. Only then may results be absorbed and events read.
    pub fn is_quiet(&self) -> bool {
        self.busy.load(Acquire) == 0
    }

    /// Owner: events are applied and the orders they touch are cancelled; agents may go in again.
    pub fn open(&self) {
        self.reads_done.fetch_add(1, Release);
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
