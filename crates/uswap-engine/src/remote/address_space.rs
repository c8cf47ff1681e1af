//! Another process as an address space: what is known of it, and how its pages are reached.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use uswap_abi::layout::{AREA_BYTES, IDENTITY, NONCE, NOTICE, PAGE, SA, SB};
use uswap_sys::procfs::maps::Maps;
use uswap_sys::procfs::memory::Memory;
use uswap_sys::procfs::pagemap::Pagemap;
use uswap_sys::userfaultfd::{Event, Install, Userfaultfd};

use crate::remote::agent::link::AgentLink;
use crate::remote::events::hook_notes::Notes;
use crate::remote::events::reorder::{EventReorderBuffer, Held, Known};
use crate::remote::exclusive::Exclusive;
use crate::remote::identity::lookup::Found;
use crate::remote::scan::Scans;
use crate::remote::shared::Attached;
use uswap_sys::procfs;

/// The memory of another process, or of its fork child that nobody has spoken for yet.
#[derive(Debug)]
pub struct Remote {
    /// Its process, once known (a fork child is known by its memory first).
    pub pid: Option<u32>,
    /// The thread or process by whose id its memory is read: the agent's, which ends with the image (a process whose
    /// first thread has ended cannot be read by its own id).
    pub reader: u32,
    /// Orders in a row whose system calls were refused altogether.
    pub refusals: u32,
    /// When the last of too many was.
    pub refused: Instant,
    /// Since when the event of a fork waits for a descriptor.
    pub starved: Option<Instant>,
    /// The event userfaultfd.
    pub events: Arc<Userfaultfd>,
    /// The staging userfaultfd: kept so that it outlives nobody but the space.
    pub staging: Option<Userfaultfd>,
    /// The agent, while it lives.
    pub agent: Option<AgentLink>,
    /// What the nonce page of this image holds, once its agent has said hello. It stays when the agent is gone.
    pub nonce: Option<[u64; 2]>,
    /// When its process was looked for last.
    pub searched: Option<Instant>,
    /// How its process was found last.
    pub found: Option<Found>,
    /// Who faulted there last while its process was not known.
    pub faulted: Option<u32>,
    /// Address of the agent's area (0: unknown).
    pub area: u64,
    /// Presence of pages.
    pub pagemap: Option<Pagemap>,
    /// Mappings.
    pub maps: Option<Maps>,
    /// Its memory as such, also when the process executes another program.
    pub file: Option<Memory>,
    /// The agent was brought to its program (or that of the parent), which has no hooks.
    pub attached: Option<Attached>,
    /// What a fork child's identity page holds; 0 for an image that was not forked managed.
    pub identity: u64,
    /// The process it was known by when it was lost.
    pub lost: Option<u32>,
    /// The matcher is looking for its process.
    pub matching: bool,
    /// Changes that were read and not applied yet.
    pub window: EventReorderBuffer,
    /// What the program's hooks have told.
    pub notes: Notes,
    /// Which of its pages are mapped nowhere else, as seen last.
    pub sharing_seen: Exclusive,
    /// The gate is closed and the agent still inside.
    pub gate_pending: bool,
    /// The agent has orders and is stopped (SIGSTOP, a tracer): nothing will come of them before it goes on.
    pub stopped: bool,
    /// When its agent was sent away, because the program has ended or executes another one.
    pub dismissed: Option<Instant>,
    /// When the agent hung up while the address space went on.
    pub orphaned: Option<Instant>,
    /// When its mappings are looked at, and which of them besides the large ones.
    pub scans: Scans,
    /// Keeps what came with the agent's greeting.
    pub process_name: String,
    /// Held so that a pid cannot be reused while we read by it.
    pub pidfd: Option<OwnedFd>,
}

impl Remote {
    /// The memory behind this userfaultfd; everything else is to be learnt.
    pub fn new(events: Userfaultfd) -> Self {
        Self {
            pid: None,
            reader: 0,
            refusals: 0,
            refused: Instant::now(),
            starved: None,
            events: Arc::new(events),
            staging: None,
            agent: None,
            nonce: None,
            searched: None,
            found: None,
            faulted: None,
            area: 0,
            pagemap: None,
            maps: None,
            file: None,
            attached: None,
            identity: 0,
            lost: None,
            matching: false,
            window: EventReorderBuffer::default(),
            notes: Notes::default(),
            sharing_seen: Exclusive::default(),
            gate_pending: false,
            stopped: false,
            dismissed: None,
            orphaned: None,
            scans: Scans::default(),
            process_name: String::new(),
            pidfd: None,
        }
    }

    /// The memory of a fork child of `parent`, behind its own userfaultfd. `owner`: the number of whom it belongs to.
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

    /// Registers a mapping, if `protects` so that its pages can be protected. Whether it is registered.
    pub fn register(&self, start: u64, end: u64, protects: bool) -> bool {
        let length = end - start;
        let registered =
            if protects { self.events.register_to_protect(start, length) } else { self.events.register(start, length) };
        registered.is_ok()
    }

    /// Puts the identity page into a fork child's area. It may be there already, even its parent's, if that was still
    /// there at the fork: it only says where to look for the space first (see `find_child`).
    pub fn install_identity(&self) -> Install {
        let mut page = [0u8; PAGE as usize];
        page[..8].copy_from_slice(&self.identity.to_ne_bytes());
        self.events.copy(self.identity_page(), &page)
    }

    /// Learns which process this is, and by which of its threads it can be read; `false` when it is gone already.
    pub fn bind(&mut self, pid: u32, reader: u32) -> bool {
        let opened = (Pagemap::open(reader), Maps::open(reader), uswap_sys::process::pidfd(pid));
        let (Ok(pagemap), Ok(maps), Ok(pidfd)) = opened else { return false };
        let memory = Memory::open(reader);
        // For want of a descriptor only: others are read by their agent's number.
        if memory.as_ref().is_err_and(uswap_sys::io::spares::is_shortage) {
            return false;
        }
        self.process_name = procfs::name(pid).unwrap_or_default();
        (self.pid, self.pagemap, self.maps, self.pidfd) = (Some(pid), Some(pagemap), Some(maps), Some(pidfd));
        self.file = memory.ok();
        self.reader = reader;
        true
    }

    /// A change was read; `registered`: what is managed now.
    pub fn note_change(&mut self, event: Event, registered: &BTreeMap<u64, u64>) {
        let Self { window, notes, attached, .. } = self;
        window.push(event, notes.count(), || known(registered, notes, attached.is_some()));
    }

    /// The changes that were read, in the order in which they happened, and how many were not read in it.
    pub fn changes_in_order(&mut self, registered: &BTreeMap<u64, u64>) -> (Vec<Held>, u64) {
        self.window.take(&self.events, &known(registered, &self.notes, self.attached.is_some()))
    }

    /// Whether the agent is a process of its own.
    pub fn has_agent_apart(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.process.is_some())
    }

    /// Installs now, unless changes wait: what we know of the address can be old.
    pub fn unless_changing(&self, install: impl FnOnce() -> Install) -> Install {
        if self.window.is_empty() { install() } else { Install::Again(0) }
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

/// What is known before the changes in a window. A program without hooks leaves no notes of what its children do not get.
fn known<'a>(registered: &'a BTreeMap<u64, u64>, notes: &Notes, hookless: bool) -> Known<'a> {
    Known { registered, not_inherited: (!hookless).then(|| notes.not_inherited()) }
}
