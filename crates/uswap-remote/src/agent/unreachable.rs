//! Callers: processes whose agents cannot reach the engine's socket, and wait until the engine
//! fetches their sockets.
//!
//! A program that another user executes may not follow the path of the engine's socket. A child
//! that was forked after its parent had changed its root directory, its user or its mount namespace
//! does not find the path. The agent of such a process names its thread as [`uswap_abi::message`]
//! says, and offers one end of a pair of sockets; the governor fetches it when it scans the tree
//! for unmanaged programs.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use uswap_sys::io::socket::MessageSocket;
use uswap_sys::process::descriptor_of_thread;

use crate::EngineContext;
use crate::shared::Fetched;
use uswap_pager::context::ManagedProcess;
use uswap_sys::procfs;

/// How long the governor checks a process without an agent for such an offer: an agent waits ten
/// seconds.
const LOOK_TIMEOUT: Duration = Duration::from_secs(11);

/// The processes that the governor checks, and since when; `None` for those that it checks no more.
#[derive(Debug, Default)]
pub struct Callers {
    since: HashMap<u32, Option<Instant>>,
}

impl Callers {
    /// Checks the processes of the tree that have no agent.
    pub fn look(&mut self, shared: &EngineContext, managed: &BTreeMap<u32, ManagedProcess>, tree: &[u32]) {
        let silent = |pid: &&u32| !managed.get(pid).is_some_and(|process| process.agent);
        let silent: Vec<u32> = tree.iter().filter(silent).copied().collect();
        self.since.retain(|pid, _| silent.contains(pid));
        for pid in silent {
            let since = self.since.entry(pid).or_insert_with(|| Some(Instant::now()));
            if since.is_some_and(|since| since.elapsed() > LOOK_TIMEOUT || fetch(shared, pid)) {
                *since = None;
            }
        }
    }
}

/// Whether the process offered a socket, which was fetched (or turned out not to belong to it).
fn fetch(shared: &EngineContext, pid: u32) -> bool {
    let Some((tid, fd)) = procfs::caller(pid) else { return false };
    let found = descriptor_of_thread(tid, fd).and_then(MessageSocket::adopt);
    if let Ok((socket, peer)) = found
        && peer == pid
    {
        shared.of_memory.fetched.lock().expect("fetched").push(Fetched { socket, pid, attached: None });
        shared.main_bell.ring();
    }
    true
}
