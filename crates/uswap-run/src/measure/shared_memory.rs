//! Shared memory of programs: mappings that several processes can have, tmpfs, the heap of ZGC. It
//! is no anonymous memory: uswap evicts none of it, and the kernel cannot without swap of its own.
//! If it does not fit into memory a process is killed. So the user is told when one process has
//! more of it than half of the budget, once and while there is time.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_core::util::size::human;

use crate::measure::cgroup::{Cgroup, shared_memory_of_machine};
use crate::shared::RunShared;
use uswap_remote::EngineContext;
use uswap_sys::procfs;

/// Least time between two looks, and the part of the time (1/N) that looks may take.
const PERIOD: Duration = Duration::from_millis(100);
const COST: u32 = 50;

/// The governor's state of these looks.
#[derive(Debug)]
pub struct SharedMemory {
    cgroup: Option<Cgroup>,
    /// The largest budget so far, in bytes: under a cgroup the budget shrinks by the shared memory.
    budget: u64,
    told: bool,
    next: Instant,
}

impl SharedMemory {
    /// State before the first look. `cgroup`: the cgroup of the programs, if it has a limit.
    pub fn new(cgroup: Option<Cgroup>) -> Self {
        Self { cgroup, budget: 0, told: false, next: Instant::now() }
    }

    /// Checks all processes of the tree, if the whole machine has enough shared memory for it to
    /// matter.
    pub fn look(&mut self, shared: &EngineContext, tree: &[u32]) {
        self.budget = self.budget.max((shared.budget.limit().max(0) as u64) << 12);
        if self.told || Instant::now() < self.next {
            return;
        }
        let begun = Instant::now();
        let half = self.budget / 2;
        if shared_memory_of_machine().is_some_and(|bytes| bytes >= half)
            && let Some((pid, bytes)) = self.largest(tree).filter(|(_, bytes)| *bytes >= half)
        {
            self.told = true;
            RunShared::of(shared).shared_memory.store(bytes, Relaxed);
            shared.notice(self.in_words(&procfs::name(pid).unwrap_or_default(), pid, bytes));
        }
        self.next = Instant::now() + PERIOD.max(begun.elapsed() * COST);
    }

    /// The process with the most shared memory, and its bytes. A process can map the same memory at
    /// several addresses, so the cgroup's figure is an upper bound.
    fn largest(&self, tree: &[u32]) -> Option<(u32, u64)> {
        let most = self.cgroup.as_ref().and_then(Cgroup::shared_memory).unwrap_or(u64::MAX);
        let all = tree.iter().map(|pid| (*pid, procfs::shared_memory(*pid).unwrap_or(0).min(most)));
        all.max_by_key(|(_, bytes)| *bytes)
    }

    fn in_words(&self, name: &str, pid: u32, bytes: u64) -> String {
        let place = match &self.cgroup {
            Some(cgroup) => format!("the {} of its cgroup", human(cgroup.limit())),
            None => "this machine".into(),
        };
        format!(
            "{name} (process {pid}) has {} of shared memory, of which uswap evicts nothing: where it does not fit into {place} the \
             kernel kills (java: not ZGC, PostgreSQL: shared_buffers; docs/guide/heap-limits.md)",
            human(bytes)
        )
    }
}
