//! Copies that writes make after a fork.
//!
//! fork(2) leaves all private pages shared, and the process that first writes to a page gets a copy
//! of it. No event reports this growth, and it is fast: two processors copy 4 MiB in a millisecond,
//! ten times as much as is evicted meanwhile. So where there is no room for all pages that
//! relatives by fork can copy, their pages are write-protected (UFFDIO_WRITEPROTECT,
//! ioctl_userfaultfd(2)): a write raises a fault, and is let through where there is room for the
//! copy. Otherwise it waits for room as every other fault does.
//!
//! 1. *When.* At a fork whose copies may not fit, parent and child are watched at once, or before
//!    it ([`before_fork`]); all other relatives as soon as pages are wanted (`balance`). Memory
//!    that is registered later in a watched space is watched from its registration on.
//! 2. *How much.* A write lets a run of pages go: [`MIN_RUN`], twice as many as before if it goes
//!    on where the last run ended, up to [`MAX_RUN`]. Only pages that another process maps too are
//!    charged (pagemap tells); a run of other pages needs no room.
//! 3. *Afterwards.* From then on the page belongs to its space alone, so it goes back to the lists
//!    and can be evicted. The number of pages that the process shares was measured a while ago, and
//!    is reduced by the pages copied since ([`Copied`]).
//! 4. *The end.* A process without relatives has nothing to copy: its next write fault takes the
//!    protection off all its pages.
//!
//! **If the guess is wrong.** A run that is unprotected and not written is charged until the next
//! measurement. A page that only one process still maps is not copied when it is written, but it
//! was charged if the other process ended just before. Both cost some room for some milliseconds.
//! Pages that a parent copies between its fork and the beginning of its watch (it is still changing
//! its address space when its fork is read) are not seen: some hundred microseconds of one thread.
//!
//! **Not explained.** Of some 25 runs of a Python process of 0.6 GiB with eight children that copy
//! all of it, with a build from the time when this was written, one ended with a child that glibc's
//! allocator aborted. The cause was not found, and the failure was not seen again.
//!
//! **Pages that must not be protected.** When a thread ends, the kernel clears its tid word without
//! waiting: where this write would raise a fault the kernel gives up, and a thread that joins the
//! ended one sleeps for ever. So pages of thread control blocks are left out
//! ([`crate::address_space::AddressSpace::never_protected`]); a fork child has no second thread yet
//! that could be joined.

pub mod before_fork;
pub mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use before_fork::BeforeFork;
use uswap_core::PAGE;

/// Pages that one write lets go: at least, and at most where some are shared, and at most where
/// none is.
const MIN_RUN: u64 = 4;
const MAX_RUN: u64 = 16;
const MAX_EXCLUSIVE: u64 = 512;
/// A space with fewer resident pages is not watched: one part in `MIN_PART` of the budget, within
/// the bounds `MIN_WATCHED`.
const MIN_PART: i64 = 64;
const MIN_WATCHED: (i64, i64) = (256, 1024);

/// Number of pages of a space that writes were allowed to copy, for the accounting of shared pages.
/// Only the pager that owns the space writes it.
#[derive(Clone, Debug, Default)]
pub struct Copied(Arc<AtomicU64>);

impl Copied {
    /// Number of pages so far.
    pub fn pages(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn add(&self, pages: u64) {
        self.0.fetch_add(pages, Relaxed);
    }
}

/// Whether the writes of a space are watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Watch {
    /// The kernel cannot protect pages.
    #[default]
    Never,
    No,
    /// As soon as the kernel allows it.
    Soon,
    Yes,
}

/// The copies that writes to a space make.
#[derive(Debug, Default)]
pub struct Copies {
    watch: Watch,
    /// Pages with a write that waits, and since when.
    waiting: Vec<(u64, Instant)>,
    /// Where the last run ended, and how long it was.
    next: u64,
    run: u64,
    made: Copied,
    /// Whether it is known which pages are shared: all that are not on a list.
    all_known: bool,
    before_fork: Option<BeforeFork>,
}

impl Copies {
    /// Sets whether pages can be protected at all; to be called before any memory is registered.
    pub fn can_be_watched(&mut self, can: bool) {
        self.watch = if can { Watch::No } else { Watch::Never };
    }

    /// The state of a fork child. Its pages are protected as those of its parent were, and all of
    /// them are shared.
    #[must_use]
    pub fn inherited(&self) -> Self {
        let watch = if self.watch == Watch::Never { Watch::Never } else { Watch::No };
        Self { watch, ..Self::default() }
    }

    /// Whether memory must be registered in such a way that its pages can be protected.
    pub fn may_be_watched(&self) -> bool {
        self.watch != Watch::Never
    }

    /// Whether the pages on the lists are known not to be shared.
    pub fn are_known(&self) -> bool {
        self.watch == Watch::Yes && self.all_known
    }

    /// Whether writes are to be watched as soon as the kernel allows it.
    pub fn is_wanted(&self) -> bool {
        self.watch == Watch::Soon
    }

    /// Number of pages with a write that waits.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The counter of copied pages, for the accounting of shared pages.
    pub fn made(&self) -> Copied {
        self.made.clone()
    }

    /// Counts pages that the agent is to copy before they are evicted.
    pub fn unshared(&self, pages: u64) {
        self.made.add(pages);
    }
}

/// The pages that one write lets go.
struct CopyRun {
    start: u64,
    pages: u64,
    /// How many of them another process maps too.
    shared: u64,
}
