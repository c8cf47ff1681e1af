//! Throttling: who waits when buffers or room are short, and for how long.
//!
//! A fault waits for a buffer of the reserve when its group has its share of them
//! (`uswap_core::Reserve`), and for room when the budget is used up. Both come back by themselves:
//! a buffer when a device has answered, room when pages were stored. Nothing that frees memory
//! takes a buffer of the reserve or waits for room, so the wait is for devices alone, whose time is
//! bounded.
//!
//! A fault inside a system call may hold locks that others want (a mapping's, a file's), so it is
//! held a few milliseconds only; then it takes what is left of the reserve, or goes through above
//! the limit. A fault of the program's own code holds nothing: it can wait until a slow device has
//! taken pages. Which of both it is /proc/TID/syscall tells, and is asked only when the few
//! milliseconds are over.

pub mod hold;

use std::time::{Duration, Instant};

use uswap_core::util::growth::{Growth, during};

/// How long a fault inside a system call is held.
const HELD: Duration = Duration::from_millis(4);
/// How long a fault waits for room before it is let through above the limit, where swap is fast.
const MAX_WAIT_FOR_ROOM: Duration = Duration::from_millis(250);
/// The same above the limit itself, where the kernel may kill: since it may be a system call that
/// waits, with locks that others want.
const LAST_MAX_WAIT_FOR_ROOM: Duration = Duration::from_secs(1);
/// The same for the program's own faults where swap is far away: a server may have to be started
/// anew.
const MAX_WAIT_FOR_ROOM_FAR: Duration = Duration::from_secs(10);
/// How long it waits when nothing is under way that would make room.
const GRACE: Duration = Duration::from_millis(2);
/// Faults whose threads are remembered.
const REMEMBERED: usize = 64;

/// What is known of the faults of a space that wait.
#[derive(Debug)]
pub struct Throttle {
    /// Pages whose faults were refused a buffer, and since when.
    refused: Vec<(u64, Instant)>,
    /// The last faults: page and thread.
    recent: [(u64, u32); REMEMBERED],
    next: usize,
}

impl Default for Throttle {
    fn default() -> Self {
        Self { refused: Vec::with_capacity(REMEMBERED), recent: [(0, 0); REMEMBERED], next: 0 }
    }
}

impl Throttle {
    /// A fault was read.
    pub fn note(&mut self, page: u64, thread: u32) {
        self.recent[self.next % REMEMBERED] = (page, thread);
        self.next += 1;
    }

    /// The fault waits for a buffer. Returns since when, and whether it is new.
    fn refuse(&mut self, page: u64) -> (Instant, bool) {
        if let Some((_, since)) = self.refused.iter().find(|(known, _)| *known == page) {
            return (*since, false);
        }
        let now = Instant::now();
        // Who is not remembered waits all the same, and is not counted.
        if self.refused.len() < REMEMBERED {
            self.refused.push((page, now));
        }
        (now, true)
    }

    /// It has got one. Returns since when it waited.
    fn granted(&mut self, page: u64) -> Option<Instant> {
        let index = self.refused.iter().position(|(known, _)| *known == page)?;
        Some(self.refused.swap_remove(index).1)
    }

    /// Forgets those who wait no more: their pages were unmapped.
    pub fn forget(&mut self, waits: impl Fn(u64) -> bool) {
        self.refused.retain(|(page, _)| waits(*page));
    }
}
