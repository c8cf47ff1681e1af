//! What the threads of the engine share: the store, the budget, the counters, and the mailboxes of the owners.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use uswap_core::{PageBuf, PageHasher};
use uswap_store::{LoadError, ObjectId, Store};
use uswap_sys::events::EventFd;
use uswap_sys::socket::MessageSocket;
use uswap_sys::userfaultfd::Userfaultfd;

use crate::budget::Budget;
use crate::counters::Counters;
use crate::fault_points::FaultPoints;
use crate::latency::Latencies;
use crate::lowered::Lowered;
use crate::space::{AgentLink, SpaceId};

/// Known to every thread.
pub struct Shared {
    /// The two tiers.
    pub store: Store,
    /// The budget.
    pub budget: Budget,
    /// The groups.
    pub groups: crate::groups::Groups,
    /// The counters.
    pub counters: Counters,
    /// Fault latencies by tier.
    pub latencies: Latencies,
    /// The hash of this run.
    pub hasher: PageHasher,
    /// Delays and refusals for tests.
    pub faults: FaultPoints,
    /// The owners' mailboxes, by owner number.
    pub mailboxes: Vec<Arc<Mailbox>>,
    /// Jobs for the workers that store trays.
    pub evictions: SyncSender<EvictJob>,
    /// Jobs for the threads that read devices.
    pub reads: SyncSender<ReadJob>,
    /// Fork children to be matched with their processes.
    pub matches: std::sync::mpsc::Sender<crate::matcher::MatchJob>,
    /// Why the tree must end, said once.
    pub verdict: Mutex<Option<Verdict>>,
    /// What the user should know, in the order it happened.
    pub notices: Mutex<Vec<Notice>>,
    /// Connections of agents that could not come to the door, with their processes.
    pub fetched: Mutex<Vec<(MessageSocket, u32)>>,
    /// What was ordered while the tree runs.
    pub orders: crate::swaps::Orders,
    /// Wakes the engine's main thread.
    pub main_bell: EventFd,
    /// Where pages of forked processes went, by hash.
    pub twins: crate::twins::Twins,
    /// Pages that each owner could reclaim, as of its last look.
    pub manageable: Vec<std::sync::atomic::AtomicI64>,
    /// By owner: memory is short, and it has no evictions under way.
    pub idle: Vec<std::sync::atomic::AtomicBool>,
    /// Resident memory of managed processes by pid, for the governor: pages the owner believes resident.
    pub managed: Mutex<std::collections::BTreeMap<u32, ManagedProcess>>,
    /// Programs that no agent speaks for, noted by the census.
    pub unmanaged: Mutex<Vec<crate::census::Unmanaged>>,
}

/// What an owner tells of a managed process.
#[derive(Clone, Debug, Default)]
pub struct ManagedProcess {
    /// Command name.
    pub name: String,
    /// A thread by whose id its memory can be measured.
    pub reader: u32,
    /// Space.
    pub space: SpaceId,
    /// Owner's number.
    pub owner: usize,
    /// An agent speaks for it.
    pub agent: bool,
    /// Its memory is registered.
    pub active: bool,
    /// Pages believed resident, as of the last sweep.
    pub resident: u64,
    /// Pages staged.
    pub staged: u64,
    /// Pages stored.
    pub stored: u64,
    /// Entries on the lists, trays being filled, faults waiting.
    pub queues: [usize; 3],
    /// Pages set aside: those that could not be moved when they were tried last, those that relatives share.
    pub set_aside: [usize; 2],
    /// It was forked from a managed process: pages may be shared.
    pub forked: bool,
}

/// A line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The line.
    pub text: String,
    /// Data is lost or in danger: said with `-q` too.
    pub grave: bool,
}

/// Why the tree is ended by us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pool and devices are full and no page can be freed.
    Exhausted(String),
    /// Something that must not happen; going on could give wrong bytes.
    Broken(String),
}

impl Shared {
    /// Ends the tree with a reason; the first one counts.
    pub fn condemn(&self, verdict: Verdict) {
        self.verdict.lock().expect("verdict").get_or_insert(verdict);
        self.main_bell.ring();
    }

    /// A job will not be done: its kept copies are given back.
    pub fn release_kept(&self, job: &EvictJob) {
        for kept in job.pages.iter().filter_map(|page| page.kept) {
            self.store.release_cached(kept);
        }
    }

    /// Tells the user something, unless the run is quiet.
    pub fn notice(&self, text: String) {
        self.tell(Notice { text, grave: false });
    }

    /// Tells the user, a quiet run's too, that data is lost or in danger.
    pub fn alarm(&self, text: String) {
        self.tell(Notice { text, grave: true });
    }

    fn tell(&self, notice: Notice) {
        self.notices.lock().expect("notices").push(notice);
        self.main_bell.ring();
    }
}

/// Where an owner gets its messages.
#[derive(Debug)]
pub struct Mailbox {
    queue: Mutex<VecDeque<Message>>,
    /// Wakes the owner; agents ring it too when they complete an order.
    pub bell: EventFd,
    /// Of the owner's thread.
    pub lowered: Lowered,
}

impl Mailbox {
    /// An empty mailbox.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { queue: Mutex::default(), bell: EventFd::new()?, lowered: Lowered::default() })
    }

    /// Puts a message in and wakes the owner.
    pub fn post(&self, message: Message) {
        self.lowered.raise();
        self.queue.lock().expect("mailbox").push_back(message);
        self.bell.ring();
    }

    /// Takes the oldest message.
    pub fn take(&self) -> Option<Message> {
        self.queue.lock().expect("mailbox").pop_front()
    }
}

/// An agent that has said hello.
#[derive(Debug)]
pub struct Greeting {
    /// Its process.
    pub pid: u32,
    /// Its agent's thread.
    pub thread: u32,
    /// The area in its memory.
    pub area: u64,
    /// What its identity page holds (0: not a fork child of a managed process).
    pub identity: u64,
    /// Socket, ring and nonce.
    pub link: AgentLink,
    /// The event userfaultfd (absent in a fork child).
    pub events: Option<Userfaultfd>,
    /// The staging userfaultfd.
    pub staging: Userfaultfd,
    /// The agent cannot see its own files in /proc.
    pub blind: bool,
}

/// What an owner is told.
#[derive(Debug)]
pub enum Message {
    /// An agent arrived.
    Hello(Box<Greeting>),
    /// A worker has stored a tray.
    Evicted(EvictDone),
    /// A device read is done.
    Read(ReadDone),
    /// The matcher found the process of a space and a thread of it, or did not.
    Matched {
        /// Whose.
        space: SpaceId,
        /// Process, and the thread by whose id it can be read.
        found: Option<(u32, u32)>,
    },
    /// The governor wants the space's mappings looked at; memory is to be registered from now on.
    Scan(SpaceId),
    /// Look at the budget.
    Balance,
    /// The run is over.
    Stop,
}

/// A tray to be stored.
#[derive(Debug)]
pub struct EvictJob {
    /// Whose.
    pub space: SpaceId,
    /// Owner to be told.
    pub owner: usize,
    /// Tray number.
    pub tray: u32,
    /// The tray's generation.
    pub generation: u32,
    /// Process to read from.
    pub pid: u32,
    /// Address and content of the nonce page.
    pub nonce_page: u64,
    /// What it must hold.
    pub nonce: [u64; 2],
    /// Relatives by fork may have the same pages.
    pub forked: bool,
    /// Slot, address to read from, kept copy.
    pub pages: Vec<EvictPage>,
}

/// A page of a tray to be stored.
#[derive(Clone, Copy, Debug)]
pub struct EvictPage {
    /// Slot in the tray.
    pub slot: u32,
    /// Where it lies in the process.
    pub address: u64,
    /// Copy that may still be true.
    pub kept: Option<ObjectId>,
}

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Only zeros.
    Zero,
    /// In the store.
    Object(ObjectId),
    /// The store is full: the page stays where it is. Its kept copy is gone.
    Full,
    /// It could not be read.
    Unreadable,
}

/// The answer to an [`EvictJob`].
#[derive(Debug)]
pub struct EvictDone {
    /// Whose.
    pub space: SpaceId,
    /// Tray number.
    pub tray: u32,
    /// The tray's generation.
    pub generation: u32,
    /// Slot and what became of its page.
    pub pages: Vec<(u32, Stored)>,
}

/// Pages to be read from a device.
#[derive(Debug)]
pub struct ReadJob {
    /// Whose.
    pub space: SpaceId,
    /// Owner to be told.
    pub owner: usize,
    /// Page address and object, the page that faulted first.
    pub pages: Vec<(u64, ObjectId)>,
    /// When the fault was read.
    pub since: std::time::Instant,
}

/// The answer to a [`ReadJob`].
pub struct ReadDone {
    /// Whose.
    pub space: SpaceId,
    /// Page address, object, and its bytes or why not.
    pub pages: Vec<(u64, ObjectId, Result<Box<PageBuf>, LoadError>)>,
    /// When the fault was read.
    pub since: std::time::Instant,
}

impl std::fmt::Debug for ReadDone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadDone of {} pages for space {}", self.pages.len(), self.space)
    }
}
