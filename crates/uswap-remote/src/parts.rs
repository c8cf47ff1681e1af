//! The parts of a remote address space: small structs, each with what one concern of it knows.

use std::os::fd::OwnedFd;
use std::time::Instant;

use uswap_sys::procfs::maps::{Mapping, Maps};
use uswap_sys::procfs::memory::Memory;
use uswap_sys::procfs::pagemap::Pagemap;

use crate::events::hook_notes::Notes;
use crate::events::reorder::EventReorderBuffer;
use crate::identity::lookup::Found;

/// Files of /proc of a managed process.
#[derive(Debug)]
pub struct ProcessFiles {
    /// Held so that a pid cannot be reused while we read by it.
    pub pidfd: Option<OwnedFd>,
    /// Presence of pages.
    pub pagemap: Option<Pagemap>,
    /// Mappings.
    pub maps: Option<Maps>,
    /// Its memory as such, also when the process executes another program.
    pub memory: Option<Memory>,
}

/// How the process of a fork child is looked for.
#[derive(Debug)]
pub struct ProcessSearch {
    /// When its process was looked for last.
    pub last: Option<Instant>,
    /// How its process was found last.
    pub found: Option<Found>,
    /// Who faulted there last while its process was not known.
    pub faulted: Option<u32>,
    /// The process it was known by when it was lost.
    pub lost: Option<u32>,
    /// The matcher is looking for its process.
    pub is_under_way: bool,
}

/// What the agent of a process does, besides its link.
#[derive(Debug)]
pub struct AgentState {
    /// Orders in a row whose system calls were refused altogether.
    pub refusals: u32,
    /// When the last of too many was.
    pub refused: Instant,
    /// The gate is closed and the agent still inside.
    pub gate_pending: bool,
    /// The agent has orders and is stopped (SIGSTOP, a tracer): nothing will come of them before it
    /// goes on.
    pub stopped: bool,
    /// When its agent was sent away, because the program has ended or executes another one.
    pub dismissed: Option<Instant>,
    /// When the agent hung up while the address space went on.
    pub orphaned: Option<Instant>,
}

/// Changes of an address space that were told and are not applied yet.
#[derive(Debug)]
pub struct PendingChanges {
    /// Changes that were read and not applied yet.
    pub window: EventReorderBuffer,
    /// What the program's hooks have told.
    pub notes: Notes,
    /// Since when the event of a fork waits for a descriptor.
    pub starved: Option<Instant>,
}

/// When the mappings of a process are looked at.
#[derive(Debug)]
pub struct Scans {
    /// Something came to pass that a scan should look at.
    pub are_needed: bool,
    /// When the last one was.
    pub last: Instant,
    /// Parts of what was registered that turned out not to be (`settle.rs`). What lies there may be
    /// a piece that was cut off a managed mapping, to be managed however small it is: mremap(2) of
    /// the whole is refused until then.
    pub cut_off: Vec<(u64, u64)>,
}

impl Default for Scans {
    fn default() -> Self {
        Self { are_needed: false, last: Instant::now(), cut_off: Vec::new() }
    }
}

impl Scans {
    /// Whether the mapping lies in such a part.
    pub fn is_cut_off(&self, mapping: &Mapping) -> bool {
        self.cut_off.iter().any(|(start, end)| *start < mapping.end && mapping.start < *end)
    }
}
