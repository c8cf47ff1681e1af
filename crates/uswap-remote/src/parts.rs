//! The parts of a remote address space: small structs, each with the state for one concern.

use std::os::fd::OwnedFd;
use std::time::Instant;

use uswap_sys::procfs::maps::{Mapping, Maps};
use uswap_sys::procfs::memory::Memory;
use uswap_sys::procfs::pagemap::Pagemap;

use crate::events::hook_notes::Notes;
use crate::events::reorder::EventReorderBuffer;
use crate::identity::lookup::Found;
use crate::stacks::StackSuspects;

/// Open /proc files of a managed process.
#[derive(Debug)]
pub struct ProcessFiles {
    /// Held open so that the pid is not reused while the engine reads files by it.
    pub pidfd: Option<OwnedFd>,
    /// Its pagemap: which pages are present.
    pub pagemap: Option<Pagemap>,
    /// Its mappings.
    pub maps: Option<Maps>,
    /// Its memory. The file stays with this memory when the process executes another program.
    pub memory: Option<Memory>,
}

/// State of the search for the process of a fork child.
#[derive(Debug)]
pub struct ProcessSearch {
    /// When the process was looked for last.
    pub last: Option<Instant>,
    /// The last result of the search.
    pub found: Option<Found>,
    /// The thread that faulted last in the space while its process was not known.
    pub faulted: Option<u32>,
    /// The last process of the space, after that process was lost.
    pub lost: Option<u32>,
    /// The matcher is looking for the process now.
    pub is_under_way: bool,
}

/// State of the agent of a process, besides its link.
#[derive(Debug)]
pub struct AgentState {
    /// Orders in a row for which the kernel refused all system calls.
    pub refusals: u32,
    /// Time of the last refusal that made them too many.
    pub refused: Instant,
    /// The gate is closed, and the agent is still inside.
    pub gate_pending: bool,
    /// The agent has orders and is stopped (SIGSTOP, a tracer): it will not execute them before it
    /// continues.
    pub stopped: bool,
    /// When the agent was dismissed, because its program has ended or executes another one.
    pub dismissed: Option<Instant>,
    /// When the agent hung up while the address space went on.
    pub orphaned: Option<Instant>,
}

/// Changes of an address space that were reported and are not applied yet.
#[derive(Debug)]
pub struct PendingChanges {
    /// Changes that were read and not applied yet.
    pub window: EventReorderBuffer,
    /// Notes of the program's hooks.
    pub notes: Notes,
    /// Since when the event of a fork waits for a free descriptor.
    pub starved: Option<Instant>,
}

/// State of the scans of a process's mappings.
#[derive(Debug)]
pub struct Scans {
    /// Something happened that needs a scan.
    pub are_needed: bool,
    /// Time of the last scan.
    pub last: Instant,
    /// Parts of registered ranges that turned out not to be registered (`settle.rs`). A mapping
    /// there may be a piece that was cut off a managed mapping. It must be managed however small it
    /// is: mremap(2) of the whole fails until then.
    pub cut_off: Vec<(u64, u64)>,
    /// Mappings that look like stacks.
    pub suspects: StackSuspects,
}

impl Default for Scans {
    fn default() -> Self {
        Self { are_needed: false, last: Instant::now(), cut_off: Vec::new(), suspects: StackSuspects::default() }
    }
}

impl Scans {
    /// Whether the mapping overlaps such a part.
    pub fn is_cut_off(&self, mapping: &Mapping) -> bool {
        self.cut_off.iter().any(|(start, end)| *start < mapping.end && mapping.start < *end)
    }
}
