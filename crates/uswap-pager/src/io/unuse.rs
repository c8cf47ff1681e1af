//! Bringing in: what a swapoff finds no other place for comes back into memory.
//!
//! A device is emptied into the pool and onto other devices, without anybody's help
//! ([`uswap_store::Drain`]). What neither takes has one place left: where it came from. Only owners
//! know which page of which process an object is, and only they may install it. So the swapoff asks
//! all of them, and each searches the tables of its spaces and reads what it finds on the device,
//! by the readers and into the buffers of every other read. An answer meets the page as it is then:
//! whatever was unmapped, moved, forked or touched meanwhile is told by its word, here as for a
//! fault. A page that several processes have is brought in by each owner for each of them, and with
//! the last reference its object leaves the device. No copy is kept, there or in the pool.
//!
//! **Faults first.** An owner takes a small step, then looks after its events and its mail; between
//! two steps it rests for longer than a step takes. Buffers are asked for like those of reads
//! ahead: faults always find some.
//!
//! **Nothing is displaced.** Pages come only while the run and the groups of their process stay
//! below the mark above which pages are evicted: what came would push out others, or go again
//! itself, and there may be nothing left to take it. Where room is short the search waits; when it
//! comes is the program's affair. The swapoff watches for how long nothing has left the device
//! (`swapoff.rs`), and gives up by itself.
//!
//! Who is stopped, waits for its turn, or has lost its agent gets pages like others: that takes a
//! descriptor, and nothing of the process.
//!
//! **If a page cannot be read** it is left where it is. It may never be touched, and poisoned it is
//! soon enough when it is.

pub mod bring;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};
use uswap_core::PAGE;
use uswap_core::{Need, PAGE_SIZE};

/// Words that an owner looks at in a step.
const LOOKS: usize = 1024;
/// The least time between two steps.
const PAUSE: Duration = Duration::from_micros(300);
/// Before a space that was searched to its end, or has no room, is searched again.
const REST: Duration = Duration::from_millis(10);
/// The same for one whose process has ended: it is about to be buried.
const LONG_REST: Duration = Duration::from_millis(100);

/// What a swapoff asks of all owners.
#[derive(Debug)]
pub struct BringIn {
    device: u8,
    /// Something is left that nobody else takes.
    wanted: AtomicBool,
    over: AtomicBool,
    /// Since it was asked last: a page found no room; one could not be read.
    short: AtomicBool,
    unreadable: AtomicBool,
}

impl BringIn {
    /// Nothing is wanted yet.
    pub fn new(device: u8) -> Self {
        let no = || AtomicBool::new(false);
        Self { device, wanted: no(), over: no(), short: no(), unreadable: no() }
    }

    /// Begins or pauses. Returns whether that is news.
    pub fn want(&self, wanted: bool) -> bool {
        self.wanted.swap(wanted, SeqCst) != wanted
    }

    /// Nothing more is brought in.
    pub fn end(&self) {
        self.over.store(true, SeqCst);
    }

    /// Whether a page found no room, and whether one could not be read, since this was asked last.
    pub fn hindrances(&self) -> (bool, bool) {
        (self.short.swap(false, Relaxed), self.unreadable.swap(false, Relaxed))
    }

    fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }
}

/// An owner's part of it.
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
