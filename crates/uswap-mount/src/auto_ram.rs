//! `--ram auto`: the memory of a mount follows its cgroup.
//!
//! A quarter of the limit is its own. While others in the cgroup need so much that less than a
//! thirty-second of the limit is left, the mount gives what is lacking: a cache can lose any page,
//! and programs cannot. Where no cgroup limits the mount, the machine's memory takes its place.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use uswap_run::cgroup::{Cgroup, free_memory, machine_memory};

use crate::MIN_RAM;
use crate::cache::FileCache;

/// The mount's part of the limit, and the part that it leaves free.
const OWN_SHARE: u64 = 4;
const FREE_SHARE: u64 = 32;

/// Whether the memory of a mount follows its cgroup.
#[derive(Debug)]
pub struct AutoRam(AtomicBool);

/// The memory around a mount, in bytes.
#[derive(Clone, Copy, Debug)]
struct Surroundings {
    /// The limit of the cgroup, or the machine's memory.
    whole: u64,
    /// The part of it that could still be taken.
    room: u64,
}

impl Surroundings {
    fn look() -> Option<Self> {
        let machine = machine_memory()?;
        match Cgroup::of_this_process().filter(|cgroup| cgroup.limit() < machine) {
            Some(cgroup) => Some(Self { whole: cgroup.limit(), room: cgroup.room()? }),
            None => Some(Self { whole: machine, room: free_memory()? }),
        }
    }

    /// The memory for a mount that uses `used` bytes.
    fn share(&self, used: u64) -> u64 {
        let left = (used + self.room).saturating_sub(self.whole / FREE_SHARE);
        (self.whole / OWN_SHARE).min(left).max(MIN_RAM)
    }
}

/// The memory that `--ram auto` begins with, in bytes; `None`: the machine does not tell.
pub fn first_share() -> Option<u64> {
    Surroundings::look().map(|around| around.share(0))
}

impl AutoRam {
    /// `on`: it follows.
    pub fn new(on: bool) -> Self {
        Self(AtomicBool::new(on))
    }

    /// Begins or ends to follow.
    pub fn set(&self, on: bool) {
        self.0.store(on, Relaxed);
    }

    /// Gives the cache what it may have now, if it follows. To be called once a second.
    pub fn follow(&self, cache: &FileCache) {
        if !self.0.load(Relaxed) {
            return;
        }
        let Some(around) = Surroundings::look() else { return };
        let bytes = around.share(cache.memory().used()).min(cache.most_ram());
        if bytes != cache.ram() {
            cache.set_ram(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_has_a_quarter_and_gives_what_others_lack() {
        const MIB: u64 = 1 << 20;
        let share = |room, used| Surroundings { whole: 1024 * MIB, room: room * MIB }.share(used * MIB) / MIB;
        assert_eq!(share(1000, 0), 256);
        assert_eq!(share(700, 256), 256);
        assert_eq!(share(32, 256), 256, "a thirty-second is left");
        assert_eq!(share(12, 256), 236, "20 MiB are lacking");
        assert_eq!(share(0, 40), MIN_RAM / MIB, "it does not give all");
        assert_eq!(share(500, 100), 256, "and takes it back");
    }
}
