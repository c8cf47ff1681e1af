//! Watching programs and agents by their descriptors.

use super::*;

use crate::Pager;
use crate::Space;
use crate::agent::absence::AbsencePager;

/// What this file adds to [`Pager`].
pub(crate) trait ProcessesPager {
    /// The program has ended, or executes another image: its agent has nothing to do any more. What
    /// follows is as when an agent ends by itself.
    fn dismiss(&mut self, space: &mut Space);
    /// An agent that was sent away and is still there after a while (stopped, or in a long system
    /// call) is killed.
    fn see_off(&self, space: &Space);
}

impl ProcessesPager for Pager {
    fn dismiss(&mut self, space: &mut Space) {
        self.unwatch_program(space);
        if space.memory.has_agent_apart()
            && let Some(agent) = &space.memory.agent
        {
            agent.let_go();
            agent.socket.end_sending();
            space.memory.agent_state.dismissed = space.memory.agent_state.dismissed.or_else(|| Some(Instant::now()));
        }
    }

    fn see_off(&self, space: &Space) {
        if space.memory.agent_state.dismissed.is_some_and(|at| at.elapsed() > EXIT_TIMEOUT)
            && let Some(process) = space.memory.agent.as_ref().and_then(|agent| agent.process.as_ref())
        {
            process.kill();
        }
    }
}
