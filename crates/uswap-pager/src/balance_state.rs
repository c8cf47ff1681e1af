//! State of a pager for sharing reclaim out over its spaces and groups.

use std::time::{Duration, Instant};

use crate::space::id::SpaceId;

/// State of a pager for sharing reclaim out over its spaces and groups.
#[derive(Debug)]
pub struct BalanceState {
    /// The space that is looked at first.
    pub next_victim: SpaceId,
    /// Spaces with the number of pages that they can give; kept to reuse its memory.
    pub candidates: Vec<(SpaceId, u64)>,
    /// Groups that are short of memory and for which this pager has nothing under way.
    pub idle_groups: Vec<usize>,
    /// Rounds of pages that relatives by fork give up which this pager has taken part in.
    pub rounds_seen: u64,
    /// When reclaim was last shared out over the spaces, and how long that took.
    pub last: (Instant, Duration),
    /// When pages were last reclaimed for groups.
    pub last_of_groups: Instant,
}
