//! The matcher: which process a space belongs to.
//!
//! A fork event carries a userfaultfd and no name. The owner puts an identity of its own into the child's area, and
//! whoever has it in memory is the child. An address space that outlives its agent (CLONE_VM) is known by the nonce
//! that the agent was given.
//!
//! Looking means reading memory of processes that may drop that page at any moment, or have something quite different
//! there; then the read waits for an owner, perhaps the very one that asked. So a thread of its own reads: the owner
//! goes on serving, and a page that was dropped is put back by the owner it belongs to, with the right identity.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use uswap_sys::pagemap::Pagemap;
use uswap_sys::vmread::{self, RemoteRange};

use crate::procfs;
use crate::shared::{Message, Shared};
use crate::space::SpaceId;

/// What tells an address space from others.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Address of the page that holds it.
    pub page: u64,
    /// Its first words; the second is zero behind an identity.
    pub words: [u64; 2],
    /// Whatever is there will do (a rule switched off).
    pub believed: bool,
}

impl Mark {
    /// The mark of a fork child whose agent has not called yet.
    pub fn identity(page: u64, identity: u64) -> Self {
        Self { page, words: [identity, 0], believed: false }
    }

    /// Whether the memory of `thread` holds it. A page that is missing is not asked for.
    pub fn is_in(&self, thread: u32) -> bool {
        let present = Pagemap::open(thread).and_then(|pagemap| pagemap.is_present(self.page));
        if !present.unwrap_or(false) {
            return false;
        }
        let mut bytes = [0u8; 16];
        let read = vmread::read(thread, &[RemoteRange { start: self.page, length: 16 }], &mut bytes);
        let words = bytes.as_chunks::<8>().0;
        let found = [u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])];
        read.is_ok_and(|n| n == 16) && (self.believed || found == self.words)
    }
}

/// A space to find the process of.
#[derive(Debug)]
pub struct MatchJob {
    /// Owner to be told.
    pub owner: usize,
    /// The space.
    pub space: SpaceId,
    /// What its process holds.
    pub mark: Mark,
    /// Process and thread by which it was read so far.
    pub known: Option<(u32, u32)>,
    /// A thread that faulted there, if one did.
    pub thread: Option<u32>,
    /// The process it was forked from, as far as known: a child is one of its children, or of the engine's once it was
    /// orphaned.
    pub parent: Option<u32>,
    /// Its agent is gone: anybody in the tree may have its memory.
    pub orphan: bool,
}

/// Serves jobs until the sender is gone.
pub fn run(shared: &Arc<Shared>, jobs: &Receiver<MatchJob>) {
    while let Ok(job) = jobs.recv() {
        let found = find(&job);
        shared.mailboxes[job.owner].post(Message::Matched { space: job.space, found });
    }
}

/// Process, and the thread by whose id it can be read.
fn find(job: &MatchJob) -> Option<(u32, u32)> {
    let is_right = |(_, thread): &(u32, u32)| job.mark.is_in(*thread);
    let suspect = job.thread.and_then(|thread| Some((procfs::process_of_thread(thread)?, thread)));
    // The thread that was read may have left its process, which goes on.
    let same = job.known.into_iter().flat_map(|(pid, _)| procfs::threads(pid).into_iter().map(move |tid| (pid, tid)));
    let engine = std::process::id();
    let relatives = job.parent.into_iter().chain([engine]).flat_map(procfs::children).map(|pid| (pid, pid));
    let mut near = job.known.into_iter().chain(suspect).chain(same).chain(relatives);
    let found = near.find(is_right);
    let far = || procfs::descendants(engine).into_iter().map(|pid| (pid, pid)).find(is_right);
    found.or_else(|| if job.orphan { far() } else { None })
}
