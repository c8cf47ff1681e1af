//! The matcher: which process a fork child's space belongs to.
//!
//! A fork event carries a userfaultfd and no name. The owner puts an identity of its own into the child's area, and
//! whoever has it in memory is the child. Looking for it means reading memory of processes that may drop that page at
//! any moment; then the read waits for an owner, perhaps the very one that asked. So a thread of its own reads: the owner
//! goes on serving, and a page that was dropped is put back by the owner it belongs to, with the right identity.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use uswap_sys::pagemap::Pagemap;
use uswap_sys::vmread::{self, RemoteRange};

use crate::procfs;
use crate::shared::{Message, Shared};
use crate::space::SpaceId;

/// A space to find the process of.
#[derive(Debug)]
pub struct MatchJob {
    /// Owner to be told.
    pub owner: usize,
    /// The space.
    pub space: SpaceId,
    /// What the page at `page` holds in its process.
    pub identity: u64,
    /// Address of the identity page.
    pub page: u64,
    /// A thread that faulted there, if one did.
    pub thread: Option<u32>,
    /// The process it was forked from, as far as known: the child is one of its children, or of the engine's once it
    /// was orphaned.
    pub parent: Option<u32>,
}

/// Serves jobs until the sender is gone.
pub fn run(shared: &Arc<Shared>, jobs: &Receiver<MatchJob>) {
    while let Ok(job) = jobs.recv() {
        let found = find(&job);
        shared.mailboxes[job.owner].post(Message::Matched { space: job.space, found });
    }
}

/// Process, and the thread by whose id it was read.
fn find(job: &MatchJob) -> Option<(u32, u32)> {
    let suspect = job.thread.and_then(|thread| Some((procfs::process_of_thread(thread)?, thread)));
    let relatives = job.parent.into_iter().chain([std::process::id()]).flat_map(procfs::children);
    let mut suspects = suspect.into_iter().chain(relatives.map(|pid| (pid, pid)));
    suspects.find(|(_, thread)| holds_identity(*thread, job.page, job.identity))
}

/// Whether the memory of `thread` holds `identity` at `page`. A page that is missing is not asked for.
pub fn holds_identity(thread: u32, page: u64, identity: u64) -> bool {
    let Ok(pagemap) = Pagemap::open(thread) else { return false };
    if !pagemap.is_present(page).unwrap_or(false) {
        return false;
    }
    let mut bytes = [0u8; 8];
    let read = vmread::read(thread, &[RemoteRange { start: page, length: 8 }], &mut bytes);
    read.is_ok_and(|n| n == 8) && u64::from_ne_bytes(bytes) == identity
}
