//! Callers: processes whose agents cannot reach the door and wait to be fetched.
//!
//! A program that another user executes may not follow the path of the engine's socket, and a child
//! that was forked after its parent had changed its root directory, its user or its mount namespace
//! does not find it. Its agent names its thread as [`uswap_abi::message`] says and offers one end
//! of a pair of sockets; the governor's census comes by.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use uswap_sys::io::socket::MessageSocket;
use uswap_sys::process::descriptor_of_thread;

use crate::EngineContext;
use crate::shared::Fetched;
use uswap_pager::context::ManagedProcess;
use uswap_sys::procfs;

/// How long a process that no agent speaks for is looked at: an agent waits ten seconds.
const LOOK_TIMEOUT: Duration = Duration::from_secs(11);

/// The governor's memory of who was looked at since when; `None` when there is nothing more to be
/// expected.
#[derive(Debug, Default)]
pub struct Callers {
    since: HashMap<u32, Option<Instant>>,
}

impl Callers {
    /// Looks at those of the tree that no agent speaks for.
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

/// Whether the process has called and was fetched (or is not what it says it is).
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
