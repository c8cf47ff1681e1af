//! Another process as an address space: its state as far as the pager knows it, and access to its
//! pages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use uswap_abi::layout::{AREA_BYTES, IDENTITY, NONCE, NOTICE, PAGE, SA, SB};
use uswap_sys::procfs::maps::Maps;
use uswap_sys::procfs::memory::Memory;
use uswap_sys::procfs::pagemap::Pagemap;
use uswap_sys::userfaultfd::{Event, Install, Userfaultfd};

use crate::agent::link::AgentLink;
use crate::events::hook_notes::Notes;
use crate::events::reorder::{EventReorderBuffer, Held, KnownMappings};
use crate::exclusive::Exclusive;
use crate::parts::{AgentState, PendingChanges, ProcessFiles, ProcessSearch, Scans};
use crate::shared::Attached;
use uswap_sys::procfs;

/// The memory of another process, or of its fork child whose agent has not connected yet.
#[derive(Debug)]
pub struct Remote {
    /// The process, once it is known. (Of a fork child the pager knows the memory first.)
    pub pid: Option<u32>,
    /// The id of the thread or process through which the memory is read. It is the agent's, which
    /// ends with the image. (A process whose first thread has ended cannot be read by its own id.)
    pub reader: u32,
    /// The event userfaultfd.
    pub events: Arc<Userfaultfd>,
    /// The staging userfaultfd, kept open until the space is dropped.
    pub staging: Option<Userfaultfd>,
    /// The agent, while it lives.
    pub agent: Option<AgentLink>,
    /// Content of the nonce page of this image, known from the agent's greeting on. It stays when
    /// the agent is gone.
    pub nonce: Option<[u64; 2]>,
    /// Address of the agent's area (0: unknown).
    pub area: u64,
    /// Set if the agent was injected into its program (or into that of the parent), which has no
    /// hooks.
    pub attached: Option<Attached>,
    /// Content of the identity page of a fork child; 0 for an image that was not forked from a
    /// managed process.
    pub identity: u64,
    /// The pages that no other process maps, as read last.
    pub sharing_seen: Exclusive,
    /// When the mappings are scanned, and which small mappings a scan registers besides the large
    /// ones.
    pub scans: Scans,
    /// The name of the process, from the agent's greeting.
    pub process_name: String,
    /// Open /proc files of the process.
    pub proc: ProcessFiles,
    /// State of the search for the process.
    pub search: ProcessSearch,
    /// State of the agent, besides its link.
    pub agent_state: AgentState,
    /// Changes of the mappings that were read and are not applied yet.
    pub changes: PendingChanges,
}

impl Remote {
    /// The memory behind this userfaultfd. Nothing else is known of it yet.
    pub fn new(events: Userfaultfd) -> Self {
        Self {
            pid: None,
            reader: 0,
            changes: PendingChanges { window: EventReorderBuffer::default(), notes: Notes::default(), starved: None },
            events: Arc::new(events),
            staging: None,
            agent: None,
            nonce: None,
            area: 0,
            proc: ProcessFiles { pidfd: None, pagemap: None, maps: None, memory: None },
            attached: None,
            identity: 0,
            search: ProcessSearch { last: None, found: None, faulted: None, lost: None, is_under_way: false },
            sharing_seen: Exclusive::default(),
            agent_state: AgentState {
                refusals: 0,
                refused: Instant::now(),
                gate_pending: false,
                stopped: false,
                dismissed: None,
                orphaned: None,
            },
            scans: Scans::default(),
            process_name: String::new(),
        }
    }

    /// The memory of a fork child of `parent`, behind its own userfaultfd. `owner`: the number of
    /// the pager thread that owns it.
    pub fn forked(parent: &Self, events: Userfaultfd, owner: usize) -> Self {
        let random = uswap_sys::process::random_word().unwrap_or(0);
        Self {
            identity: random & !0xff | owner as u64 | 1 << 63,
            area: parent.area,
            process_name: parent.process_name.clone(),
            attached: parent.attached,
            scans: Scans { are_needed: true, ..Scans::default() },
            ..Self::new(events)
        }
    }

    /// Registers a mapping; with `protects`, also for write protection. Returns whether the mapping
    /// is registered.
    pub fn register(&self, start: u64, end: u64, protects: bool) -> bool {
        let length = end - start;
        let registered =
            if protects { self.events.register_to_protect(start, length) } else { self.events.register(start, length) };
        registered.is_ok()
    }

    /// Installs the identity page in a fork child's area. A page may be there already, even the
    /// parent's, if the parent still had one at the fork. The page is only a hint where to look for
    /// the space first (see `find_child`).
    pub fn install_identity(&self) -> Install {
        let mut page = [0u8; PAGE as usize];
        page[..8].copy_from_slice(&self.identity.to_ne_bytes());
        self.events.copy(self.identity_page(), &page)
    }

    /// Sets the process of this memory, and the thread through which it is read. Returns `false`
    /// when the process is gone already.
    pub fn bind(&mut self, pid: u32, reader: u32) -> bool {
        let opened = (Pagemap::open(reader), Maps::open(reader), uswap_sys::process::pidfd(pid));
        let (Ok(pagemap), Ok(maps), Ok(pidfd)) = opened else { return false };
        let memory = Memory::open(reader);
        // Gives up only for want of a descriptor. After another error the memory is read by the
        // agent's id.
        if memory.as_ref().is_err_and(uswap_sys::io::spares::is_shortage) {
            return false;
        }
        self.process_name = procfs::name(pid).unwrap_or_default();
        (self.pid, self.proc.pagemap, self.proc.maps, self.proc.pidfd) =
            (Some(pid), Some(pagemap), Some(maps), Some(pidfd));
        self.proc.memory = memory.ok();
        self.reader = reader;
        true
    }

    /// Stores a change that was just read. `registered`: the ranges that are managed now.
    pub fn note_change(&mut self, event: Event, registered: &BTreeMap<u64, u64>) {
        let PendingChanges { window, notes, .. } = &mut self.changes;
        window.push(event, notes.count(), || known(registered, notes, self.attached.is_some()));
    }

    /// The changes that were read, in the order in which they happened, and how many of them were
    /// read in another order.
    pub fn changes_in_order(&mut self, registered: &BTreeMap<u64, u64>) -> (Vec<Held>, u64) {
        self.changes.window.take(&self.events, &known(registered, &self.changes.notes, self.attached.is_some()))
    }

    /// Whether the agent is a separate process.
    pub fn has_agent_apart(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.process.is_some())
    }

    /// Installs now, unless changes wait to be applied: until then the pager's view of the address
    /// can be out of date.
    pub fn unless_changing(&self, install: impl FnOnce() -> Install) -> Install {
        if self.changes.window.is_empty() { install() } else { Install::Again(0) }
    }

    /// Address of a staging slot in SA.
    pub fn sa(&self, slot: u32) -> u64 {
        self.area + SA + u64::from(slot) * PAGE
    }

    /// Address of a staging slot in SB.
    pub fn sb(&self, slot: u32) -> u64 {
        self.area + SB + u64::from(slot) * PAGE
    }

    /// Address of the identity page.
    pub fn identity_page(&self) -> u64 {
        self.area + IDENTITY
    }

    /// Address of the notice page.
    pub fn notice_page(&self) -> u64 {
        self.area + NOTICE
    }

    /// Address of the nonce page.
    pub fn nonce_page(&self) -> u64 {
        self.area + NONCE
    }

    /// Whether the address lies in the agent's area.
    pub fn in_area(&self, address: u64) -> bool {
        (self.area..self.area + AREA_BYTES).contains(&address)
    }
}

/// The mappings as they were before the changes in a window. A program without hooks writes no
/// notes about memory that its children do not inherit.
fn known<'a>(registered: &'a BTreeMap<u64, u64>, notes: &Notes, hookless: bool) -> KnownMappings<'a> {
    KnownMappings { registered, not_inherited: (!hookless).then(|| notes.not_inherited()) }
}
