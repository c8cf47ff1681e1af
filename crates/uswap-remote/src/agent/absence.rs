//! Handling of an agent that stops, closes its socket or has ended.

use std::time::Instant;

use uswap_core::util::growth::{Growth, during};
use uswap_sys::procfs;

use crate::agent::handshake::HandshakePager;
use crate::agent::link::AgentLink;
use crate::{Pager, Space};
use uswap_pager::event_loop::token;

/// Event sources of a space beside its userfaultfd: the agent's socket, and the end of the program.
pub const SOCKET: u64 = 2;
const PROGRAM: u64 = 3;

/// Methods that this file adds to [`Pager`].
pub(crate) trait AbsencePager {
    /// Polls the socket of a space's agent, and the program's pidfd if the agent is a separate
    /// process.
    fn watch_agent(&self, space: &Space) -> bool;
    /// Stops polling for the end of the program.
    fn unwatch_program(&self, space: &Space);
    /// Stops polling the agent's socket.
    fn unwatch(&self, agent: &AgentLink);
    /// Handles input on the agent's socket, which can only be its end.
    fn agent_hung_up(&mut self, space: &mut Space);
    fn look_after_hang_up(&mut self, space: &mut Space);
    /// Drops an agent that is gone. Its pending orders will not be executed; the pager looks up how
    /// far it got with the last one. Another process may still have the memory (CLONE_VM without
    /// CLONE_THREAD), even when the process itself executes another program now.
    fn forget_agent(&mut self, space: &mut Space);
    /// Checks whether the agent is stopped. Orders to a stopped agent do not count as under way:
    /// faults must not wait for the room that they would make.
    fn look_whether_stopped(&mut self, space: &mut Space);
}

impl AbsencePager for Pager {
    fn watch_agent(&self, space: &Space) -> bool {
        let Some(agent) = &space.memory.agent else { return false };
        let program =
            agent.process.as_ref().map_or(Ok(()), |it| self.poller.add(&it.program, token(space.id, PROGRAM)));
        program.is_ok() && self.poller.add(&agent.socket, token(space.id, SOCKET)).is_ok()
    }

    fn unwatch_program(&self, space: &Space) {
        if let Some(process) = space.memory.agent.as_ref().and_then(|agent| agent.process.as_ref()) {
            self.poller.remove(&process.program);
        }
    }

    fn unwatch(&self, agent: &AgentLink) {
        self.poller.remove(&agent.socket);
    }

    fn agent_hung_up(&mut self, space: &mut Space) {
        during(Growth::AddressSpaces, || self.look_after_hang_up(space));
    }

    fn look_after_hang_up(&mut self, space: &mut Space) {
        let Some(agent) = space.memory.agent.as_ref() else { return };
        let mut byte = [0u8; 64];
        match agent.socket.receive(&mut byte) {
            Ok((n, _)) if n > 0 => return,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            _ => {}
        }
        self.poller.remove(&agent.socket);
        self.unwatch_program(space);
        self.forget_agent(space);
        self.retry_soon();
    }

    fn forget_agent(&mut self, space: &mut Space) {
        self.absorb(space);
        space.memory.agent = None;
        space.memory.agent_state.gate_pending = false;
        space.memory.agent_state.orphaned = Some(Instant::now());
        self.settle_orphans(space);
        self.lose_process(space);
    }

    fn look_whether_stopped(&mut self, space: &mut Space) {
        let pending = !space.trays.filling.is_empty() || !space.trays.dropping.is_empty();
        space.memory.agent_state.stopped = space.memory.agent.is_some()
            && (pending || space.memory.agent_state.stopped)
            && procfs::is_stopped(space.memory.reader);
        if space.memory.agent_state.stopped {
            let charged = space.trays.forgo_drops();
            self.under_way(space, -i64::from(charged));
        }
    }
}
