//! How a pager shares reclaim out over its spaces and groups.

use std::time::{Duration, Instant};

use crate::space::id::SpaceId;

/// How a pager shares reclaim out over its spaces and groups.
#[derive(Debug)]
pub struct BalanceState {
    /// The space that is looked at first.
    pub next_victim: SpaceId,
    /// Kept for its room: spaces with what they could give.
    pub candidates: Vec<(SpaceId, u64)>,
    /// Groups that are short of memory and for which nothing is under way here.
    pub idle_groups: Vec<usize>,
    /// When reclaim was last shared out over the spaces, and how long that took.
    pub last: (Instant, Duration),
    /// When pages were taken for groups last.
    pub last_of_groups: Instant,
}
