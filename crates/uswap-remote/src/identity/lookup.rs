//! The matcher: which process a space belongs to.
//!
//! A fork event carries a userfaultfd and no name, and an address space can outlive its agent
//! (CLONE_VM). Who has the memory is found by trying: those that are likely first, each by a proof
//! ([`crate::identity::probe`]).
//!
//! That means looking at many processes in /proc, so a thread of its own does it: the owner goes on
//! serving.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use uswap_sys::procfs::pagemap::Pagemap;
use uswap_sys::userfaultfd::Userfaultfd;

use crate::identity::probe::ProbeAnswer;
use crate::shared::RemoteMessage;
use crate::{EngineContext, Message};
use uswap_pager::space::id::SpaceId;
use uswap_sys::procfs;

/// The process of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its number.
    pub pid: u32,
    /// The thread by whose id it can be read.
    pub thread: u32,
    /// The page that proved it. `None`: it is believed (a rule switched off).
    pub proof: Option<u64>,
}

impl Found {
    /// Whether it still has the memory in which it was found. It may have executed another program
    /// since, never the reverse; so what is true of a pagemap opened now is true of all that was
    /// opened before.
    pub fn is_current(&self) -> bool {
        let Some(page) = self.proof else { return true };
        Pagemap::open(self.thread).and_then(|pagemap| pagemap.is_present(page)).unwrap_or(false)
    }
}

/// A space to find the process of.
#[derive(Debug)]
pub struct MatchJob {
    /// Owner to be told.
    pub owner: usize,
    /// The space.
    pub space: SpaceId,
    /// Its userfaultfd.
    pub events: Arc<Userfaultfd>,
    /// Its agent's area.
    pub area: u64,
    /// Whoever comes first will do (a rule switched off).
    pub believed: bool,
    /// What was found the last time.
    pub last: Option<Found>,
    /// Process and thread by which it was read so far.
    pub known: Option<(u32, u32)>,
    /// A thread that faulted there, if one did.
    pub thread: Option<u32>,
    /// The process it was forked from, as far as known: a child is one of its children, or of the
    /// engine's once it was orphaned.
    pub parent: Option<u32>,
    /// Its agent is gone: anybody in the tree may have its memory.
    pub orphan: bool,
}

/// Serves jobs until the sender is gone.
pub fn run(shared: &Arc<EngineContext>, jobs: &Receiver<MatchJob>) {
    while let Ok(job) = jobs.recv() {
        let found = find(shared, &job);
        if let Some(found) = found {
            shared.of_memory.tree.admit(found.pid);
        }
        shared.mailboxes[job.owner].post(Message::OfMemory(RemoteMessage::Matched { space: job.space, found }));
    }
}

fn find(shared: &EngineContext, job: &MatchJob) -> Option<Found> {
    // Orphans are looked after all the time, and proofs are few.
    if let Some(last) = job.last.filter(|last| last.proof.is_some() && last.is_current()) {
        return Some(last);
    }
    let suspect = job.thread.and_then(|thread| Some((procfs::process_of_thread(thread)?, thread)));
    // The thread that was read may have left its process, which goes on.
    let same = job.known.into_iter().flat_map(|(pid, _)| procfs::threads(pid).into_iter().map(move |tid| (pid, tid)));
    let engine = std::process::id();
    let relatives = job.parent.into_iter().chain([engine]).flat_map(procfs::children).map(|pid| (pid, pid));
    let mut near = job.known.into_iter().chain(suspect).chain(same).chain(relatives);
    let found = near.find_map(|one| examine(shared, job, one));
    let all = |pids: Vec<u32>| pids.into_iter().find_map(|pid| examine(shared, job, (pid, pid)));
    // A child of a program that was attached to can be anybody's by now.
    let attached = shared.of_memory.tree.is_attached();
    let far =
        || all(shared.of_memory.tree.members()).or_else(|| if attached { all(procfs::everybody()) } else { None });
    found.or_else(|| if job.orphan || attached { far() } else { None })
}

fn examine(shared: &EngineContext, job: &MatchJob, (pid, thread): (u32, u32)) -> Option<Found> {
    if procfs::is_agent_process(pid) {
        return None;
    }
    let pagemap = Pagemap::open(thread).ok()?;
    if job.believed {
        return Some(Found { pid, thread, proof: None });
    }
    match shared.of_memory.prover.ask(&job.events, job.area, &pagemap) {
        ProbeAnswer::Same(page) => Some(Found { pid, thread, proof: Some(page) }),
        ProbeAnswer::Other | ProbeAnswer::Unsure => None,
    }
}
