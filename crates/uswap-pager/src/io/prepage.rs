//! A turn begins: the working set of a process comes back as a whole.
//!
//! Whoever waits for its turn (`load_control/mod.rs`) gives all its memory to others. Brought back
//! by a fault for each page it would spend the first part of its turn on messages and wake-ups,
//! which cost many times what the expansion of a page does. So its owner brings what the process
//! lacks of its working set: the pages that were evicted last, as many as load control's estimate
//! says beyond those that it has. Denning's remedy brings in whole working sets too; Linux's swap
//! token, which held pages but never brought any, left that to the faults.
//!
//! Only pages from the pool: those on devices come by the faults and their readahead, which keeps
//! queues full without knowing more. It goes in small steps, between the faults of all programs,
//! and only into memory that is free. **If the guess is wrong** pages come that are not touched:
//! they lie on the list on which they were, as if they had never gone, and are evicted again
//! without having cost a fault.

pub mod bring;

use std::time::{Duration, Instant};
use uswap_core::PAGE;
use uswap_core::PAGE_SIZE;

/// Pages that are brought in one turn, at most: 128 MiB. The rest comes by faults.
const MAX: usize = 32_768;
/// Runs of pages that are installed between looks at the events of other processes.
const RUNS: usize = 4;
/// Where no memory is free for so long, what is left comes by faults.
const MAX_WAIT_FOR_MEMORY: Duration = Duration::from_millis(300);

/// What is on its way back to a process whose turn has begun.
#[derive(Default, Debug)]
pub struct Returning {
    was_held: bool,
    /// Highest address first.
    pages: Vec<u64>,
    /// When a page of it came last.
    moved: Option<Instant>,
}

impl Returning {
    /// Whether there is something to do, or a turn has begun or ended.
    pub fn is_due(&self, held: bool) -> bool {
        self.was_held != held || !self.pages.is_empty()
    }
}
