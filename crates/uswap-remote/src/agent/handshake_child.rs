//! The handshake with a fork child's agent: finds which of the forked spaces is the memory of its
//! process.
//!
//! The identity page that the agent read mostly names the right space, but a child that was forked
//! while its parent still had such a page inherits the parent's. So the page only says which space
//! to try first; a proof decides ([`crate::identity::probe`]).
//!
//! The kernel refuses to install anything while the child changes its mappings, and a fork event is
//! applied only when no other change is under way. So the pager tries again with an agent whose
//! space is not found at once, for as long as the agent waits for an answer. When an agent is gone
//! by then, its process has mostly executed another program, as fork children often do.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use uswap_abi::layout::{PAGE, SB, SLOTS};
use uswap_sys::procfs::pagemap::Pagemap;

use crate::Pager;
use crate::Space;
use crate::agent::absence::AbsencePager;
use crate::agent::handshake::HandshakePager;
use crate::agent::handshake::{eyes, go, send};
use crate::agent::link::AgentHello;
use crate::identity::probe::ProbeAnswer;
use uswap_pager::space::id::SpaceId;

/// How long the pager looks for the space of an agent: less than the 10 seconds that the agent
/// waits.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Methods that this file adds to [`Pager`].
pub(crate) trait HandshakeChildPager {
    /// Accepts a fork child's agent, postpones it, or refuses it. `since`: when its greeting came.
    fn greet_child(&mut self, greeting: Box<AgentHello>, since: Instant);
    /// Tries the postponed agents again.
    fn greet_late_children(&mut self);
    fn join(&mut self, id: SpaceId, greeting: AgentHello);
    fn find_child(&mut self, greeting: &AgentHello) -> Option<SpaceId>;
}

impl HandshakeChildPager for Pager {
    fn greet_child(&mut self, greeting: Box<AgentHello>, since: Instant) {
        if let Some(id) = self.find_child(&greeting) {
            self.join(id, *greeting);
        } else if since.elapsed() < SEARCH_TIMEOUT && !self.shared.faults.hasty_greeting && greeting.is_current() {
            self.of_memory.late_children.push((since, greeting));
            self.retry_soon();
        } else {
            self.refuse(&greeting, "no managed process of that identity waits for its agent");
        }
    }

    fn greet_late_children(&mut self) {
        for (since, greeting) in std::mem::take(&mut self.of_memory.late_children) {
            self.greet_child(greeting, since);
        }
    }

    fn join(&mut self, id: SpaceId, greeting: AgentHello) {
        self.with_space(id, |owner, space| {
            let bound = space.memory.bind(greeting.pid, greeting.thread);
            let registered = greeting.staging.register(space.memory.area + SB, u64::from(SLOTS) * PAGE);
            let eyes = eyes(&greeting);
            let mut fds = vec![owner.shared.mailboxes[owner.number].bell.as_fd(), space.memory.events.as_fd()];
            fds.extend(eyes.iter().map(AsFd::as_fd));
            let sent = send(&greeting.link.socket, &go(true, false), &fds);
            if !bound || registered.is_err() || sent.is_none() || greeting.area != space.memory.area {
                return;
            }
            greeting.link.bind();
            space.memory.nonce = Some(greeting.link.nonce);
            (space.memory.staging, space.memory.agent, space.memory.agent_state.orphaned) =
                (Some(greeting.staging), Some(greeting.link), None);
            owner.publish(space);
            owner.watch_agent(space);
        });
        self.with_space(id, |owner, space| owner.serve_waiters(space));
    }

    fn find_child(&mut self, greeting: &AgentHello) -> Option<SpaceId> {
        let mut candidates: Vec<&Space> = self.spaces.values().map(Box::as_ref).collect();
        candidates.retain(|space| {
            space.memory.agent.is_none() && space.memory.identity != 0 && space.memory.area == greeting.area
        });
        candidates.sort_by_key(|space| space.memory.identity != greeting.identity);
        // The agent waits for the pager's answer, and drops the proof page only after it.
        let pagemap = Pagemap::open(greeting.thread).ok()?;
        let prover = &self.shared.of_memory.prover;
        let is_it = |space: &&Space| {
            matches!(prover.ask(&space.memory.events, space.memory.area, &pagemap), ProbeAnswer::Same(_))
        };
        candidates.into_iter().find(is_it).map(|space| space.id)
    }
}
