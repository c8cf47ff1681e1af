//! Bringing in: the pages of a swapoff that find no other place come back into memory.
//!
//! A device is emptied into the pool and onto other devices first, without the pagers
//! ([`uswap_store::Drain`]). Pages that find room in neither can only go back into their processes.
//! Only a pager knows which page of which process an object is, and only it may install the page.
//! So the swapoff asks all pagers. Each searches the tables of its spaces and reads the pages that
//! it finds on the device, through the readers and into the same buffers as every other read. The
//! answer is checked against the page word as it is then, as for a fault, since the page may have
//! been unmapped, moved, forked or touched meanwhile. A page that several processes have is brought
//! in by each pager for each of them, and with the last reference its object leaves the device. No
//! copy is kept, neither there nor in the pool.
//!
//! **Faults first.** A pager takes a small step, then serves its events and its mailbox; between
//! two steps it rests for longer than a step takes. It asks for buffers as reads ahead do: faults
//! always find some.
//!
//! **Nothing is displaced.** Pages are brought in only while the run and the groups of their
//! process stay below the mark above which pages are evicted: otherwise they would push out other
//! pages, or be evicted again themselves, and there may be no device left to take them. Where room
//! is short the search waits until the program frees some. The swapoff watches for how long nothing
//! has left the device (`swapoff.rs`), and gives up by itself.
//!
//! A process that is stopped, waits for its turn, or has lost its agent gets pages like others:
//! that needs its descriptor only, and no help of the process.
//!
//! **If a page cannot be read** it is left where it is. It may never be touched; if it is, it is
//! poisoned then.

pub mod bring;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};
use uswap_core::PAGE;
use uswap_core::{Need, PAGE_SIZE};

/// Page words that a pager looks at in one step.
const LOOKS: usize = 1024;
/// The shortest time between two steps.
const PAUSE: Duration = Duration::from_micros(300);
/// Time before a space that was searched to its end, or has no room, is searched again.
const REST: Duration = Duration::from_millis(10);
/// The same for a space whose process has ended: it is about to be removed.
const LONG_REST: Duration = Duration::from_millis(100);

/// A swapoff's order to all pagers.
#[derive(Debug)]
pub struct BringIn {
    device: u8,
    /// Whether pages are left that neither the pool nor another device takes.
    wanted: AtomicBool,
    over: AtomicBool,
    /// Since the last query: whether a page found no room, and whether one could not be read.
    short: AtomicBool,
    unreadable: AtomicBool,
}

impl BringIn {
    /// An order that does not ask for pages yet.
    pub fn new(device: u8) -> Self {
        let no = || AtomicBool::new(false);
        Self { device, wanted: no(), over: no(), short: no(), unreadable: no() }
    }

    /// Begins or pauses bringing in. Returns whether that is a change.
    pub fn want(&self, wanted: bool) -> bool {
        self.wanted.swap(wanted, SeqCst) != wanted
    }

    /// Ends the order: no more pages are brought in.
    pub fn end(&self) {
        self.over.store(true, SeqCst);
    }

    /// Whether a page found no room, and whether one could not be read, since the last call.
    pub fn hindrances(&self) -> (bool, bool) {
        (self.short.swap(false, Relaxed), self.unreadable.swap(false, Relaxed))
    }

    fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }
}

/// A pager's part in a swapoff.
#[derive(Debug)]
pub struct Bringing {
    order: Option<Arc<BringIn>>,
    next_step: Instant,
}

impl Default for Bringing {
    fn default() -> Self {
        Self { order: None, next_step: Instant::now() }
    }
}

/// How far a space has been searched.
#[derive(Default, Debug)]
pub struct UnuseSearch {
    next: u64,
    rests_until: Option<Instant>,
}

impl UnuseSearch {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    fn rest_at(&mut self, next: u64, time: Duration) {
        *self = Self { next, rests_until: Some(Instant::now() + time) };
    }
}
