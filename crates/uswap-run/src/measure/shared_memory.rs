//! Shared memory of programs: mappings that several can have, tmpfs, the heap of ZGC. It is no
//! anonymous memory, uswap evicts none of it and the kernel cannot without swap of its own: where
//! it does not fit somebody is killed. So when one process has more of it than half of the budget
//! the user is told, once and while there is time.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_core::util::size::human;

use crate::measure::cgroup::{Cgroup, shared_memory_of_machine};
use crate::shared::RunShared;
use uswap_remote::EngineContext;
use uswap_sys::procfs;

/// How often it is looked at, at most, and which part of the time that may take.
const PERIOD: Duration = Duration::from_millis(100);
const COST: u32 = 50;

/// The governor's memory of it.
#[derive(Debug)]
pub struct SharedMemory {
    cgroup: Option<Cgroup>,
    /// The largest that the budget was, in bytes: under a cgroup it shrinks by what is shared.
    budget: u64,
    told: bool,
    next: Instant,
}

impl SharedMemory {
    /// `cgroup`: the one that the programs are in, if that has a limit.
    pub fn new(cgroup: Option<Cgroup>) -> Self {
        Self { cgroup, budget: 0, told: false, next: Instant::now() }
    }

    /// Looks at all processes of the tree, if there is so much shared memory in the machine at all.
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

    /// Who has most of it, in bytes. A process can have the same memory at several addresses: the
    /// cgroup knows better.
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
