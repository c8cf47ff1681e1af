//! Watching programs and agents by their pidfds.

use super::*;

use crate::Pager;
use crate::Space;
use crate::agent::absence::AbsencePager;

/// Methods that this file adds to [`Pager`].
pub(crate) trait ProcessesPager {
    /// Dismisses an agent whose program has ended, or executes another image. Its end is then
    /// handled like that of an agent that ends by itself.
    fn dismiss(&mut self, space: &mut Space);
    /// Kills a dismissed agent that has not ended after a while (stopped, or in a long system
    /// call).
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
