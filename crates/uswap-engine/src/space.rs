//! A space: one address space that we manage, and all that its owner knows of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use uswap_abi::layout::{AREA_BYTES, IDENTITY, NONCE, NOTICE, PAGE, SA, SB};
use uswap_abi::ring::Ring;
use uswap_core::growth::{Growth, during};
use uswap_core::locality::{Locality, Now};
use uswap_core::readahead::Streams;
use uswap_core::table::PageTable;
use uswap_core::word::State;
use uswap_core::working_set::WorkingSet;
use uswap_sys::leash::Leash;
use uswap_sys::maps::Maps;
use uswap_sys::memory::Memory;
use uswap_sys::pagemap::{BLOCK_PAGES, EXCLUSIVE, Pagemap};
use uswap_sys::shared::SharedValue;
use uswap_sys::socket::MessageSocket;
use uswap_sys::userfaultfd::{Install, Userfaultfd};

use crate::agents::AgentProcess;
use crate::ahead::Ahead;
use crate::bring_in::Search;
use crate::copies::Copies;
use crate::expense::Expense;
use crate::first_touch::FirstTouches;
use crate::fresh::Fresh;
use crate::group::Account;
use crate::kin::Kin;
use crate::left::Left;
use crate::load::{HeldFault, Record};
use crate::matcher::Found;
use crate::notes::Notes;
use crate::page_queue::PageQueue;
use crate::shared::Attached;
use crate::still::Moves;
use crate::throttle::Throttle;
use crate::tray::Trays;
use crate::turn::Returning;
use crate::waiters::Waiters;
use crate::window::Window;

/// Orders in a row that an agent may fail to execute before its process is left alone for a while.
pub const MOST_REFUSALS: u32 = 16;
/// Then it is tried again after this.
const SULK: Duration = Duration::from_secs(1);

/// Pages in a row that must not be shared until nobody looks any more.
const SUSPICION: u32 = 4096;
/// How long it is believed that a page is or is not shared.
const FRESH: Duration = Duration::from_millis(2);

/// Number of a space, unique in a run.
pub type SpaceId = u32;

/// The connection to a living agent.
#[derive(Debug)]
pub struct AgentLink {
    /// Doorbell, and the sign of death.
    pub socket: MessageSocket,
    /// Orders and results.
    pub ring: SharedValue<Ring>,
    /// What the nonce page of this image holds.
    pub nonce: [u64; 2],
    /// The agent has it too. It ends the program with engine and keeper, also while the agent waits in the kernel.
    pub leash: Leash,
    /// The same for the agent, which may be a process of its own.
    pub own_leash: Leash,
    /// The agent as a process of its own; `None`: it is a thread of the program.
    pub process: Option<AgentProcess>,
}

impl AgentLink {
    /// From now on the program must not outlive engine and keeper.
    pub fn bind(&self) {
        self.ring.active.store(1, SeqCst);
        if self.ring.careless.load(SeqCst) == 0 {
            self.leash.fasten();
            self.own_leash.fasten();
        }
    }

    /// Nothing of the program's memory is with us any more.
    pub fn let_go(&self) {
        self.ring.active.store(0, SeqCst);
        self.leash.loosen();
        self.own_leash.loosen();
    }

    /// Wakes the agent.
    pub fn ring_doorbell(&self) {
        // A full socket has woken it; a dead agent is noticed by the hang-up.
        let _ = self.socket.send(&[1], &[]);
    }
}

/// Which pages of a block are mapped nowhere else, as read a moment ago: pages are asked for in order.
#[derive(Debug, Default)]
pub struct Exclusive {
    block: Option<(u64, Instant)>,
    words: Vec<u64>,
}

impl Exclusive {
    /// True also when nothing can be read: then nobody shares anything any more.
    pub fn is_exclusive(&mut self, pagemap: &Pagemap, address: u64) -> bool {
        let start = address & !(BLOCK_PAGES as u64 * PAGE - 1);
        if !self.block.is_some_and(|(known, at)| known == start && at.elapsed() < FRESH) {
            let mut words = [0; BLOCK_PAGES];
            if pagemap.words(start, &mut words).is_err() {
                return true;
            }
            self.block = Some((start, Instant::now()));
            self.words.clear();
            during(Growth::Lists, || self.words.extend(words));
        }
        self.words[((address - start) / PAGE) as usize] & EXCLUSIVE != 0
    }
}

/// One managed address space. Only its owner's thread touches it.
#[derive(Debug)]
pub struct Space {
    /// Its number.
    pub id: SpaceId,
    /// Its process, once known (a fork child is known by its memory first).
    pub pid: Option<u32>,
    /// The thread or process by whose id its memory is read: the agent's, which ends with the image (a process whose
    /// first thread has ended cannot be read by its own id).
    pub reader: u32,
    /// Orders in a row whose system calls were refused altogether.
    pub refusals: u32,
    /// When the last of too many was.
    pub refused: Instant,
    /// Attempts in a row to read staged pages that failed.
    pub failed_reads: u32,
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
    pub memory: Option<Memory>,
    /// Memory is registered (or was inherited registered).
    pub active: bool,
    /// The agent was brought to its program (or that of the parent), which has no hooks.
    pub attached: Option<Attached>,
    /// What a fork child's identity page holds; 0 for an image that was not forked managed.
    pub identity: u64,
    /// Children it has forked while managed.
    pub forks: u32,
    /// The space it was forked from.
    pub parent: Option<SpaceId>,
    /// The process it was known by when it was lost.
    pub lost: Option<u32>,
    /// The matcher is looking for its process.
    pub matching: bool,
    /// Page words.
    pub table: PageTable,
    /// Who goes next.
    pub working_set: WorkingSet,
    /// Readahead streams of swap-ins.
    pub streams: Streams,
    /// Whether pages that come with others for nothing are wanted.
    pub locality: Locality,
    /// Streams of first touches.
    pub first_touches: FirstTouches,
    /// Streams of soft faults.
    pub soft_faults: Streams,
    /// Registered ranges as far as events tell.
    pub registered: BTreeMap<u64, u64>,
    /// Changes that were read and not applied yet.
    pub window: Window,
    /// What fork children to come may not have registered.
    pub fresh: Fresh,
    /// Where pages may be left that the program has said it drops.
    pub left: Left,
    /// The staging slots.
    pub trays: Trays,
    /// Pages whose fault waits for something under way; the flag says write.
    pub waiters: Waiters,
    /// Pages that were read ahead of their faults, and arrived.
    pub ahead: Ahead,
    /// Faults that are held.
    pub throttle: Throttle,
    /// Pages whose fault waits for room, in order.
    pub stalled: VecDeque<(u64, bool, Instant)>,
    /// What writes after a fork copy.
    pub copies: Copies,
    /// Faults that wait for the turn of the process.
    pub held: Vec<HeldFault>,
    /// What comes back to it because its turn has begun.
    pub returning: Returning,
    /// What its soft faults cost.
    pub expense: Expense,
    /// How far pages have been searched that lie on a device that is being emptied.
    pub search: Search,
    /// What load control knows of it.
    pub record: Arc<Record>,
    /// How often pages of it were installed or dropped.
    pub moves: Moves,
    /// The spaces that it may share pages with.
    pub kin: Kin,
    /// What the program's hooks have told.
    pub notes: Notes,
    /// Pages to be unshared before they are moved: a fork had left them shared and nobody shares them any more, or
    /// there is nothing else to take.
    pub shared_pages: BTreeSet<u64>,
    /// Pages of runs that were refused as a whole: to be moved one by one (a mapping's border lies between them).
    pub alone: BTreeSet<u64>,
    /// Pages that cannot be moved now (protected, locked, pinned, a thread's own); on no list until they are tried
    /// again.
    pub parked: Vec<u64>,
    /// Pages that relatives by fork map too, in the order they were found: taken last, since that frees nothing until
    /// all have given them up.
    pub shared_parked: PageQueue,
    /// Refaults that no shared page has been taken for yet: whoever brings back its own pages again and again must give
    /// up shared ones too.
    pub refaults: u64,
    /// How many pages are still to be looked at for sharing.
    pub sharing: u32,
    /// What was seen of it last.
    pub sharing_seen: Exclusive,
    /// When the parked pages are tried again.
    pub unpark_at: Instant,
    /// The gate is closed and the agent still inside.
    pub gate_pending: bool,
    /// The agent has orders and is stopped (SIGSTOP, a tracer): nothing will come of them before it goes on.
    pub stopped: bool,
    /// When its agent was sent away, because the program has ended or executes another one.
    pub dismissed: Option<Instant>,
    /// When the agent hung up while the address space went on.
    pub orphaned: Option<Instant>,
    /// Resident pages in the table (words in that state).
    pub resident: u64,
    /// Stored pages in the table.
    pub stored: u64,
    /// Evicted pages of zeros in the table.
    pub zeros: u64,
    /// What its process is charged with, once there are groups.
    pub account: Option<Arc<Account>>,
    /// Its pages on the way from order to drop.
    pub under_way: i64,
    /// Something came to pass that a scan of the mappings should look at.
    pub needs_scan: bool,
    /// The last scan.
    pub scanned: Instant,
    /// Keeps what came with the agent's greeting.
    pub process_name: String,
    /// Held so that a pid cannot be reused while we read by it.
    pub pidfd: Option<OwnedFd>,
}

impl Space {
    /// A space that owns `events`; everything else is to be learnt.
    pub fn new(id: SpaceId, events: Userfaultfd) -> Self {
        Self {
            id,
            pid: None,
            reader: 0,
            refusals: 0,
            refused: Instant::now(),
            starved: None,
            failed_reads: 0,
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
            memory: None,
            active: false,
            attached: None,
            identity: 0,
            forks: 0,
            parent: None,
            lost: None,
            matching: false,
            table: PageTable::default(),
            working_set: WorkingSet::default(),
            streams: Streams::with_strides(),
            locality: Locality::default(),
            first_touches: FirstTouches::default(),
            soft_faults: Streams::default(),
            registered: BTreeMap::new(),
            window: Window::default(),
            fresh: Fresh::default(),
            left: Left::default(),
            trays: Trays::default(),
            waiters: Waiters::default(),
            ahead: Ahead::default(),
            throttle: Throttle::default(),
            stalled: VecDeque::new(),
            copies: Copies::default(),
            held: Vec::new(),
            returning: Returning::default(),
            expense: Expense::new(Instant::now()),
            search: Search::default(),
            record: Arc::default(),
            moves: Moves::default(),
            kin: Kin::default(),
            notes: Notes::default(),
            shared_pages: BTreeSet::new(),
            alone: BTreeSet::new(),
            parked: Vec::new(),
            shared_parked: PageQueue::default(),
            refaults: 0,
            sharing: 0,
            sharing_seen: Exclusive::default(),
            unpark_at: Instant::now(),
            gate_pending: false,
            stopped: false,
            dismissed: None,
            orphaned: None,
            resident: 0,
            stored: 0,
            zeros: 0,
            account: None,
            under_way: 0,
            needs_scan: false,
            scanned: Instant::now(),
            process_name: String::new(),
            pidfd: None,
        }
    }

    /// Learns which process this is, and by which of its threads it can be read; `false` when it is gone already.
    pub fn bind(&mut self, pid: u32, reader: u32) -> bool {
        let opened = (Pagemap::open(reader), Maps::open(reader), uswap_sys::process::pidfd(pid));
        let (Ok(pagemap), Ok(maps), Ok(pidfd)) = opened else { return false };
        let memory = Memory::open(reader);
        // For want of a descriptor only: others are read by their agent's number.
        if memory.as_ref().is_err_and(uswap_sys::spares::is_shortage) {
            return false;
        }
        self.process_name = crate::procfs::name(pid).unwrap_or_default();
        (self.pid, self.pagemap, self.maps, self.pidfd) = (Some(pid), Some(pagemap), Some(maps), Some(pidfd));
        self.memory = memory.ok();
        self.reader = reader;
        true
    }

    /// Whether the agent is a process of its own.
    pub fn has_agent_apart(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.process.is_some())
    }

    /// Whether the address space still exists. The area's first guard page is never registered.
    pub fn is_alive(&self) -> bool {
        self.events.is_alive(self.area)
    }

    /// Installs `pages` at `address`; put off while changes wait: what we know of the address can be old.
    pub fn copy(&self, address: u64, pages: &[u8]) -> Install {
        self.unless_changing(|| self.events.copy(address, pages))
    }

    /// Installs the zero page, under the same condition.
    pub fn zero(&self, address: u64, length: u64) -> Install {
        self.unless_changing(|| self.events.zero(address, length))
    }

    /// Poisons pages, under the same condition.
    pub fn poison(&self, address: u64, length: u64) -> Install {
        self.unless_changing(|| self.events.poison(address, length))
    }

    fn unless_changing(&self, install: impl FnOnce() -> Install) -> Install {
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

    /// Where a staged page lies. In a tray that a fork child inherited it can be in either half.
    pub fn place_of(&self, slot: u32, inherited: bool) -> Option<u64> {
        if !inherited {
            return Some(self.sb(slot));
        }
        let pagemap = self.pagemap.as_ref()?;
        [self.sb(slot), self.sa(slot)].into_iter().find(|address| pagemap.is_present(*address).unwrap_or(false))
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

    /// Whether orders are under way that an agent is expected to complete.
    pub fn is_filling(&self) -> bool {
        !self.stopped && !self.trays.filling.is_empty()
    }

    /// Where it is in its life, for whoever counts in evictions.
    pub fn now(&self) -> Now {
        Now { evictions: self.working_set.evictions(), resident: self.resident }
    }

    /// Pages that could be reclaimed here: not those that cannot be moved now (the pool must leave room beside them), and
    /// not those that relatives share.
    pub fn weight(&self) -> u64 {
        let set_aside = self.parked.len() + self.shared_parked.len();
        (self.resident + self.trays.staged_pages()).saturating_sub(set_aside as u64)
    }

    /// Pages that can go in the end: of those that relatives share its part, since they go where all have given them up.
    pub fn can_go(&self) -> u64 {
        self.weight() + self.shared_parked.len() as u64 / u64::from(self.kin.relatives() + 1)
    }

    /// From now on pages are looked at before they are taken: relatives by fork may map them too.
    pub fn suspect_sharing(&mut self) {
        self.sharing = SUSPICION;
    }

    /// Whether a relative by fork maps the page too. Not looked at once many in a row were not shared.
    pub fn is_shared(&mut self, address: u64) -> bool {
        if self.pagemap.is_none() || self.sharing == 0 {
            return false;
        }
        let shared = self.is_mapped_elsewhere(address);
        self.sharing = if shared { SUSPICION } else { self.sharing - 1 };
        shared
    }

    /// The same of a page that was shared lately.
    pub fn is_mapped_elsewhere(&mut self, address: u64) -> bool {
        let seen = &mut self.sharing_seen;
        self.pagemap.as_ref().is_some_and(|pagemap| !seen.is_exclusive(pagemap, address))
    }

    /// Whether the page is resident, on no list, and not ordered.
    pub fn is_on_no_list(&self, address: u64) -> bool {
        let word = self.table.get(address);
        word.state() == State::Resident && !word.queued() && !word.in_flight()
    }

    /// Of the pages that relatives shared, those that nobody shares any more. They are looked at in the order of their
    /// addresses, since one reading tells of 512 neighbours; the others stay in theirs.
    pub fn take_unshared(&mut self) -> Vec<u64> {
        during(Growth::Lists, || {
            let Some(pagemap) = self.pagemap.as_ref().filter(|_| self.kin.may_share()) else {
                return std::mem::take(&mut self.shared_parked).iter().collect();
            };
            let mut own: Vec<u64> = self.shared_parked.iter().collect();
            own.sort_unstable();
            own.retain(|address| self.sharing_seen.is_exclusive(pagemap, *address));
            self.shared_parked.retain(|address| own.binary_search(&address).is_err());
            own
        })
    }

    /// All pages on the lists were shared by a fork just now. They stay in the order in which they would go.
    pub fn park_shared(&mut self) {
        during(Growth::Lists, || {
            while let Some(address) = self.working_set.next_victim(&mut self.table) {
                self.shared_parked.push_back(address);
            }
        });
    }

    /// Whether pages can be evicted from it.
    pub fn can_evict(&self) -> bool {
        let willing = self.refusals < MOST_REFUSALS || self.refused.elapsed() >= SULK;
        self.active && self.agent.is_some() && self.pid.is_some() && !self.stopped && willing
    }
}
