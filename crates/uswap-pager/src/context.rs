//! What the threads of the engine share: the store, the budget, the counters, and the mailboxes of
//! the owners.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use uswap_core::util::growth::{Growth, during};
use uswap_core::{Lease, PageHasher, RankedMutex, Reserve, ranks};
use uswap_device::ReadQueue;
use uswap_store::{ObjectId, Store};
use uswap_sys::io::events::EventFd;

use crate::accounting::budget::Budget;
use crate::accounting::moves::Moves;
use crate::address_space::AddressSpace;
use crate::counters::Counters;
use crate::fault_points::FaultPoints;
use crate::idle_priority::IdlePriority;
use crate::io::bounded_queue::Jobs;
use crate::io::page_query::{PageCallers, PageQuery};
use crate::io::reader::{Read, Readers};
use crate::io::unuse::BringIn;
use crate::latency::Latencies;
use crate::reclaim::cow_copies::Copied;
use crate::space::fork_family::ForkFamilySeen;
use crate::space::id::SpaceId;

/// Known to every thread.
pub struct EngineContext<M: AddressSpace> {
    /// The two tiers.
    pub store: Store,
    /// The budget.
    pub budget: Budget,
    /// The groups.
    pub groups: crate::accounting::groups::Groups,
    /// Load control.
    pub load: crate::load_control::LoadControlState,
    /// The counters.
    pub counters: Counters,
    /// Fault latencies by tier.
    pub latencies: Latencies,
    /// The hash of this run.
    pub hasher: PageHasher,
    /// Delays and refusals for tests.
    pub faults: FaultPoints,
    /// The owners' mailboxes, by owner number.
    pub mailboxes: Vec<Arc<Mailbox<M>>>,
    /// The threads that read devices.
    pub readers: Readers,
    /// What the threads share of the kind of memory that is managed.
    pub of_memory: M::Shared,
    /// Who asks for pages.
    pub page_callers: PageCallers,
    /// Wakes the engine's main thread.
    pub main_bell: EventFd,
    /// Where pages of forked processes went, by hash.
    pub twins: crate::reclaim::fork_dedup::ForkDedup,
    /// The pool's share of the budget, as it was asked for and as it is.
    pub pool_share: crate::accounting::pool_size::ShareTold,
    /// Resident memory of managed processes by pid, for the governor: pages the owner believes
    /// resident.
    pub managed: Managed,
    /// What workers that store trays have to do.
    pub storing: StoreQueue<M>,
    /// What each pager tells of its spaces.
    pub gauges: PagerGauges,
    /// What the user is told.
    pub said: Said,
    /// What is touched, if the run is recorded.
    pub recorder: Option<crate::record::Recorder>,
}

/// What workers that store trays have to do.
pub struct StoreQueue<M: AddressSpace> {
    /// Jobs for the workers that store trays.
    pub jobs: Jobs<EvictJob<M>>,
    /// Lists of pages for them.
    pub lists: Reserve<TrayList>,
}

/// What each pager tells of its spaces.
pub struct PagerGauges {
    /// Pages that each owner could reclaim, as of its last look.
    pub manageable: Vec<std::sync::atomic::AtomicI64>,
    /// By owner: memory is short, and it has no evictions under way.
    pub idle: Vec<std::sync::atomic::AtomicBool>,
    /// Pages in all spaces that are evicted and nothing but zeros: the sum of what the spaces
    /// count.
    pub zero_pages: crate::counters::Gauge,
}

/// What the user is told.
pub struct Said {
    /// Why the tree must end, said once.
    pub verdict: Mutex<Option<Verdict>>,
    /// What the user should know, in the order it happened.
    pub notices: Mutex<Vec<Notice>>,
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
    /// Pages set aside: those that could not be moved when they were tried last, those that
    /// relatives share.
    pub set_aside: [usize; 2],
    /// It was forked from a managed process: pages may be shared.
    pub forked: bool,
    /// How often its pages were installed or dropped.
    pub moves: Moves,
    /// Pages that its writes may have copied since it was forked, or a child from it.
    pub copied: Copied,
    /// Whom it may share pages with.
    pub kin: ForkFamilySeen,
}

impl ManagedProcess {
    /// Whether it began as a fork child, of a managed process or of one that was not managed yet.
    pub fn may_be_forked(&self) -> bool {
        self.forked || self.kin.is_uncertain
    }
}

/// The managed processes, by pid. Who reads them takes all as they are ([`Managed::all`]), which
/// costs nothing; who changes them while somebody still reads copies them.
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

impl<M: AddressSpace> EngineContext<M> {
    /// A page was touched that was not mapped.
    pub fn touched(&self, space: SpaceId, address: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.touch(space, address);
        }
    }

    /// How long nobody need look after memory: until as much as can grow might bring it near a
    /// limit.
    pub fn quiet(&self) -> std::time::Duration {
        let quiet = self.budget.poll_interval();
        if self.groups.in_use() { quiet.min(self.groups.poll_interval()) } else { quiet }
    }

    /// Every how many rounds who is still need be measured: each time where groups are, which have
    /// limits of their own.
    pub fn patience(&self) -> u32 {
        if self.groups.in_use() { 1 } else { self.budget.patience() }
    }

    /// Ends the tree with a reason; the first one counts.
    pub fn condemn(&self, verdict: Verdict) {
        self.said.verdict.lock().expect("verdict").get_or_insert(verdict);
        self.main_bell.ring();
    }

    /// A job will not be done: its kept copies are given back.
    pub fn release_kept(&self, job: &EvictJob<M>) {
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
        during(Growth::Telling, || self.said.notices.lock().expect("notices").push(notice));
        self.main_bell.ring();
    }
}

/// Messages that a mailbox has room for from the start: more than all reads and trays that can be
/// under way.
const ROOM: usize = 1024;

/// Where an owner gets its messages.
#[derive(Debug)]
pub struct Mailbox<M: AddressSpace> {
    queue: RankedMutex<VecDeque<Message<M>>>,
    /// Wakes the owner; agents ring it too when they complete an order.
    pub bell: EventFd,
    /// Of the owner's thread.
    pub lowered: Arc<IdlePriority>,
}

impl<M: AddressSpace> Mailbox<M> {
    /// An empty mailbox.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            queue: RankedMutex::new(ranks::MAILBOX, VecDeque::with_capacity(ROOM)),
            bell: EventFd::new()?,
            lowered: Arc::default(),
        })
    }

    /// Puts a message in and wakes the owner.
    pub fn post(&self, message: Message<M>) {
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
    pub fn take(&self) -> Option<Message<M>> {
        self.queue.lock().pop_front()
    }
}

/// What an owner is told.
#[derive(Debug)]
pub enum Message<M: AddressSpace> {
    /// From whoever looks after this kind of memory.
    OfMemory(M::Message),
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
pub struct EvictJob<M: AddressSpace> {
    /// Whose.
    pub space: SpaceId,
    /// Owner to be told.
    pub owner: usize,
    /// Tray number.
    pub tray: u32,
    /// The tray's generation.
    pub generation: u32,
    /// Reads its pages.
    pub reader: M::Reader,
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
