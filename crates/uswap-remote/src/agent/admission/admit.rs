//! Admitting new programs, one after the other, where there is room.

use super::*;

use crate::Pager;
use crate::agent::handshake::HandshakePager;

/// Methods that this file adds to [`Pager`].
pub(crate) trait AdmissionPager {
    /// Takes the greeting of an agent: admits its program now, or puts it into the admission queue.
    fn receive_hello(&mut self, greeting: Box<AgentHello>);
    /// Admits programs that have waited long enough, or for which there is room.
    fn open_lobby(&mut self);
    fn let_in(&mut self, greeting: AgentHello);
    fn may_enter(&self) -> bool;
}

impl AdmissionPager for Pager {
    fn receive_hello(&mut self, greeting: Box<AgentHello>) {
        if greeting.events.is_none() || self.of_memory.lobby.waiting.is_empty() && self.may_enter() {
            return self.let_in(*greeting);
        }
        self.shared.counters.throttled.add(1);
        self.of_memory.lobby.waiting.push_back((Instant::now(), greeting));
        self.retry_soon();
    }

    fn open_lobby(&mut self) {
        while let Some((since, greeting)) = self.of_memory.lobby.waiting.pop_front() {
            if since.elapsed() < MAX_WAIT && !self.may_enter() {
                self.of_memory.lobby.waiting.push_front((since, greeting));
                return self.retry_soon();
            }
            self.let_in(*greeting);
        }
    }

    fn let_in(&mut self, greeting: AgentHello) {
        self.of_memory.lobby.entered = Instant::now();
        self.greet(greeting);
    }

    fn may_enter(&self) -> bool {
        let budget = &self.shared.budget;
        let calm = budget.usage() <= budget.low() || self.of_memory.lobby.entered.elapsed() >= APART;
        calm && (budget.has_room(ENTRANCE) || self.is_run_helpless())
    }
}
