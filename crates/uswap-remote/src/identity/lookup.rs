//! The matcher: finds the process that a space belongs to.
//!
//! A fork event carries a userfaultfd and no name, and an address space can outlive its agent
//! (CLONE_VM). The process that has the memory is found by testing candidates, the likely ones
//! first, each with a proof ([`crate::identity::probe`]).
//!
//! That can mean reading /proc files of many processes, so a separate thread does it, while the
//! pager thread goes on serving faults.

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
    /// Its process id.
    pub pid: u32,
    /// The thread through which its memory can be read.
    pub thread: u32,
    /// Address of the page that proved it. `None`: there is no proof (a rule switched off).
    pub proof: Option<u64>,
}

impl Found {
    /// Whether the process still has the memory of the space. It may have executed another program
    /// since, and cannot get the old memory back. So if a pagemap that is opened now shows the
    /// proof, all its files that were opened before belong to that memory too.
    pub fn is_current(&self) -> bool {
        let Some(page) = self.proof else { return true };
        Pagemap::open(self.thread).and_then(|pagemap| pagemap.is_present(page)).unwrap_or(false)
    }
}

/// A request to find the process of a space.
#[derive(Debug)]
pub struct MatchJob {
    /// The pager thread that gets the answer.
    pub owner: usize,
    /// The space.
    pub space: SpaceId,
    /// Its userfaultfd.
    pub events: Arc<Userfaultfd>,
    /// Its agent's area.
    pub area: u64,
    /// The first candidate is taken without a proof (a rule switched off).
    pub believed: bool,
    /// The last answer for this space.
    pub last: Option<Found>,
    /// Process and thread through which the space was read so far.
    pub known: Option<(u32, u32)>,
    /// A thread that faulted in the space, if one did.
    pub thread: Option<u32>,
    /// The process from which the space was forked, if it is known. The process of the space is
    /// among its children, or among the engine's once its parent has ended.
    pub parent: Option<u32>,
    /// The agent of the space is gone: any process of the tree may have its memory.
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
    // Spaces without an agent are looked up again and again, and there are few proof pages.
    if let Some(last) = job.last.filter(|last| last.proof.is_some() && last.is_current()) {
        return Some(last);
    }
    let suspect = job.thread.and_then(|thread| Some((procfs::process_of_thread(thread)?, thread)));
    // The thread through which the space was read may have ended while its process goes on.
    let same = job.known.into_iter().flat_map(|(pid, _)| procfs::threads(pid).into_iter().map(move |tid| (pid, tid)));
    let engine = std::process::id();
    let relatives = job.parent.into_iter().chain([engine]).flat_map(procfs::children).map(|pid| (pid, pid));
    let mut near = job.known.into_iter().chain(suspect).chain(same).chain(relatives);
    let found = near.find_map(|one| examine(shared, job, one));
    let all = |pids: Vec<u32>| pids.into_iter().find_map(|pid| examine(shared, job, (pid, pid)));
    // A child of a program that was attached to can have any process as its parent by now.
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
