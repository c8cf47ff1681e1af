//! A space: one managed address space, and all that its pager knows of it.

pub mod audit;
pub mod fault_queue;
pub mod fork_family;
pub mod id;
pub mod lazyfree_ranges;
pub mod lazyfree_staged;
pub mod page_queue;
pub mod parts;
pub mod unsettled;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use uswap_core::page::table::PageTable;
use uswap_core::page::word::{PageState, PageWord};
use uswap_core::readahead::locality::Now;
use uswap_core::readahead::neighbours::Neighbours;
use uswap_core::readahead::streams::Streams;
use uswap_core::reclaim::AnyPolicy;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::util::growth::{Growth, during};

use crate::accounting::group::Account;
use crate::accounting::moves::Moves;
use crate::address_space::AddressSpace;
use crate::fault::fork_room::ForkRoom;
use crate::fault::soft_fault_cost::SoftFaultCost;
use crate::fault::throttle::Throttle;
use crate::fault::zero_fill::FirstTouches;
use crate::io::prepage::Returning;
use crate::io::readahead_cache::ReadaheadCache;
use crate::io::unuse::UnuseSearch;
use crate::load_control::LoadRecord;
use crate::reclaim::cow_copies::Copies;
use crate::reclaim::staging::Trays;
use crate::space::fault_queue::Waiters;
use crate::space::fork_family::ForkFamily;
use crate::space::id::SpaceId;
use crate::space::lazyfree_ranges::LazyFreeRanges;
use crate::space::page_queue::PageQueue;
use crate::space::parts::{Coverage, Lineage, PageCounts, ReadaheadState, SetAside, WaitingFaults};
use crate::space::unsettled::UnsettledRanges;

/// Pages in a row that must turn out not to be shared before pages are no longer checked.
const SUSPICION: u32 = 4096;
/// A space weighs at least one part in this many of its pages.
const LEAST_WEIGHT: u64 = 32;

/// Whether the page of this word is resident, on no list, and not ordered.
fn is_on_no_list(word: PageWord) -> bool {
    word.state() == PageState::Resident && !word.queued() && !word.in_flight()
}

/// One managed address space. Only the thread of its pager touches it.
#[derive(Debug)]
pub struct Space<M> {
    /// Its number.
    pub id: SpaceId,
    /// The memory of the address space.
    pub memory: M,
    /// Number of failed attempts in a row to read staged pages.
    pub failed_reads: u32,
    /// Whether its memory is registered (or was inherited as registered).
    pub active: bool,
    /// The page words.
    pub table: PageTable,
    /// The eviction policy, with its lists.
    pub policy: AnyPolicy,
    /// The staging slots.
    pub trays: Trays,
    /// The pages that are brought back because the turn of its process has begun.
    pub returning: Returning,
    /// The cost of its soft faults.
    pub expense: SoftFaultCost,
    /// How far its page words were searched for pages on a device that is being emptied.
    pub search: UnuseSearch,
    /// Its record for load control.
    pub record: Arc<LoadRecord>,
    /// How often its pages were installed or dropped.
    pub moves: Moves,
    /// The account that its pages are charged to, once there are groups.
    pub account: Option<Arc<Account>>,
    /// The state of readahead.
    pub readahead: ReadaheadState,
    /// Faults that wait.
    pub waiting: WaitingFaults,
    /// Resident pages that are on no list.
    pub set_aside: SetAside,
    /// Its pages, counted by state.
    pub counts: PageCounts,
    /// The registered parts of its memory.
    pub coverage: Coverage,
    /// Its origin by fork, and the pages it shares since.
    pub lineage: Lineage,
}

impl<M: AddressSpace> Space<M> {
    /// A space with this memory, of which nothing else is known yet.
    pub fn new(id: SpaceId, memory: M) -> Self {
        Self {
            id,
            memory,
            failed_reads: 0,
            active: false,
            table: PageTable::default(),
            policy: AnyPolicy::default(),
            coverage: Coverage {
                registered: BTreeMap::new(),
                unsettled: UnsettledRanges::default(),
                lazyfree: LazyFreeRanges::default(),
                spared: BTreeSet::new(),
            },
            trays: Trays::default(),
            readahead: ReadaheadState {
                streams: Streams::with_strides(),
                neighbours: Neighbours::default(),
                first_touches: FirstTouches::default(),
                soft_faults: Streams::default(),
                cache: ReadaheadCache::default(),
            },
            lineage: Lineage { forks: 0, parent: None, family: ForkFamily::default(), copies: Copies::default() },
            waiting: WaitingFaults {
                waiters: Waiters::default(),
                throttle: Throttle::default(),
                stalled: VecDeque::new(),
                fork_room: ForkRoom::default(),
                held: Vec::new(),
            },
            returning: Returning::default(),
            expense: SoftFaultCost::new(Instant::now()),
            search: UnuseSearch::default(),
            record: Arc::default(),
            moves: Moves::default(),
            set_aside: SetAside {
                shared_pages: BTreeSet::new(),
                alone: BTreeSet::new(),
                parked: Vec::new(),
                shared_parked: PageQueue::default(),
                refaults: 0,
                sharing: 0,
                unpark_at: Instant::now(),
            },
            account: None,
            counts: PageCounts { resident: 0, stored: 0, zeros: 0, under_way: 0 },
        }
    }

    /// Whether the page is known to be registered.
    pub fn is_registered(&self, address: u64) -> bool {
        self.coverage.range_of(address).is_some()
    }

    /// Whether orders are under way that an agent is expected to complete.
    pub fn is_filling(&self) -> bool {
        !self.memory.is_stopped() && !self.trays.filling.is_empty()
    }

    /// The current moment, in evictions.
    pub fn now(&self) -> Now {
        Now { evictions: self.policy.evictions(), resident: self.counts.resident }
    }

    /// Number of pages that could be reclaimed here, without those that cannot be moved now (the
    /// pool must leave room beside them) and those that relatives share. Never nothing, since what
    /// is set aside is looked through only when pages are taken: some of it may be gone.
    pub fn weight(&self) -> u64 {
        let set_aside = self.set_aside.parked.len() + self.set_aside.shared_parked.len();
        let all = self.counts.resident + self.trays.staged_pages();
        all.saturating_sub(set_aside as u64).max(all / LEAST_WEIGHT)
    }

    /// Number of pages that can be evicted in the end: of the pages that relatives share only a
    /// part counts, since they go when all relatives have given them up.
    pub fn can_go(&self) -> u64 {
        self.weight() + self.set_aside.shared_parked.len() as u64 / u64::from(self.lineage.family.relatives() + 1)
    }

    /// From now on pages are checked before they are taken, since relatives by fork may map them
    /// too.
    pub fn suspect_sharing(&mut self) {
        self.set_aside.sharing = SUSPICION;
    }

    /// Whether a relative by fork maps the page too. This is no longer checked once many pages in a
    /// row were not shared.
    pub fn is_shared(&mut self, address: u64) -> bool {
        if !self.memory.knows_sharing() || self.set_aside.sharing == 0 {
            return false;
        }
        let shared = self.is_mapped_elsewhere(address);
        self.set_aside.sharing = if shared { SUSPICION } else { self.set_aside.sharing - 1 };
        shared
    }

    /// Like `is_shared`, for a page that was shared recently.
    pub fn is_mapped_elsewhere(&mut self, address: u64) -> bool {
        !self.memory.is_exclusive(address)
    }

    /// Whether the page is resident, on no list, and not ordered.
    pub fn is_on_no_list(&self, address: u64) -> bool {
        is_on_no_list(self.table.get(address))
    }

    /// Takes those of the pages set aside as shared that are not shared any more. They mostly lie
    /// in the order of their addresses, and one reading covers 512 neighbours.
    pub fn take_unshared(&mut self) -> Vec<u64> {
        during(Growth::Lists, || {
            if !self.memory.knows_sharing() || !self.lineage.family.may_share() {
                return std::mem::take(&mut self.set_aside.shared_parked).iter().collect();
            }
            let (mut own, memory, table) = (Vec::new(), &mut self.memory, &self.table);
            self.set_aside.shared_parked.retain(|address| {
                if !is_on_no_list(table.get(address)) {
                    return false;
                }
                let is_own = memory.is_exclusive(address);
                if is_own {
                    own.push(address);
                }
                !is_own
            });
            own
        })
    }

    /// Sets all pages on the lists aside, because a fork has just made them shared: in the order of
    /// their addresses, in which they take no memory. In the order of their age the queue of a
    /// program of 600 MiB took 2.4 MiB in each relative.
    pub fn park_shared(&mut self) {
        let parked = &mut self.set_aside.shared_parked;
        during(Growth::Lists, || {
            self.table.for_each_mut(|address, word| {
                if word.state() == PageState::Resident && word.queued() {
                    parked.push_back(address);
                }
            });
        });
        while self.policy.next_victim(&mut self.table).is_some() {}
    }

    /// Whether pages can be evicted from the space.
    pub fn can_evict(&self) -> bool {
        self.active && self.memory.can_stage()
    }
}
