//! Copies that writes after a fork make.
//!
//! fork(2) leaves all private pages shared, and who writes to one first gets a copy of it. That is
//! growth that no event tells of, and it is fast: two processors copy 4 MiB in a millisecond, ten
//! times as much as is evicted meanwhile. So where there is no room for all that relatives by fork
//! can copy, their pages are write-protected (UFFDIO_WRITEPROTECT, ioctl_userfaultfd(2)): a write
//! raises a fault, and is let through where there is room for the copy. Where there is none it
//! waits for room as every other fault does.
//!
//! 1. *When.* At a fork whose copies may not fit, parent and child are watched at once; all other
//!    relatives as soon as pages are wanted (`balance`). What is registered later in a space that
//!    is watched is watched from its registration on.
//! 2. *How much.* A write lets a run of pages go: [`MIN_RUN`], twice as many as before if it goes
//!    on where the last run ended, up to [`MAX_RUN`]. Only pages that are mapped elsewhere too are
//!    charged (pagemap tells); a run of others costs no room.
//! 3. *What follows.* The page is its space's own from then on, so it goes back to the lists and
//!    can be evicted. What the process shares was asked a while ago, and is less by what was copied
//!    since ([`Copied`]).
//! 4. *The end.* Who has no relatives left has nothing to copy: the first write that is asked for
//!    frees all of its pages.
//!
//! **If the guess is wrong.** A run that is let go and not written is charged until the next
//! measurement. A page that the last of its relatives writes is not copied, though it was charged
//! if the other one went just before. Both are seen as less room for some milliseconds. What a
//! parent copies between its fork and its watch (it is still changing its address space when its
//! fork is read) is not seen: some hundred microseconds of one thread.
//!
//! **What is not explained.** Of some 25 runs of a Python process of 0.6 GiB with eight children
//! that copy all of it, with a build of the time when this was made, one ended with a child that
//! glibc's allocator stopped. The cause was not found, and it was not seen again.
//!
//! **What must not be protected.** The kernel clears the tid word of a thread that ends without
//! waiting for anybody: where a write would raise a fault it gives up, and whoever joins the thread
//! sleeps for ever. So pages of control blocks are left out
//! ([`crate::address_space::AddressSpace::never_protected`]); a child has no thread yet that
//! anybody could join.

pub mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use uswap_core::PAGE;

/// Pages that a write lets go, at least and at most where some are shared, and at most where none
/// is.
const MIN_RUN: u64 = 4;
const MAX_RUN: u64 = 16;
const MAX_EXCLUSIVE: u64 = 512;
/// Who has fewer pages resident is not watched: one part in so many of the budget, within these
/// bounds.
const MIN_PART: i64 = 64;
const MIN_WATCHED: (i64, i64) = (256, 1024);

/// How many pages of a space were let be copied, for whoever counts what it shares. One thread
/// writes it: the space's owner.
#[derive(Clone, Debug, Default)]
pub struct Copied(Arc<AtomicU64>);

impl Copied {
    /// So many so far.
    pub fn pages(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn add(&self, pages: u64) {
        self.0.fetch_add(pages, Relaxed);
    }
}

/// How far a space's writes are watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Watch {
    /// The kernel cannot.
    #[default]
    Never,
    No,
    /// As soon as the kernel lets us.
    Soon,
    Yes,
}

/// What a space's writes copy.
#[derive(Debug, Default)]
pub struct Copies {
    watch: Watch,
    /// Pages whose writers wait, and since when.
    waiting: Vec<(u64, Instant)>,
    /// Where the last run ended, and how long it was.
    next: u64,
    run: u64,
    made: Copied,
    /// Which pages are shared is known: all that are not on a list.
    all_known: bool,
}

impl Copies {
    /// Whether pages can be protected at all; to be told before any memory is registered.
    pub fn can_be_watched(&mut self, can: bool) {
        self.watch = if can { Watch::No } else { Watch::Never };
    }

    /// Of a fork child. Its pages are protected as its parent's were, and all of them are shared.
    #[must_use]
    pub fn inherited(&self) -> Self {
        let watch = if self.watch == Watch::Never { Watch::Never } else { Watch::No };
        Self { watch, ..Self::default() }
    }

    /// Whether memory is to be registered so that its pages can be protected.
    pub fn may_be_watched(&self) -> bool {
        self.watch != Watch::Never
    }

    /// Whether what is on the lists is shared with nobody.
    pub fn are_known(&self) -> bool {
        self.watch == Watch::Yes && self.all_known
    }

    /// Whether they are to be as soon as the kernel lets us.
    pub fn is_wanted(&self) -> bool {
        self.watch == Watch::Soon
    }

    /// Pages whose writers wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// For whoever counts what is shared.
    pub fn made(&self) -> Copied {
        self.made.clone()
    }

    /// The agent is to copy so many pages, to evict its own.
    pub fn unshared(&self, pages: u64) {
        self.made.add(pages);
    }
}

/// Pages that one write lets go.
struct CopyRun {
    start: u64,
    pages: u64,
    /// Of these: mapped elsewhere too.
    shared: u64,
}
