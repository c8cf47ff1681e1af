//! Another process as an address space: what is known of it, and how its pages are reached.

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

/// The memory of another process, or of its fork child that nobody has spoken for yet.
#[derive(Debug)]
pub struct Remote {
    /// Its process, once known (a fork child is known by its memory first).
    pub pid: Option<u32>,
    /// The thread or process by whose id its memory is read: the agent's, which ends with the image
    /// (a process whose first thread has ended cannot be read by its own id).
    pub reader: u32,
    /// The event userfaultfd.
    pub events: Arc<Userfaultfd>,
    /// The staging userfaultfd: kept so that it outlives nobody but the space.
    pub staging: Option<Userfaultfd>,
    /// The agent, while it lives.
    pub agent: Option<AgentLink>,
    /// What the nonce page of this image holds, once its agent has said hello. It stays when the
    /// agent is gone.
    pub nonce: Option<[u64; 2]>,
    /// Address of the agent's area (0: unknown).
    pub area: u64,
    /// The agent was brought to its program (or that of the parent), which has no hooks.
    pub attached: Option<Attached>,
    /// What a fork child's identity page holds; 0 for an image that was not forked managed.
    pub identity: u64,
    /// Which of its pages are mapped nowhere else, as seen last.
    pub sharing_seen: Exclusive,
    /// When its mappings are looked at, and which of them besides the large ones.
    pub scans: Scans,
    /// Keeps what came with the agent's greeting.
    pub process_name: String,
    /// Files of /proc of its process.
    pub proc: ProcessFiles,
    /// How its process is looked for.
    pub search: ProcessSearch,
    /// What its agent does, besides its link.
    pub agent_state: AgentState,
    /// Changes that were told and are not applied yet.
    pub changes: PendingChanges,
}

impl Remote {
    /// The memory behind this userfaultfd; everything else is to be learnt.
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
    /// whom it belongs to.
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

    /// Registers a mapping, if `protects` so that its pages can be protected. Whether it is
    /// registered.
    pub fn register(&self, start: u64, end: u64, protects: bool) -> bool {
        let length = end - start;
        let registered =
            if protects { self.events.register_to_protect(start, length) } else { self.events.register(start, length) };
        registered.is_ok()
    }

    /// Puts the identity page into a fork child's area. It may be there already, even its parent's,
    /// if that was still there at the fork: it only says where to look for the space first (see
    /// `find_child`).
    pub fn install_identity(&self) -> Install {
        let mut page = [0u8; PAGE as usize];
        page[..8].copy_from_slice(&self.identity.to_ne_bytes());
        self.events.copy(self.identity_page(), &page)
    }

    /// Learns which process this is, and by which of its threads it can be read; `false` when it is
    /// gone already.
    pub fn bind(&mut self, pid: u32, reader: u32) -> bool {
        let opened = (Pagemap::open(reader), Maps::open(reader), uswap_sys::process::pidfd(pid));
        let (Ok(pagemap), Ok(maps), Ok(pidfd)) = opened else { return false };
        let memory = Memory::open(reader);
        // For want of a descriptor only: others are read by their agent's number.
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

    /// A change was read; `registered`: what is managed now.
    pub fn note_change(&mut self, event: Event, registered: &BTreeMap<u64, u64>) {
        let PendingChanges { window, notes, .. } = &mut self.changes;
        window.push(event, notes.count(), || known(registered, notes, self.attached.is_some()));
    }

    /// The changes that were read, in the order in which they happened, and how many were not read
    /// in it.
    pub fn changes_in_order(&mut self, registered: &BTreeMap<u64, u64>) -> (Vec<Held>, u64) {
        self.changes.window.take(&self.events, &known(registered, &self.changes.notes, self.attached.is_some()))
    }

    /// Whether the agent is a process of its own.
    pub fn has_agent_apart(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.process.is_some())
    }

    /// Installs now, unless changes wait: what we know of the address can be old.
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

/// What is known before the changes in a window. A program without hooks leaves no notes of what
/// its children do not get.
fn known<'a>(registered: &'a BTreeMap<u64, u64>, notes: &Notes, hookless: bool) -> KnownMappings<'a> {
    KnownMappings { registered, not_inherited: (!hookless).then(|| notes.not_inherited()) }
}
