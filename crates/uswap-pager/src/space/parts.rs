//! The parts of a space: small structs, each for one concern of the pager.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Instant;

use uswap_core::readahead::neighbours::Neighbours;
use uswap_core::readahead::streams::Streams;

use crate::fault::fork_room::ForkRoom;
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

/// The state of readahead for a space.
#[derive(Debug)]
pub struct ReadaheadState {
    /// Readahead streams of swap-ins.
    pub streams: Streams,
    /// How far neighbours that come along at little cost are used.
    pub neighbours: Neighbours,
    /// Streams of first touches.
    pub first_touches: FirstTouches,
    /// Streams of soft faults.
    pub soft_faults: Streams,
    /// Pages that were read ahead of their faults and have arrived.
    pub cache: ReadaheadCache,
}

/// Faults of a space that wait.
#[derive(Debug)]
pub struct WaitingFaults {
    /// Pages whose fault waits for something under way; the flag says whether a write waits.
    pub waiters: Waiters,
    /// Faults that are held back.
    pub throttle: Throttle,
    /// Pages whose fault waits for room, in order.
    pub stalled: VecDeque<(u64, bool, Instant)>,
    /// Room for the next fork.
    pub fork_room: ForkRoom,
    /// Faults that wait for the turn of the process.
    pub held: Vec<HeldFault>,
}

/// Resident pages of a space that are on no list, or that are taken in a special way.
#[derive(Debug)]
pub struct SetAside {
    /// Pages to be unshared before they are moved: a fork had left them shared and no other process
    /// shares them any more, or there are no other pages to take.
    pub shared_pages: BTreeSet<u64>,
    /// Pages of runs that were refused as a whole: they are moved one by one (a border of a mapping
    /// may lie between them).
    pub alone: BTreeSet<u64>,
    /// Pages that cannot be moved now (protected, locked, pinned, or needed by a thread); they are
    /// on no list until they are tried again.
    pub parked: Vec<u64>,
    /// Pages that relatives by fork map too, in the order in which they were found. They are taken
    /// last, since that frees no memory until all relatives have given them up.
    pub shared_parked: PageQueue,
    /// Refaults for which no shared page has been taken yet: a process that brings back its own
    /// pages again and again must give up shared ones too.
    pub refaults: u64,
    /// Number of pages that are still to be checked for sharing.
    pub sharing: u32,
    /// When the parked pages are tried again.
    pub unpark_at: Instant,
}

/// The pages of a space, counted by the state of their words.
#[derive(Debug)]
pub struct PageCounts {
    /// Resident pages in the table.
    pub resident: u64,
    /// Stored pages in the table.
    pub stored: u64,
    /// Evicted pages of zeros in the table.
    pub zeros: u64,
    /// Pages that are being evicted, from the order to the drop.
    pub under_way: i64,
}

/// The registered parts of the memory of a space, as far as changes tell.
#[derive(Debug)]
pub struct Coverage {
    /// Registered ranges, as far as changes tell: from the start to the end.
    pub registered: BTreeMap<u64, u64>,
    /// Ranges that later fork children may not have registered.
    pub unsettled: UnsettledRanges,
    /// Ranges in which pages may be left that the program has freed.
    pub lazyfree: LazyFreeRanges,
    /// Registered pages that are never evicted: a thread that begins may have its control block
    /// there.
    pub spared: BTreeSet<u64>,
}

impl Coverage {
    /// The registered range that `address` lies in.
    pub fn range_of(&self, address: u64) -> Option<Range<u64>> {
        let (start, end) = self.registered.range(..=address).next_back()?;
        (*end > address).then_some(*start..*end)
    }
}

/// The origin of a space by fork, and the pages it shares since.
#[derive(Debug)]
pub struct Lineage {
    /// Number of children it has forked while managed.
    pub forks: u32,
    /// The space it was forked from.
    pub parent: Option<SpaceId>,
    /// The spaces that it may share pages with.
    pub family: ForkFamily,
    /// The copies that writes make after a fork.
    pub copies: Copies,
}
