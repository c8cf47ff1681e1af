//! Prepaging: when the turn of a process begins, its working set is brought back as a whole.
//!
//! A process that waits for its turn (`load_control/mod.rs`) gives up all its memory to others. If
//! its pages came back by one fault each, it would spend the first part of its turn on messages and
//! wake-ups, which cost many times what decompressing a page costs. So its pager brings back the
//! part of the working set that the process lacks: the pages that were evicted last, up to load
//! control's estimate of the working set. Denning's remedy brings in whole working sets too;
//! Linux's swap token, which held pages but never brought any, left that to the faults.
//!
//! Prepaging brings only pages from the pool: those on devices come by faults and their readahead,
//! which keeps the device queues full anyway. It goes in small steps, between the faults of all
//! programs, and only into memory that is free. **If the guess is wrong** pages come that are not
//! touched: they return to the list on which they were, as if they had never been evicted, and are
//! evicted again without having cost a fault.

pub mod bring;

use std::time::{Duration, Instant};
use uswap_core::PAGE;
use uswap_core::PAGE_SIZE;

/// Maximum number of pages that are brought back in one turn: 128 MiB. The rest comes by faults.
const MAX: usize = 32_768;
/// Runs of pages that are installed between two looks at the events of other processes.
const RUNS: usize = 4;
/// Prepaging ends when no memory was free for this time; the rest comes by faults.
const MAX_WAIT_FOR_MEMORY: Duration = Duration::from_millis(300);

/// The pages that are being brought back to a process whose turn has begun.
#[derive(Default, Debug)]
pub struct Returning {
    was_held: bool,
    /// Highest address first.
    pages: Vec<u64>,
    /// When a page was last brought back.
    moved: Option<Instant>,
}

impl Returning {
    /// Whether pages are left to be brought back, or a turn has begun or ended.
    pub fn is_due(&self, held: bool) -> bool {
        self.was_held != held || !self.pages.is_empty()
    }
}
