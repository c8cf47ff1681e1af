//! Descriptors of the engine, and what is done when they run out.
//!
//! Each managed process costs some, and not all are asked for: the event of a fork brings one, and
//! as long as it cannot be read the parent waits. So some are held in reserve ([`Spares`]). When
//! they can no longer be kept, beside room for what is opened and closed at once (/proc), agents
//! are turned away; each fork child is still taken in, for a spare one. When none is left its
//! parent waits, for a moment: others may end. And when the tree must be killed all are given up,
//! since who is to be killed has to be looked for.

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

/// The engine alone holds 60, its reserve included, on two processors and with one device: room for
/// a handful of processes.
pub const MIN: u64 = 128;
/// Each managed process: socket, leash, two userfaultfds, a pidfd, and its statm, pagemap, maps and
/// mem as far as they are used.
pub const OF_A_PROCESS: u64 = 8;

/// Fork children for whom there is no other descriptor.
const SPARES: usize = 24;
/// What threads open and close at once.
const HEADROOM: usize = 12;
/// To look for whom there is to kill: the engine's, and the keeper's own.
const LAST: usize = 4;
/// How long a fork waits for others to end.
const FORK_TIMEOUT: Duration = Duration::from_secs(2);

/// Those of the engine.
#[derive(Debug)]
pub struct Descriptors {
    /// What the leashes of managed processes end at.
    pub post: Post,
    spares: Spares,
    last: Spares,
    limit: u64,
    told: AtomicBool,
}

/// Whether the limit of open files lets a run begin.
///
/// # Errors
/// For the user.
pub fn check_limit() -> Result<(), String> {
    let hard = process::open_files_limit().map_or(u64::MAX, |limit| limit.hard);
    if hard >= MIN {
        return Ok(());
    }
    Err(format!(
        "no more than {hard} files may be open (`ulimit -Hn`): {MIN} are the least, and a managed process takes {OF_A_PROCESS}"
    ))
}

/// The keeper's own, which nobody else touches: it shares its table with the engine.
///
/// # Errors
/// There are none.
pub fn of_keeper() -> io::Result<Spares> {
    Spares::hold(LAST)
}

impl Descriptors {
    /// # Errors
    /// There are too few.
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

    /// Whether another process can be managed. Not asked of the kernel as long as the newest
    /// descriptor, which has the lowest number that was free, is far from the limit.
    pub fn has_room_for(&self, newest: impl AsFd) -> bool {
        let far = (newest.as_fd().as_raw_fd() as u64) < self.limit / 2;
        far && !self.are_short() || self.refill()
    }

    /// Whether there are fewer than there should be.
    pub fn are_short(&self) -> bool {
        self.spares.are_short()
    }

    /// Takes back what was given up, if it is there.
    pub fn refill(&self) -> bool {
        self.spares.fill(HEADROOM)
    }

    /// Lets a spare one go; `false`: there is none.
    pub fn give_up_one(&self) -> bool {
        self.spares.give_up_one()
    }

    /// The tree is about to be killed: nobody else takes any now.
    pub fn give_up_all(&self) {
        self.spares.give_up_all();
        self.last.give_up_all();
    }

    /// Tells the user, once a run.
    pub fn tell(&self, shared: &EngineContext) {
        if !self.told.swap(true, SeqCst) {
            let text =
                "descriptors have run out: processes that begin now stay unmanaged. A managed process takes about";
            shared.notice(format!("{text} {OF_A_PROCESS}, and the limit (`ulimit -Hn`) is {}", self.limit));
        }
    }
}

/// What this file adds to [`Pager`].
pub(crate) trait FdBudgetPager {
    /// Whether events are to be read at all: not by those whose tree is being killed, for whom a
    /// fork child is one more.
    fn may_read_events(&self) -> bool;
    /// The event of a fork took a descriptor: as long as they are short that is a spare one, so
    /// that others find theirs.
    fn fork_was_read(&self);
    /// Events could not be read; whether to try again at once.
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
