//! The hand-over of pages: what agent and owner tell each other about one tray while its order is
//! executed.
//!
//! A page's word says *in flight* from the order on until the owner knows what became of it. The
//! agent moves page by page under the gate and says in the same passage what has arrived; at the
//! end it says that the order is completed. The owner looks when it is notified, at any moment, and
//! before it reads events, with the gate closed:
//!
//! ```text
//! agent, for each passage of the gate         owner
//! is the run cancelled? then nothing          is the order completed?        <- first this,
//! MOVE                                        what has arrived is staged     <- then this
//! arrived(slots)                              completed: the rest stayed where it was
//! after the last: complete()                  event: cancel what it touches; its words are no longer in flight
//! ```
//! Read the other way round, a page that arrived in between would be taken for one that stayed, and
//! the program would read zeros. An arrival that was told outside the gate would be missed by a
//! remap, and lost in the same way. `models.rs` tries every interleaving, also of the two mistakes.

use crate::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, SeqCst},
};

/// The words of the hand-over, in memory shared by agent and owner.
#[repr(C)]
#[derive(Debug)]
pub struct HandOver {
    /// Bit r: run r is cancelled.
    cancelled: AtomicU64,
    /// Bit s: slot s holds a page. True whatever the kernel reported: the agent looked.
    filled: AtomicU64,
    /// Orders completed on this tray, ever: the owner compares with what it pushed.
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

    /// Owner: before the next order is pushed.
    pub fn reset(&self) {
        self.cancelled.store(0, Relaxed);
        self.filled.store(0, Relaxed);
    }

    /// Owner, with the gate closed: the run is not to be executed, as far as it has not been.
    pub fn cancel(&self, run: u32) {
        self.cancelled.fetch_or(1 << run, SeqCst);
    }

    /// Owner: whether all `pushed` orders are completed, and the slots that hold a page. In this
    /// order: what has arrived is everything if it is completed.
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
