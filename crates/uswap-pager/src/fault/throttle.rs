//! Throttling: which faults wait when buffers or room are short, and for how long.
//!
//! A fault waits for a buffer of the reserve when its group uses its share of them already
//! (`uswap_core::Reserve`), and for room when the budget is used up. Both become available without
//! its help: a buffer when a device has answered, room when pages were stored. Nothing that frees
//! memory takes a buffer of the reserve or waits for room, so the fault waits for devices only,
//! whose time is bounded.
//!
//! A fault inside a system call may hold kernel locks that other threads need (of a mapping, of a
//! file), so it is held for a few milliseconds only; then it takes what is left of the reserve, or
//! is let through above the limit. A fault of the program's own code holds no lock: it can wait
//! until a slow device has taken pages. /proc/TID/syscall tells the two apart, and is read only
//! when the few milliseconds are over.

pub mod hold;

use std::time::{Duration, Instant};

use uswap_core::util::growth::{Growth, during};

/// How long a fault inside a system call is held.
const HELD: Duration = Duration::from_millis(4);
/// How long a fault waits for room before it is let through above the limit, where swap devices are
/// fast.
const MAX_WAIT_FOR_ROOM: Duration = Duration::from_millis(250);
/// The same while usage exceeds the limit itself, where the kernel may kill the program. The wait
/// is bounded, since the fault may be in a system call that holds locks that others need.
const MAX_WAIT_ABOVE_LIMIT: Duration = Duration::from_secs(1);
/// The same for faults of the program's own code where swap is far away: a server may have to be
/// restarted.
const MAX_WAIT_FOR_ROOM_FAR: Duration = Duration::from_secs(10);
/// How long a fault waits when nothing is under way that would make room.
const GRACE: Duration = Duration::from_millis(2);
/// Number of faults whose threads are remembered.
const REMEMBERED: usize = 64;

/// The faults of a space that wait.
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
    /// Remembers a fault that was read.
    pub fn note(&mut self, page: u64, thread: u32) {
        self.recent[self.next % REMEMBERED] = (page, thread);
        self.next += 1;
    }

    /// Notes that the fault waits for a buffer. Returns since when, and whether it is new.
    fn refuse(&mut self, page: u64) -> (Instant, bool) {
        if let Some((_, since)) = self.refused.iter().find(|(known, _)| *known == page) {
            return (*since, false);
        }
        let now = Instant::now();
        // A fault that is not remembered waits all the same, but is not counted.
        if self.refused.len() < REMEMBERED {
            self.refused.push((page, now));
        }
        (now, true)
    }

    /// Notes that the fault has got a buffer. Returns since when it waited.
    fn granted(&mut self, page: u64) -> Option<Instant> {
        let index = self.refused.iter().position(|(known, _)| *known == page)?;
        Some(self.refused.swap_remove(index).1)
    }

    /// Forgets faults that wait no longer: their pages were unmapped.
    pub fn forget(&mut self, waits: impl Fn(u64) -> bool) {
        self.refused.retain(|(page, _)| waits(*page));
    }
}
