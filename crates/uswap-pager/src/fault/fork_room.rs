//! Room for a fork.
//!
//! fork(2) copies the page tables of all that a program has, and no event tells of that growth
//! before it has happened. So while memory is short a program asks for leave before it forks, by a
//! fault on a page of the mechanism. The fault waits for room as others do. The room stays reserved
//! for a while ([`KEPT`]), since a program that forks often forks again at once, and its children
//! begin to copy meanwhile.
//!
//! The room is reserved in the budget of the run alone: a measurement of a group would forget it.
//!
//! **If the fork fails**, or never comes, the room is kept for nothing for that time.

use std::time::{Duration, Instant};

use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::space::Space;

/// Pages that a page of a page table covers, and tables that a fork copies, counted in such pages:
/// one in the kernel, and here page words and lists.
const PER_TABLE: u64 = 512;
const TABLES: u64 = 4;
/// Pages that a new process takes besides: stacks, and its agent.
const CHILD: i64 = 64;
/// The part of the limit that is reserved for a fork at most.
const MOST: i64 = 64;
/// How long the room is kept after it was last asked for.
pub const KEPT: Duration = Duration::from_millis(100);

/// Pages that are reserved for the next fork of a space, and until when.
#[derive(Debug, Default)]
pub struct ForkRoom(Option<(i64, Instant)>);

impl<M: AddressSpace> Pager<M> {
    /// Reserves room for a fork of the space, or keeps it for longer.
    pub fn reserve_fork_room(&self, space: &mut Space<M>) {
        let tables = TABLES * (space.counts.resident + space.counts.stored) / PER_TABLE;
        let needed = (tables as i64 + CHILD).min(self.shared.budget.limit() / MOST);
        let pages = space.waiting.fork_room.0.map_or(needed, |(known, _)| known);
        if space.waiting.fork_room.0.is_none() {
            self.shared.budget.arriving(pages);
        }
        space.waiting.fork_room.0 = Some((pages, Instant::now() + KEPT));
    }

    /// Gives the room back whose time is over; with `at_once`, any.
    pub fn give_fork_room_back(&self, space: &mut Space<M>, at_once: bool) {
        let over = space.waiting.fork_room.0.filter(|(_, until)| at_once || Instant::now() >= *until);
        if let Some((pages, _)) = over {
            self.shared.budget.arriving(-pages);
            space.waiting.fork_room.0 = None;
        }
    }
}
