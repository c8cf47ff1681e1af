//! What the threads of the engine share: the store, the budget, the counters, and the mailboxes of the owners.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use uswap_core::growth::{Growth, during};
use uswap_core::{Lease, PageHasher, RankedMutex, Reserve, ranks};
use uswap_device::ReadQueue;
use uswap_store::{ObjectId, Store};
use uswap_sys::events::EventFd;
use uswap_sys::socket::MessageSocket;
use uswap_sys::userfaultfd::Userfaultfd;

use crate::pager::accounting::budget::Budget;
use crate::pager::accounting::moves::Moves;
use crate::pager::counters::Counters;
use crate::pager::fault_points::FaultPoints;
use crate::pager::io::bounded_queue::Jobs;
use crate::pager::io::page_query::{Callers, PageQuery};
use crate::pager::io::reader::{Read, Readers};
use crate::pager::io::unuse::BringIn;
use crate::pager::latency::Latencies;
use crate::pager::reclaim::cow_copies::Copied;
use crate::pager::space::SpaceId;
use crate::pager::space::fork_family::KinSeen;
use crate::remote::agent::link::AgentLink;
use crate::remote::sched::idle_priority::Lowered;

/// Known to every thread.
pub struct Shared {
    /// The two tiers.
    pub store: Store,
    /// The budget.
    pub budget: Budget,
    /// The groups.
    pub groups: crate::pager::accounting::groups::Groups,
    /// Load control.
    pub load: crate::pager::load_control::Load,
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
    pub evictions: Jobs<EvictJob>,
    /// Lists of pages for them.
    pub tray_lists: Reserve<TrayList>,
    /// The threads that read devices.
    pub readers: Readers,
    /// Tells whose memory is behind a userfaultfd.
    pub prover: crate::remote::identity::probe::Prover,
    /// Fork children to be matched with their processes.
    pub matches: std::sync::mpsc::Sender<crate::remote::identity::lookup::MatchJob>,
    /// Why the tree must end, said once.
    pub verdict: Mutex<Option<Verdict>>,
    /// What the user should know, in the order it happened.
    pub notices: Mutex<Vec<Notice>>,
    /// Connections of agents that could not come to the door, with their processes.
    pub fetched: Mutex<Vec<Fetched>>,
    /// Held while a thread is traced: the news of it belong to the attacher. So do those of threads that are to stop and
    /// have not yet, whose number this is.
    pub tracing: Mutex<usize>,
    /// Why processes cannot be attached to.
    pub refused: Mutex<std::collections::BTreeMap<u32, crate::remote::inject::reason::Why>>,
    /// How long threads were stopped for an agent to be brought, in nanoseconds.
    pub attach_stops: uswap_core::Histogram,
    /// The engine's descriptors.
    pub descriptors: crate::run::fd_budget::Descriptors,
    /// Whose memory this is about.
    pub tree: crate::run::measure::process_tree::Tree,
    /// Letting go of a program that was attached to.
    pub leaving: crate::run::attach::detach::Leaving,
    /// What was ordered while the tree runs.
    pub orders: crate::run::control::swapon::Orders,
    /// Who asks for pages.
    pub page_callers: Callers,
    /// Wakes the engine's main thread.
    pub main_bell: EventFd,
    /// Memory may have to be managed soon: the threads that look after it are to begin (`threads.rs`).
    pub is_expecting: std::sync::atomic::AtomicBool,
    /// Where pages of forked processes went, by hash.
    pub twins: crate::pager::reclaim::fork_dedup::Twins,
    /// The pool's share of the budget, as it was asked for and as it is.
    pub pool_share: crate::pager::accounting::pool_size::ShareTold,
    /// Pages in all spaces that are evicted and nothing but zeros: the sum of what the spaces count.
    pub zero_pages: crate::pager::counters::Gauge,
    /// Bytes of shared memory that one process had when the user was told of it; 0 until then.
    pub shared_memory: std::sync::atomic::AtomicU64,
    /// Pages that each owner could reclaim, as of its last look.
    pub manageable: Vec<std::sync::atomic::AtomicI64>,
    /// By owner: memory is short, and it has no evictions under way.
    pub idle: Vec<std::sync::atomic::AtomicBool>,
    /// Resident memory of managed processes by pid, for the governor: pages the owner believes resident.
    pub managed: Managed,
    /// What is touched, if the run is recorded.
    pub recorder: Option<crate::run::record::Recorder>,
    /// Programs that no agent speaks for, noted by the census.
    pub unmanaged: Mutex<Vec<crate::run::measure::unmanaged::Unmanaged>>,
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
    /// The agent is a process of its own, whose number is `reader`.
    pub apart: bool,
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
    /// How often its pages were installed or dropped.
    pub moves: Moves,
    /// Pages that its writes may have copied since it was forked, or a child from it.
    pub copied: Copied,
    /// Whom it may share pages with.
    pub kin: KinSeen,
}

impl ManagedProcess {
    /// Whether it began as a fork child, of a managed process or of one that was not managed yet.
    pub fn may_be_forked(&self) -> bool {
        self.forked || self.kin.is_uncertain
    }
}

/// The managed processes, by pid. Who reads them takes all as they are ([`Managed::all`]), which costs nothing; who changes them
/// while somebody still reads copies them.
#[derive(Debug, Default)]
pub struct Managed(Mutex<Arc<BTreeMap<u32, ManagedProcess>>>);

impl Managed {
    /// All.
    pub fn all(&self) -> Arc<BTreeMap<u32, ManagedProcess>> {
        self.0.lock().expect("managed").clone()
    }

    /// Notes a process.
    pub fn insert(&self, pid: u32, process: ManagedProcess) {
        let mut all = self.0.lock().expect("managed");
        during(Growth::AddressSpaces, || Arc::make_mut(&mut all).insert(pid, process));
    }

    /// Forgets the process, if it still is the one of this space of this owner.
    pub fn remove(&self, pid: u32, space: SpaceId, owner: usize) {
        let mut all = self.0.lock().expect("managed");
        if all.get(&pid).is_some_and(|known| known.space == space && known.owner == owner) {
            during(Growth::AddressSpaces, || Arc::make_mut(&mut all).remove(&pid));
        }
    }
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
    /// A page was touched that was not mapped.
    pub fn touched(&self, space: SpaceId, address: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.touch(space, address);
        }
    }

    /// How long nobody need look after memory: until as much as can grow might bring it near a limit.
    pub fn quiet(&self) -> std::time::Duration {
        let quiet = self.budget.poll_interval();
        if self.groups.in_use() { quiet.min(self.groups.poll_interval()) } else { quiet }
    }

    /// Every how many rounds who is still need be measured: each time where groups are, which have limits of their own.
    pub fn patience(&self) -> u32 {
        if self.groups.in_use() { 1 } else { self.budget.patience() }
    }

    /// Ends the tree with a reason; the first one counts.
    pub fn condemn(&self, verdict: Verdict) {
        self.verdict.lock().expect("verdict").get_or_insert(verdict);
        self.main_bell.ring();
    }

    /// Kills the tree; what is left of it, in words.
    pub fn kill_tree(&self) -> Option<String> {
        self.descriptors.give_up_all();
        self.tree.kill()
    }

    /// A job will not be done: its kept copies are given back.
    pub fn release_kept(&self, job: &EvictJob) {
        for kept in job.pages.pages.iter().filter_map(|page| page.kept) {
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
        during(Growth::Telling, || self.notices.lock().expect("notices").push(notice));
        self.main_bell.ring();
    }
}

/// Messages that a mailbox has room for from the start: more than all reads and trays that can be under way.
const ROOM: usize = 1024;

/// Where an owner gets its messages.
#[derive(Debug)]
pub struct Mailbox {
    queue: RankedMutex<VecDeque<Message>>,
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
        Ok(Self {
            queue: RankedMutex::new(ranks::MAILBOX, VecDeque::with_capacity(ROOM)),
            bell: EventFd::new()?,
            lowered: Lowered::default(),
        })
    }

    /// Puts a message in and wakes the owner.
    pub fn post(&self, message: Message) {
        self.lowered.raise();
        let mut queue = self.queue.lock();
        if queue.len() == queue.capacity() {
            during(Growth::Lists, || queue.reserve(1));
        }
        queue.push_back(message);
        drop(queue);
        self.bell.ring();
    }

    /// Takes the oldest message.
    pub fn take(&self) -> Option<Message> {
        self.queue.lock().pop_front()
    }
}

/// The connection of an agent that did not come to the door.
#[derive(Debug)]
pub struct Fetched {
    /// Our end.
    pub socket: MessageSocket,
    /// Its process.
    pub pid: u32,
    /// It was brought to a program that had none. (A fork child of one that is managed goes by what is known of its parent.)
    pub attached: Option<Attached>,
}

/// What is known of a program that the agent was brought to. It has no hooks: advice that it gives sends no note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// It is not known which words the kernel clears when threads end: they may lie in its static data.
    pub wordless: bool,
    /// The kernel clears one known word for all its threads, which the agent leaves alone: stacks need no care.
    pub free_stacks: bool,
}

/// An agent that has said hello.
#[derive(Debug)]
pub struct Greeting {
    /// Its process.
    pub pid: u32,
    /// Its agent: a thread of it, or a process of its own.
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
    /// It is a fork child's, whether the parent was managed or not.
    pub inherited: bool,
    /// It was brought to a program that had none.
    pub attached: Option<Attached>,
}

impl Greeting {
    /// Whether the agent still has the memory of its program, which may have executed another one.
    pub fn is_current(&self) -> bool {
        if self.link.process.is_some() {
            return crate::remote::agent::processes::speaks_for(self.thread, self.pid);
        }
        uswap_sys::procfs::process_of_thread(self.thread) == Some(self.pid)
    }
}

/// What an owner is told.
#[derive(Debug)]
pub enum Message {
    /// An agent arrived.
    Hello(Box<Greeting>),
    /// A worker has stored a tray.
    Evicted(EvictDone),
    /// A device read is done.
    Read(Read),
    /// A queue of reads from a device was made, or could not be.
    Queue {
        /// Its number.
        device: u8,
        /// The queue.
        queue: Option<Box<dyn ReadQueue>>,
    },
    /// A device has gone.
    DeviceGone(u8),
    /// A device is being emptied, and what it holds may have to be brought in.
    BringIn(Arc<BringIn>),
    /// The matcher found the process of a space and a thread of it, or did not.
    Matched {
        /// Whose.
        space: SpaceId,
        /// Its process, proven a moment ago.
        found: Option<crate::remote::identity::lookup::Found>,
    },
    /// The governor wants the space's mappings looked at; memory is to be registered from now on.
    Scan(SpaceId),
    /// The agent process of a space has nobody left to speak for.
    Dismiss {
        /// Whose.
        space: SpaceId,
        /// The agent that is meant.
        agent: u32,
    },
    /// A fault that was put aside may not wait: its thread is in a system call.
    ServeAtOnce {
        /// Whose.
        space: SpaceId,
        /// Its page.
        address: u64,
    },
    /// Somebody asks what pages hold.
    Pages(Box<PageQuery>),
    /// Look at the budget, and at who is held.
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
    /// Its pages.
    pub pages: Lease<TrayList>,
}

/// The pages of a tray on their way to a worker, and back with what became of them.
#[derive(Debug)]
pub struct TrayList {
    /// At most a tray.
    pub pages: Vec<EvictPage>,
}

impl TrayList {
    /// So many lists, each with room for a tray.
    pub fn reserve(lists: usize) -> Reserve<Self> {
        let list = || Self { pages: Vec::with_capacity(uswap_abi::layout::TRAY_PAGES as usize) };
        Reserve::new(vec![(1, std::iter::repeat_with(list).take(lists).collect())])
    }
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
    /// Once the tray was looked at.
    pub fate: Stored,
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
    /// What became of each page.
    pub pages: Lease<TrayList>,
}
