//! Descriptors of the engine, and the measures when they run out.
//!
//! Each managed process needs some descriptors, and the engine does not choose when it gets all of
//! them: the event of a fork brings one, and the parent waits until the event is read. So the
//! engine holds some descriptors in reserve ([`Spares`]). When it can no longer keep the reserve,
//! beside room for files that are opened and closed at once (/proc), it refuses agents; for each
//! fork child it still gives up a spare descriptor. When no spare is left the parent waits for a
//! moment, since other processes may end. When the tree must be killed all spares are given up,
//! since finding the processes to be killed needs descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use uswap_sys::io::spares::{Spares, is_shortage};
use uswap_sys::process;
use uswap_sys::process::kill_on_close::Post;

use crate::EngineContext;
use crate::Pager;
use crate::Space;
use uswap_pager::context::Verdict;

/// Least limit of open files. The engine alone holds 60 descriptors, its reserve included, on two
/// processors and with one device, which leaves room for a handful of processes.
pub const MIN: u64 = 128;
/// Descriptors for each managed process: socket, kill-on-close descriptor, two userfaultfds, a
/// pidfd, and its statm, pagemap, maps and mem as far as they are used.
pub const OF_A_PROCESS: u64 = 8;

/// Spare descriptors for fork children.
const SPARES: usize = 24;
/// Descriptors for files that threads open and close at once.
const HEADROOM: usize = 12;
/// Spare descriptors for finding the processes to be killed: this many for the engine, and as many
/// for the keeper.
const LAST: usize = 4;
/// How long a fork waits for other processes to end.
const FORK_TIMEOUT: Duration = Duration::from_secs(2);

/// The descriptors of the engine.
#[derive(Debug)]
pub struct Descriptors {
    /// The far end of the kill-on-close descriptors of managed processes.
    pub post: Post,
    spares: Spares,
    last: Spares,
    limit: u64,
    told: AtomicBool,
}

/// Whether the limit of open files lets a run begin.
///
/// # Errors
/// A text for the user.
pub fn check_limit() -> Result<(), String> {
    let hard = process::open_files_limit().map_or(u64::MAX, |limit| limit.hard);
    if hard >= MIN {
        return Ok(());
    }
    Err(format!(
        "no more than {hard} files may be open (`ulimit -Hn`): {MIN} are the least, and a managed process takes {OF_A_PROCESS}"
    ))
}

/// The spare descriptors of the keeper. The engine, which shares the keeper's table of descriptors,
/// does not use them.
///
/// # Errors
/// There are no descriptors left.
pub fn of_keeper() -> io::Result<Spares> {
    Spares::hold(LAST)
}

impl Descriptors {
    /// # Errors
    /// There are too few descriptors.
    pub fn new() -> io::Result<Self> {
        let limit = process::open_files_limit().map_or(u64::MAX, |limit| limit.soft);
        Ok(Self {
            post: Post::new()?,
            spares: Spares::hold(SPARES)?,
            last: Spares::hold(LAST)?,
            limit,
            told: AtomicBool::new(false),
        })
    }

    /// Whether another process can be managed. The kernel is not asked while the newest descriptor,
    /// which got the lowest free number, is far below the limit.
    pub fn has_room_for(&self, newest: impl AsFd) -> bool {
        let far = (newest.as_fd().as_raw_fd() as u64) < self.limit / 2;
        far && !self.are_short() || self.refill()
    }

    /// Whether there are fewer spare descriptors than there should be.
    pub fn are_short(&self) -> bool {
        self.spares.are_short()
    }

    /// Fills up the spare descriptors again, if there are free ones.
    pub fn refill(&self) -> bool {
        self.spares.fill(HEADROOM)
    }

    /// Closes a spare descriptor; `false`: there is none.
    pub fn give_up_one(&self) -> bool {
        self.spares.give_up_one()
    }

    /// Closes all spare descriptors, since the tree is about to be killed; from now on no other
    /// thread uses any.
    pub fn give_up_all(&self) {
        self.spares.give_up_all();
        self.last.give_up_all();
    }

    /// Tells the user that descriptors are short, once a run.
    pub fn tell(&self, shared: &EngineContext) {
        if !self.told.swap(true, SeqCst) {
            let text =
                "descriptors have run out: processes that begin now stay unmanaged. A managed process takes about";
            shared.notice(format!("{text} {OF_A_PROCESS}, and the limit (`ulimit -Hn`) is {}", self.limit));
        }
    }
}

/// Methods that this file adds to [`Pager`].
pub(crate) trait FdBudgetPager {
    /// Whether events are to be read at all: not while the tree is being killed, since each event
    /// of a fork takes a descriptor and brings one more process.
    fn may_read_events(&self) -> bool;
    /// Accounts for the descriptor that the event of a fork took: while descriptors are short a
    /// spare one is closed for it, so that other threads still find one.
    fn fork_was_read(&self);
    /// Handles an error of reading events. Returns whether to try again at once.
    fn events_were_refused(&mut self, space: &mut Space, error: &io::Error) -> bool;
}

impl FdBudgetPager for Pager {
    fn may_read_events(&self) -> bool {
        !self.shared.of_memory.descriptors.spares.are_given_up()
    }

    fn fork_was_read(&self) {
        if self.shared.of_memory.descriptors.are_short() {
            self.shared.of_memory.descriptors.give_up_one();
        }
    }

    fn events_were_refused(&mut self, space: &mut Space, error: &io::Error) -> bool {
        let shared = self.shared.clone();
        if is_shortage(error) {
            if shared.of_memory.descriptors.give_up_one() {
                return true;
            }
            let since = *space.memory.changes.starved.get_or_insert_with(Instant::now);
            if since.elapsed() < FORK_TIMEOUT {
                std::thread::sleep(Duration::from_millis(1));
                self.retry_soon();
                return false;
            }
        }
        let pid = space.memory.pid.unwrap_or(0);
        let text = match shared.of_memory.descriptors.limit {
            limit if is_shortage(error) => format!(
                "a fork of process {pid} cannot be followed: {error}. A managed process takes about {OF_A_PROCESS}, and the limit \
                 (`ulimit -Hn`) is {limit}"
            ),
            _ => format!("an event of process {pid} cannot be read: {error}"),
        };
        shared.condemn(Verdict::Broken(text));
        false
    }
}
