//! Ending a tree of processes, whatever it does meanwhile.

use std::time::{Duration, Instant};

use uswap_sys::process;

use crate::procfs;

const PATIENCE: Duration = Duration::from_secs(10);

/// Kills all descendants of this process and reaps those that are its children, again and again until none is left:
/// a process can fork while it is being looked at. Returns how many were still there after ten seconds.
pub fn kill_descendants() -> usize {
    let begun = Instant::now();
    loop {
        let left = procfs::descendants(std::process::id());
        if left.is_empty() || begun.elapsed() > PATIENCE {
            return left.len();
        }
        for pid in left {
            // Gone already is what we want.
            let _ = process::kill(pid, 9);
        }
        while let Ok(Some(_)) = process::wait_news(None) {}
        std::thread::sleep(Duration::from_millis(1));
    }
}
