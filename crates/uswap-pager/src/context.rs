//! The state that the threads of the engine share: the store, the budget, the counters, and the
//! mailboxes of the pagers.

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

/// The state that all threads of the engine share.
pub struct EngineContext<M: AddressSpace> {
    /// The store: pool and devices.
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
    /// The keyed hash of this run.
    pub hasher: PageHasher,
    /// Delays and refusals for tests.
    pub faults: FaultPoints,
    /// The mailboxes of the pagers, by the pager's number.
    pub mailboxes: Vec<Arc<Mailbox<M>>>,
    /// The threads that read devices.
    pub readers: Readers,
    /// State that the threads share for the kind of memory that is managed.
    pub of_memory: M::Shared,
    /// The callers that query pages.
    pub page_callers: PageCallers,
    /// Wakes the main thread of the engine.
    pub main_bell: EventFd,
    /// State of the pages that processes have in common which come from one another by fork.
    pub relatives: ForkedPages,
    /// The pool's share of the budget, as it was set and as it is.
    pub pool_share: crate::accounting::pool_size::ShareTold,
    /// The managed processes by pid, with the pages that the pagers believe resident; for the
    /// governor.
    pub managed: Managed,
    /// The jobs of the workers that store trays.
    pub storing: StoreQueue<M>,
    /// Gauges that each pager publishes.
    pub gauges: PagerGauges,
    /// Messages for the user.
    pub said: Said,
    /// The recorder of touches, if the run is recorded.
    pub recorder: Option<crate::record::Recorder>,
}

/// State of the pages that processes have in common which come from one another by fork.
#[derive(Default)]
pub struct ForkedPages {
    /// The objects in which such pages were stored, by hash.
    pub twins: crate::reclaim::fork_dedup::ForkDedup,
    /// The pages that relatives give up together.
    pub rounds: crate::reclaim::press::SharedRounds,
}

/// The jobs of the workers that store trays.
pub struct StoreQueue<M: AddressSpace> {
    /// Jobs for the workers that store trays.
    pub jobs: Jobs<EvictJob<M>>,
    /// Lists of pages for the jobs.
    pub lists: Reserve<TrayList>,
}

/// Gauges that each pager publishes.
pub struct PagerGauges {
    /// For each pager: pages that it could reclaim when it last looked.
    pub manageable: Vec<std::sync::atomic::AtomicI64>,
    /// For each pager: whether memory is short and the pager has no evictions under way.
    pub idle: Vec<std::sync::atomic::AtomicBool>,
    /// Evicted pages that hold nothing but zeros, in all spaces: the sum of the counts of the
    /// spaces.
    pub zero_pages: crate::counters::Gauge,
}

/// Messages for the user.
pub struct Said {
    /// The reason why the process tree must end, told once.
    pub verdict: Mutex<Option<Verdict>>,
    /// Notices for the user, in the order in which they were made.
    pub notices: Mutex<Vec<Notice>>,
}

/// Data about a managed process that its pager publishes.
#[derive(Clone, Debug, Default)]
pub struct ManagedProcess {
    /// Command name.
    pub name: String,
    /// A thread through whose id the memory can be measured.
    pub reader: u32,
    /// The number of its space.
    pub space: SpaceId,
    /// The number of its pager.
    pub owner: usize,
    /// Whether an agent is connected for it.
    pub agent: bool,
    /// Whether the agent is a process of its own, with the number `reader`.
    pub apart: bool,
    /// Whether its memory is registered.
    pub active: bool,
    /// Pages believed resident, as of the last sweep.
    pub resident: u64,
    /// Staged pages.
    pub staged: u64,
    /// Stored pages.
    pub stored: u64,
    /// Number of entries on the lists, of trays being filled, and of faults that wait.
    pub queues: [usize; 3],
    /// Pages set aside: those that could not be moved at the last attempt, and those that are
    /// shared with relatives by fork.
    pub set_aside: [usize; 2],
    /// Whether it was forked from a managed process, so that pages may be shared.
    pub forked: bool,
    /// How often its pages were installed or dropped.
    pub moves: Moves,
    /// Pages that its writes may have copied since it was forked, or a child from it.
    pub copied: Copied,
    /// The processes that it may share pages with.
    pub kin: ForkFamilySeen,
}

impl ManagedProcess {
    /// Whether it began as a fork child, of a managed process or of one that was not managed yet.
    pub fn may_be_forked(&self) -> bool {
        self.forked || self.kin.is_uncertain
    }
}

/// The managed processes, by pid. A reader takes them all as they are ([`Managed::all`]), which
/// costs nothing; a change copies them while a reader still holds them.
#[derive(Debug, Default)]
pub struct Managed(Mutex<Arc<BTreeMap<u32, ManagedProcess>>>);

impl Managed {
    /// All managed processes.
    pub fn all(&self) -> Arc<BTreeMap<u32, ManagedProcess>> {
        self.0.lock().expect("managed").clone()
    }

    /// Adds a process, or replaces it.
    pub fn insert(&self, pid: u32, process: ManagedProcess) {
        let mut all = self.0.lock().expect("managed");
        during(Growth::AddressSpaces, || Arc::make_mut(&mut all).insert(pid, process));
    }

    /// Replaces the entry of a process, if it still is the one of the same space of the same
    /// pager. An old image may be left for a while after its process has executed a new one, whose
    /// entry stays.
    pub fn update(&self, pid: u32, process: ManagedProcess) {
        let mut all = self.0.lock().expect("managed");
        if all.get(&pid).is_some_and(|known| known.space == process.space && known.owner == process.owner) {
            during(Growth::AddressSpaces, || Arc::make_mut(&mut all).insert(pid, process));
        }
    }

    /// Removes the process, if it still is the one of this space of this pager.
    pub fn remove(&self, pid: u32, space: SpaceId, owner: usize) {
        let mut all = self.0.lock().expect("managed");
        if all.get(&pid).is_some_and(|known| known.space == space && known.owner == owner) {
            during(Growth::AddressSpaces, || Arc::make_mut(&mut all).remove(&pid));
        }
    }
}

/// A message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The text, one line.
    pub text: String,
    /// Whether data is lost or in danger: such a message is printed with `-q` too.
    pub grave: bool,
}

/// The reason why the engine ends the process tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pool and devices are full and no page can be freed.
    Exhausted(String),
    /// An internal error; going on could give programs wrong bytes.
    Broken(String),
}

impl<M: AddressSpace> EngineContext<M> {
    /// Records that a page was touched that was not mapped.
    pub fn touched(&self, space: SpaceId, address: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.touch(space, address);
        }
    }

    /// How long memory need not be measured: until the fastest growth could bring it near a limit.
    pub fn quiet(&self) -> std::time::Duration {
        let quiet = self.budget.poll_interval();
        if self.groups.in_use() { quiet.min(self.groups.poll_interval()) } else { quiet }
    }

    /// Number of rounds after which a process that does not change must also be measured: each
    /// round where there are groups, since these have limits of their own.
    pub fn patience(&self) -> u32 {
        if self.groups.in_use() { 1 } else { self.budget.patience() }
    }

    /// Ends the process tree for a reason; only the first reason counts.
    pub fn condemn(&self, verdict: Verdict) {
        self.said.verdict.lock().expect("verdict").get_or_insert(verdict);
        self.main_bell.ring();
    }

    /// Gives back the kept copies of a job that is not done.
    pub fn release_kept(&self, job: &EvictJob<M>) {
        for kept in job.pages.pages.iter().filter_map(|page| page.kept) {
            self.store.release_cached(kept);
        }
    }

    /// Sends a message to the user, unless the run is quiet.
    pub fn notice(&self, text: String) {
        self.tell(Notice { text, grave: false });
    }

    /// Sends the user the message, in a quiet run too, that data is lost or in danger.
    pub fn alarm(&self, text: String) {
        self.tell(Notice { text, grave: true });
    }

    fn tell(&self, notice: Notice) {
        during(Growth::Telling, || self.said.notices.lock().expect("notices").push(notice));
        self.main_bell.ring();
    }
}

/// Messages that a mailbox has room for from the start: more than all the reads and trays that can
/// be under way.
const ROOM: usize = 1024;

/// The mailbox of a pager.
#[derive(Debug)]
pub struct Mailbox<M: AddressSpace> {
    queue: RankedMutex<VecDeque<Message<M>>>,
    /// Wakes the pager thread; agents also ring it when they complete an order.
    pub bell: EventFd,
    /// The scheduling class of the pager thread.
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

    /// Puts a message in and wakes the pager thread.
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

/// A message to a pager.
#[derive(Debug)]
pub enum Message<M: AddressSpace> {
    /// A message for this kind of memory.
    OfMemory(M::Message),
    /// A worker has stored a tray.
    Evicted(EvictDone),
    /// A device read is done.
    Read(Read),
    /// A queue of reads from a device was made, or could not be.
    Queue {
        /// The number of the device.
        device: u8,
        /// The queue; `None`: it could not be made.
        queue: Option<Box<dyn ReadQueue>>,
    },
    /// A device was removed.
    DeviceGone(u8),
    /// A device is being emptied, and its pages may have to be brought in.
    BringIn(Arc<BringIn>),
    /// A fault that was put aside must not wait: its thread is in a system call.
    ServeAtOnce {
        /// The space of the fault.
        space: SpaceId,
        /// The page of the fault.
        address: u64,
    },
    /// A caller queries the contents of pages.
    Pages(Box<PageQuery>),
    /// The pager is to look at the budget and at the processes that are held.
    Balance,
    /// The run is over.
    Stop,
}

/// A job: a tray to be stored.
#[derive(Debug)]
pub struct EvictJob<M: AddressSpace> {
    /// The space of the tray.
    pub space: SpaceId,
    /// The number of the pager that gets the answer.
    pub owner: usize,
    /// Tray number.
    pub tray: u32,
    /// The tray's generation.
    pub generation: u32,
    /// The reader of its pages.
    pub reader: M::Reader,
    /// Whether relatives by fork may have the same pages.
    pub forked: bool,
    /// Its pages.
    pub pages: Lease<TrayList>,
}

/// The pages of a tray, on their way to a worker, and back with their outcome.
#[derive(Debug)]
pub struct TrayList {
    /// The pages, at most those of a tray.
    pub pages: Vec<EvictPage>,
}

impl TrayList {
    /// Makes this many lists, each with room for a tray.
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
    /// Address of the staged page in the process.
    pub address: u64,
    /// A kept copy in the store that may still be equal.
    pub kept: Option<ObjectId>,
    /// The outcome, once the worker has handled the tray.
    pub fate: Stored,
}

/// The outcome of storing a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The page holds only zeros.
    Zero,
    /// The page is in the store.
    Object(ObjectId),
    /// The store is full: the page stays where it is. Its kept copy is gone.
    Full,
    /// The page could not be read.
    Unreadable,
}

/// The answer to an [`EvictJob`].
#[derive(Debug)]
pub struct EvictDone {
    /// The space of the tray.
    pub space: SpaceId,
    /// Tray number.
    pub tray: u32,
    /// The tray's generation.
    pub generation: u32,
    /// The outcome for each page.
    pub pages: Lease<TrayList>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_image_does_not_displace_the_new_one() {
        let managed = Managed::default();
        let image = |space, stored| ManagedProcess { space, stored, ..Default::default() };
        let seen = || managed.all().get(&7).map(|process| (process.space, process.stored));
        managed.update(7, image(1, 0));
        assert_eq!(seen(), None, "it was not published yet");
        managed.insert(7, image(1, 0));
        managed.update(7, image(1, 5));
        assert_eq!(seen(), Some((1, 5)));
        managed.insert(7, image(2, 0));
        managed.update(7, image(1, 6));
        managed.remove(7, 1, 0);
        assert_eq!(seen(), Some((2, 0)));
        managed.remove(7, 2, 1);
        assert!(seen().is_some(), "it is another pager's");
        managed.remove(7, 2, 0);
        assert_eq!(seen(), None);
    }
}
