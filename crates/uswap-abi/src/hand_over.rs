//! The hand-over of pages: what the agent and the pager thread tell each other about one tray while
//! the agent executes its order.
//!
//! A page's word says *in flight* from the order until the pager thread knows what became of the
//! page. The agent moves page by page inside the gate and publishes before it leaves the gate which
//! pages have arrived; at the end it publishes that the order is completed. The pager thread looks
//! when it is notified, at any moment, and before it reads events, with the gate closed:
//!
//! ```text
//! agent, each time inside the gate            pager thread
//! is the run cancelled? then nothing          is the order completed?        <- first this,
//! MOVE                                        what has arrived is staged     <- then this
//! arrived(slots)                              completed: the rest stayed where it was
//! after the last: complete()                  event: cancel what it touches; its words are no longer in flight
//! ```
//! In the other order the pager thread would take a page that arrived in between for one that
//! stayed, and the program would read zeros. If the agent published an arrival outside the gate, a
//! remap would miss it, and the page would be lost in the same way. `models.rs` tries every
//! interleaving, also with each of the two mistakes.

use crate::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, SeqCst},
};

/// The words of the hand-over, in memory shared by the agent and the pager thread.
#[repr(C)]
#[derive(Debug)]
pub struct HandOver {
    /// Bit r: run r is cancelled.
    cancelled: AtomicU64,
    /// Bit s: slot s holds a page. True whatever the kernel reported, because the agent looked at
    /// the slot.
    filled: AtomicU64,
    /// Orders completed on this tray since the start: the pager thread compares this with the
    /// number that it pushed.
    completed: AtomicU32,
    padding: AtomicU32,
}

impl HandOver {
    /// Nothing ordered, nothing arrived.
    #[cfg(all(test, loom))]
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { cancelled: zero(), filled: zero(), completed: AtomicU32::new(0), padding: AtomicU32::new(0) }
    }

    /// Pager thread: called before it pushes the next order.
    pub fn reset(&self) {
        self.cancelled.store(0, Relaxed);
        self.filled.store(0, Relaxed);
    }

    /// Pager thread, with the gate closed: the agent must not execute the part of the run that it
    /// has not executed yet.
    pub fn cancel(&self, run: u32) {
        self.cancelled.fetch_or(1 << run, SeqCst);
    }

    /// Pager thread: whether all `pushed` orders are completed, and the slots that hold a page. It
    /// reads them in this order, so that a completed order has no further arrivals.
    pub fn look(&self, pushed: u32) -> (bool, u64) {
        let completed = self.completed.load(Acquire) == pushed;
        (completed, self.filled.load(SeqCst))
    }

    /// Agent, inside the gate: whether the run is cancelled.
    pub fn is_cancelled(&self, run: u32) -> bool {
        self.cancelled.load(SeqCst) & 1 << run != 0
    }

    /// Agent: the slots that hold a page.
    pub fn filled(&self) -> u64 {
        self.filled.load(Relaxed)
    }

    /// Agent, inside the gate, after MOVE: these slots hold a page too. Returns all that do.
    pub fn arrived(&self, slots: u64) -> u64 {
        let filled = self.filled.load(Relaxed) | slots;
        self.filled.store(filled, SeqCst);
        filled
    }

    /// Agent: an order is completed.
    pub fn complete(&self) {
        self.completed.fetch_add(1, SeqCst);
    }
}
