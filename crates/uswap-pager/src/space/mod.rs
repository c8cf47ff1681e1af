//! A space: one address space that we manage, and all that its owner knows of it.

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
use uswap_core::page::word::PageState;
use uswap_core::readahead::locality::{Locality, Now};
use uswap_core::readahead::streams::Streams;
use uswap_core::reclaim::AnyPolicy;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::util::growth::{Growth, during};

use crate::accounting::group::Account;
use crate::accounting::moves::Moves;
use crate::address_space::AddressSpace;
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

/// Pages in a row that must not be shared until nobody looks any more.
const SUSPICION: u32 = 4096;

/// One managed address space. Only its owner's thread touches it.
#[derive(Debug)]
pub struct Space<M> {
    /// Its number.
    pub id: SpaceId,
    /// The memory that it manages.
    pub memory: M,
    /// Attempts in a row to read staged pages that failed.
    pub failed_reads: u32,
    /// Memory is registered (or was inherited registered).
    pub active: bool,
    /// Page words.
    pub table: PageTable,
    /// Which pages go next.
    pub policy: AnyPolicy,
    /// The staging slots.
    pub trays: Trays,
    /// What comes back to it because its turn has begun.
    pub returning: Returning,
    /// What its soft faults cost.
    pub expense: SoftFaultCost,
    /// How far pages have been searched that lie on a device that is being emptied.
    pub search: UnuseSearch,
    /// What load control knows of it.
    pub record: Arc<LoadRecord>,
    /// How often pages of it were installed or dropped.
    pub moves: Moves,
    /// What its process is charged with, once there are groups.
    pub account: Option<Arc<Account>>,
    /// What is known of its faults for readahead.
    pub readahead: ReadaheadState,
    /// Faults that wait.
    pub waiting: WaitingFaults,
    /// Resident pages that are on no list.
    pub set_aside: SetAside,
    /// Its pages, counted.
    pub counts: PageCounts,
    /// What of the memory is registered.
    pub coverage: Coverage,
    /// Where it was forked from, and what it shares since.
    pub lineage: Lineage,
}

impl<M: AddressSpace> Space<M> {
    /// A space of this memory; everything else is to be learnt.
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
            },
            trays: Trays::default(),
            readahead: ReadaheadState {
                streams: Streams::with_strides(),
                locality: Locality::default(),
                first_touches: FirstTouches::default(),
                soft_faults: Streams::default(),
                cache: ReadaheadCache::default(),
            },
            lineage: Lineage { forks: 0, parent: None, family: ForkFamily::default(), copies: Copies::default() },
            waiting: WaitingFaults {
                waiters: Waiters::default(),
                throttle: Throttle::default(),
                stalled: VecDeque::new(),
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
        self.coverage.registered.range(..=address).next_back().is_some_and(|(_, end)| *end > address)
    }

    /// Whether orders are under way that an agent is expected to complete.
    pub fn is_filling(&self) -> bool {
        !self.memory.is_stopped() && !self.trays.filling.is_empty()
    }

    /// Where it is in its life, for whoever counts in evictions.
    pub fn now(&self) -> Now {
        Now { evictions: self.policy.evictions(), resident: self.counts.resident }
    }

    /// Pages that could be reclaimed here: not those that cannot be moved now (the pool must leave
    /// room beside them), and not those that relatives share.
    pub fn weight(&self) -> u64 {
        let set_aside = self.set_aside.parked.len() + self.set_aside.shared_parked.len();
        (self.counts.resident + self.trays.staged_pages()).saturating_sub(set_aside as u64)
    }

    /// Pages that can go in the end: of those that relatives share its part, since they go where
    /// all have given them up.
    pub fn can_go(&self) -> u64 {
        self.weight() + self.set_aside.shared_parked.len() as u64 / u64::from(self.lineage.family.relatives() + 1)
    }

    /// From now on pages are looked at before they are taken: relatives by fork may map them too.
    pub fn suspect_sharing(&mut self) {
        self.set_aside.sharing = SUSPICION;
    }

    /// Whether a relative by fork maps the page too. Not looked at once many in a row were not
    /// shared.
    pub fn is_shared(&mut self, address: u64) -> bool {
        if !self.memory.knows_sharing() || self.set_aside.sharing == 0 {
            return false;
        }
        let shared = self.is_mapped_elsewhere(address);
        self.set_aside.sharing = if shared { SUSPICION } else { self.set_aside.sharing - 1 };
        shared
    }

    /// The same of a page that was shared lately.
    pub fn is_mapped_elsewhere(&mut self, address: u64) -> bool {
        !self.memory.is_exclusive(address)
    }

    /// Whether the page is resident, on no list, and not ordered.
    pub fn is_on_no_list(&self, address: u64) -> bool {
        let word = self.table.get(address);
        word.state() == PageState::Resident && !word.queued() && !word.in_flight()
    }

    /// Of the pages that relatives shared, those that nobody shares any more. They are looked at in
    /// the order of their addresses, since one reading tells of 512 neighbours; the others stay in
    /// theirs.
    pub fn take_unshared(&mut self) -> Vec<u64> {
        during(Growth::Lists, || {
            if !self.memory.knows_sharing() || !self.lineage.family.may_share() {
                return std::mem::take(&mut self.set_aside.shared_parked).iter().collect();
            }
            let mut own: Vec<u64> = self.set_aside.shared_parked.iter().collect();
            own.sort_unstable();
            own.retain(|address| self.memory.is_exclusive(*address));
            self.set_aside.shared_parked.retain(|address| own.binary_search(&address).is_err());
            own
        })
    }

    /// All pages on the lists were shared by a fork just now. They stay in the order in which they
    /// would go.
    pub fn park_shared(&mut self) {
        during(Growth::Lists, || {
            while let Some(address) = self.policy.next_victim(&mut self.table) {
                self.set_aside.shared_parked.push_back(address);
            }
        });
    }

    /// Whether pages can be evicted from it.
    pub fn can_evict(&self) -> bool {
        self.active && self.memory.can_stage()
    }
}
