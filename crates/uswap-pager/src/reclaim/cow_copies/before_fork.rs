//! Protection before a fork.
//!
//! While memory is short a program asks before it forks ([`crate::fault::fork_room`]). Its pages
//! are protected then, if their copies may not fit. fork(2) hands the protection on, so parent and
//! child are watched from their first write, and nothing is left to be protected when the fork is
//! read: for a program of 600 MiB that took 8 ms in each of them, in which the other copied as it
//! liked.
//!
//! **If pages are missed.** Pages that are written or installed between the protection and the fork
//! are shared without it. The thread that forks writes some itself. More than [`MISSED`] of them,
//! as where other threads go on, and both are protected after the fork too.
//!
//! **If the fork fails**, or never comes, the next write takes the protection off, once the fork is
//! no longer expected.

use std::time::Instant;

use super::watch::{protect, watch_all_pages};
use super::{Copies, Watch};
use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::fault::fork_room::KEPT;
use crate::space::Space;

/// Pages that may be shared without protection.
const MISSED: u64 = 64;

/// A protection before a fork.
#[derive(Clone, Copy, Debug)]
pub struct BeforeFork {
    at: Instant,
    /// Pages that were written or installed since.
    missed: u64,
}

impl Copies {
    /// Whether the space was protected because it is about to fork.
    pub fn expects_fork(&self) -> bool {
        self.before_fork.is_some_and(|before| before.at.elapsed() < KEPT)
    }

    /// Counts pages that are installed without protection, or lose it.
    pub fn are_unprotected(&mut self, pages: u64) {
        if let Some(before) = &mut self.before_fork {
            before.missed += pages;
        }
    }
}

impl<M: AddressSpace> Pager<M> {
    /// Protects the pages of a space that is about to fork.
    pub fn protect_before_fork(&mut self, space: &mut Space<M>) {
        if matches!(space.lineage.copies.watch, Watch::Never | Watch::Soon) || !self.may_copies_not_fit(space) {
            return;
        }
        if protect(space) {
            space.lineage.copies.watch = Watch::Yes;
            space.lineage.copies.before_fork = Some(BeforeFork { at: Instant::now(), missed: 0 });
        }
    }

    /// Takes what was protected before a fork that has come now. Returns whether parent and child
    /// are protected by it.
    pub fn take_protection_of_fork(&self, parent: &mut Space<M>) -> bool {
        let Some(before) = parent.lineage.copies.before_fork.take() else { return false };
        if before.missed <= MISSED && parent.lineage.copies.watch == Watch::Yes {
            watch_all_pages(parent);
            return true;
        }
        false
    }
}
