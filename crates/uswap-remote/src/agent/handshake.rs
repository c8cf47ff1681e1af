//! The handshake with an agent. A fresh image becomes a new space; a fork child's agent joins the
//! space that its memory names (see [`crate::agent::handshake_child`]).

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use uswap_abi::message::{AgentMessage, GO_HAS_FD_AT, GO_REFUSED_AT, MAGIC, WORDS};
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_sys::io::socket::MessageSocket;
use uswap_sys::userfaultfd as uffd;

use crate::Pager;
use crate::Space;
use crate::address_space::Remote;
use crate::agent::absence::AbsencePager;
use crate::agent::handshake_child::HandshakeChildPager;
use crate::agent::link::AgentHello;
use crate::identity::lookup::{Found, MatchJob};
use uswap_pager::context::ManagedProcess;
use uswap_sys::procfs;

/// Interval at which the pager looks for the process of a space in the whole tree.
const SEARCH: Duration = Duration::from_millis(20);

/// Features of the event userfaultfd. POISON and THREAD_ID are used where they help.
pub const EVENT_FEATURES: u64 = uffd::FEATURE_EVENT_FORK
    | uffd::FEATURE_EVENT_REMAP
    | uffd::FEATURE_EVENT_REMOVE
    | uffd::FEATURE_EVENT_UNMAP
    | uffd::FEATURE_THREAD_ID
    | uffd::FEATURE_POISON
    | uffd::FEATURE_MOVE;
/// Features of the staging userfaultfd.
pub const STAGING_FEATURES: u64 = uffd::FEATURE_SIGBUS | uffd::FEATURE_MOVE;

/// Methods that this file adds to [`Pager`].
pub(crate) trait HandshakePager {
    /// Accepts an agent, or refuses it.
    fn greet(&mut self, greeting: AgentHello);
    fn greet_image(&mut self, greeting: AgentHello, events: uffd::Userfaultfd);
    /// Refuses an agent. The user is not told if the process executes another program by now: that
    /// agent has ended with the memory that it served.
    fn refuse(&mut self, greeting: &AgentHello, why: &str);
    /// Publishes the process for the governor, as the one that has this process id.
    fn publish(&self, space: &Space);
    /// Publishes it again, unless another image has its process id now.
    fn publish_again(&self, space: &Space);
    /// The data of the process that the governor gets.
    fn published(&self, space: &Space) -> ManagedProcess;
    /// Looks for the process of a space that has none. A fault names the thread that waits; without
    /// a fault the relatives are tried. A space whose agent is gone can belong to any process of
    /// the tree (CLONE_VM). The answer comes as a message to the pager's mailbox
    /// ([`crate::identity::lookup`]).
    fn find_process(&mut self, space: &mut Space, thread: Option<u32>);
    /// Takes the answer of the matcher thread.
    fn matched(&mut self, space: &mut Space, found: Option<Found>);
    /// Drops the process through which the space was read: it is gone, or is another program now.
    /// The space has no process until another one is found that has its memory.
    fn lose_process(&mut self, space: &mut Space);
}

impl HandshakePager for Pager {
    fn greet(&mut self, mut greeting: AgentHello) {
        self.shared.counters.agents.add(1);
        let without = if self.shared.faults.sleeping_reads { uffd::FEATURE_SIGBUS } else { 0 };
        if let Err(error) = greeting.staging.handshake(STAGING_FEATURES & !without) {
            self.refuse(&greeting, &format!("the staging userfaultfd is refused: {error}"));
        } else if let Some(events) = greeting.events.take() {
            self.greet_image(greeting, events);
        } else {
            self.greet_child(Box::new(greeting), Instant::now());
        }
    }

    fn greet_image(&mut self, greeting: AgentHello, events: uffd::Userfaultfd) {
        // The kernel refuses write protection on a processor whose page tables have no bit for it.
        let wanted = !self.shared.faults.unwatched_copies;
        let protects = wanted && events.handshake(EVENT_FEATURES | uffd::FEATURE_WRITE_PROTECT).is_ok();
        if !protects && let Err(error) = events.handshake(EVENT_FEATURES) {
            return self.refuse(&greeting, &format!("its userfaultfd is refused: {error}"));
        }
        let mut space = Space::new(self.new_id(), Remote::new(events));
        space.lineage.copies.can_be_watched(protects);
        (space.memory.area, space.memory.attached) = (greeting.area, greeting.attached);
        space.policy = self.shared.faults.policy.build();
        if greeting.inherited || greeting.attached.is_some() {
            space.lineage.family.doubt();
        }
        let eyes = eyes(&greeting);
        let mut fds = vec![self.shared.mailboxes[self.number].bell.as_fd()];
        fds.extend(eyes.iter().map(AsFd::as_fd));
        if !space.memory.bind(greeting.pid, greeting.thread)
            || send(&greeting.link.socket, &go(false, false), &fds).is_none()
        {
            return;
        }
        space.memory.nonce = Some(greeting.link.nonce);
        (space.memory.staging, space.memory.agent) = (Some(greeting.staging), Some(greeting.link));
        self.publish(&space);
        if self.watch_agent(&space) {
            self.add_space(space);
        }
    }

    fn refuse(&mut self, greeting: &AgentHello, why: &str) {
        let name = procfs::name(greeting.pid).unwrap_or_default();
        if !name.is_empty() && greeting.is_current() {
            self.shared.notice(format!("{name} (process {}) stays unmanaged: {why}", greeting.pid));
        }
        let _ = send(&greeting.link.socket, &go(false, true), &[]);
    }

    fn publish(&self, space: &Space) {
        if let Some(pid) = space.memory.pid {
            self.shared.managed.insert(pid, self.published(space));
        }
    }

    fn publish_again(&self, space: &Space) {
        if let Some(pid) = space.memory.pid {
            self.shared.managed.update(pid, self.published(space));
        }
    }

    fn published(&self, space: &Space) -> ManagedProcess {
        ManagedProcess {
            name: space.memory.process_name.clone(),
            reader: space.memory.reader,
            space: space.id,
            owner: self.number,
            agent: space.memory.agent.is_some(),
            apart: space.memory.has_agent_apart(),
            active: space.active,
            resident: space.counts.resident,
            staged: space.trays.staged_pages(),
            stored: space.counts.stored,
            queues: [
                space.policy.pages().lists().len(),
                space.trays.filling.len(),
                space.waiting.waiters.len() + space.waiting.stalled.len() + space.lineage.copies.waiting(),
            ],
            set_aside: [space.set_aside.parked.len(), space.set_aside.shared_parked.len()],
            forked: space.lineage.parent.is_some(),
            moves: space.moves.clone(),
            copied: space.lineage.copies.made(),
            kin: space.lineage.family.seen(),
        }
    }

    fn find_process(&mut self, space: &mut Space, thread: Option<u32>) {
        let orphan = space.memory.agent_state.orphaned.is_some();
        space.memory.search.faulted = thread.or(space.memory.search.faulted);
        let soon = thread.is_none() && space.memory.search.last.is_some_and(|at| at.elapsed() < SEARCH);
        if space.memory.pid.is_some() && !orphan || space.memory.search.is_under_way || soon {
            return;
        }
        let parent = space.lineage.parent.and_then(|id| self.spaces.get(&id)).and_then(|parent| parent.memory.pid);
        // A space whose agent is gone is best read through the same process as before, if that
        // process still has its memory.
        let known = space.memory.pid.or(space.memory.search.lost).map(|pid| (pid, space.memory.reader));
        let job = MatchJob {
            owner: self.number,
            space: space.id,
            events: space.memory.events.clone(),
            area: space.memory.area,
            believed: space.memory.nonce.is_some() && self.shared.faults.no_nonce,
            last: space.memory.search.found,
            known,
            thread: space.memory.search.faulted,
            parent,
            orphan,
        };
        space.memory.search.is_under_way = self.shared.of_memory.matches.send(job).is_ok();
        space.memory.search.last = Some(Instant::now());
    }

    fn matched(&mut self, space: &mut Space, found: Option<Found>) {
        space.memory.search.is_under_way = false;
        if found.map(|found| (found.pid, found.thread)) == space.memory.pid.map(|pid| (pid, space.memory.reader)) {
            return;
        }
        self.lose_process(space);
        let bound = found.is_some_and(|found| space.memory.bind(found.pid, found.thread) && found.is_current());
        space.memory.search.found = found.filter(|_| bound);
        if bound {
            self.publish(space);
            self.serve_waiters(space);
        } else {
            space.memory.pid = None;
        }
    }

    fn lose_process(&mut self, space: &mut Space) {
        let Some(pid) = space.memory.pid.take() else { return };
        space.memory.search.lost = Some(pid);
        self.shared.managed.remove(pid, space.id, self.number);
    }
}

/// Opens pagemap and directory of threads for an agent that cannot open them itself. If the engine
/// cannot either, the agent gets none, and ends.
pub fn eyes(greeting: &AgentHello) -> Vec<File> {
    if !greeting.blind {
        return Vec::new();
    }
    let (pagemap, tasks) = (format!("/proc/{}/pagemap", greeting.thread), format!("/proc/{}/task", greeting.pid));
    [pagemap, tasks].iter().filter_map(|path| File::open(path).ok()).collect()
}

/// The message that lets an agent go on. `has_fd`: a descriptor is sent along; `refused`: the
/// program runs without management.
pub fn go(has_fd: bool, refused: bool) -> AgentMessage {
    let mut go = [0; WORDS];
    (go[0], go[GO_HAS_FD_AT], go[GO_REFUSED_AT]) = (MAGIC, u64::from(has_fd), u64::from(refused));
    go
}

/// Sends a message; `None` if the agent is gone.
pub fn send(socket: &MessageSocket, message: &AgentMessage, fds: &[std::os::fd::BorrowedFd<'_>]) -> Option<()> {
    let bytes: Vec<u8> = message.iter().flat_map(|word| word.to_ne_bytes()).collect();
    socket.send(&bytes, fds).ok()
}
