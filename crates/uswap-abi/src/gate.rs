//! The gate: every MOVE is wholly before or wholly after every event of its userfaultfd.
//!
//! `UFFDIO_MOVE` does not check that its source is still registered. If the engine decided an order
//! before an unmap event and the agent executed it after that event, MOVE would take the pages of a
//! *new* mapping at that address, and the program would lose them. So the agent and the pager
//! thread, which owns the userfaultfd, exclude each other, as in Dekker's algorithm:
//!
//! ```text
//! agent                                    pager thread
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
//! other's: at least one of them sees the other. The pager thread sees all that the agent did
//! inside the gate, because `busy = 0` is a release that the pager thread acquires; the agent sees
//! what the pager thread did by `reads_done` in the same way. `models.rs` tries every interleaving.
//!
//! The pager thread waits for at most one ioctl of 64 pages. If the agent is stopped inside it, the
//! pager thread gives up for now and tries again later (the gate stays closed meanwhile).

use crate::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// The three words of the gate, in memory shared by the agent and the pager thread.
#[repr(C)]
#[derive(Debug)]
pub struct Gate {
    busy: AtomicU32,
    reads_started: AtomicU32,
    reads_done: AtomicU32,
}

impl Gate {
    /// An open gate with no agent inside.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { busy: AtomicU32::new(0), reads_started: AtomicU32::new(0), reads_done: AtomicU32::new(0) }
    }

    /// An open gate with no agent inside.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { busy: AtomicU32::new(0), reads_started: AtomicU32::new(0), reads_done: AtomicU32::new(0) }
    }

    /// Agent: enters the gate. `false` while the pager thread is reading events: do nothing and try
    /// later.
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

    /// Agent: leaves the gate, after it has written the result of the MOVE.
    pub fn leave(&self) {
        self.busy.store(0, Release);
    }

    /// Pager thread: from now on no agent enters. Call [`Gate::is_quiet`] next, until it is true.
    pub fn close(&self) {
        self.reads_started.fetch_add(1, Relaxed);
        fence(SeqCst);
    }

    /// Pager thread: whether the agent is outside. Only then may the pager thread absorb results
    /// and read events.
    pub fn is_quiet(&self) -> bool {
        self.busy.load(Acquire) == 0
    }

    /// Pager thread: it has applied the events and cancelled the orders they touch; agents may
    /// enter again.
    pub fn open(&self) {
        self.reads_done.fetch_add(1, Release);
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
