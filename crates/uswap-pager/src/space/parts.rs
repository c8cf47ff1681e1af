//! The parts of a space: small structs, each with what one concern of the pager knows of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use uswap_core::readahead::locality::Locality;
use uswap_core::readahead::streams::Streams;

use crate::fault::throttle::Throttle;
use crate::fault::zero_fill::FirstTouches;
use crate::io::readahead_cache::ReadaheadCache;
use crate::load_control::HeldFault;
use crate::reclaim::cow_copies::Copies;
use crate::space::fault_queue::Waiters;
use crate::space::fork_family::ForkFamily;
use crate::space::id::SpaceId;
use crate::space::lazyfree_ranges::LazyFreeRanges;
use crate::space::page_queue::PageQueue;
use crate::space::unsettled::UnsettledRanges;

/// What is known of the faults of a space for readahead.
#[derive(Debug)]
pub struct ReadaheadState {
    /// Readahead streams of swap-ins.
    pub streams: Streams,
    /// Whether pages that come with others for nothing are wanted.
    pub locality: Locality,
    /// Streams of first touches.
    pub first_touches: FirstTouches,
    /// Streams of soft faults.
    pub soft_faults: Streams,
    /// Pages that were read ahead of their faults, and arrived.
    pub cache: ReadaheadCache,
}

/// Faults of a space that wait.
#[derive(Debug)]
pub struct WaitingFaults {
    /// Pages whose fault waits for something under way; the flag says write.
    pub waiters: Waiters,
    /// Faults that are held.
    pub throttle: Throttle,
    /// Pages whose fault waits for room, in order.
    pub stalled: VecDeque<(u64, bool, Instant)>,
    /// Faults that wait for the turn of the process.
    pub held: Vec<HeldFault>,
}

/// Resident pages of a space that are on no list, or that are not taken like others.
#[derive(Debug)]
pub struct SetAside {
    /// Pages to be unshared before they are moved: a fork had left them shared and nobody shares
    /// them any more, or there is nothing else to take.
    pub shared_pages: BTreeSet<u64>,
    /// Pages of runs that were refused as a whole: to be moved one by one (a mapping's border lies
    /// between them).
    pub alone: BTreeSet<u64>,
    /// Pages that cannot be moved now (protected, locked, pinned, a thread's own); on no list until
    /// they are tried again.
    pub parked: Vec<u64>,
    /// Pages that relatives by fork map too, in the order they were found: taken last, since that
    /// frees nothing until all have given them up.
    pub shared_parked: PageQueue,
    /// Refaults that no shared page has been taken for yet: whoever brings back its own pages again
    /// and again must give up shared ones too.
    pub refaults: u64,
    /// How many pages are still to be looked at for sharing.
    pub sharing: u32,
    /// When the parked pages are tried again.
    pub unpark_at: Instant,
}

/// The pages of a space, counted by the state of their words.
#[derive(Debug)]
pub struct PageCounts {
    /// Resident pages in the table (words in that state).
    pub resident: u64,
    /// Stored pages in the table.
    pub stored: u64,
    /// Evicted pages of zeros in the table.
    pub zeros: u64,
    /// Its pages on the way from order to drop.
    pub under_way: i64,
}

/// What of the memory of a space is registered, as far as changes tell.
#[derive(Debug)]
pub struct Coverage {
    /// Registered ranges as far as events tell.
    pub registered: BTreeMap<u64, u64>,
    /// What fork children to come may not have registered.
    pub unsettled: UnsettledRanges,
    /// Where pages may be left that the program has said it drops.
    pub lazyfree: LazyFreeRanges,
}

/// Where a space was forked from, and what it shares since.
#[derive(Debug)]
pub struct Lineage {
    /// Children it has forked while managed.
    pub forks: u32,
    /// The space it was forked from.
    pub parent: Option<SpaceId>,
    /// The spaces that it may share pages with.
    pub family: ForkFamily,
    /// What writes after a fork copy.
    pub copies: Copies,
}
