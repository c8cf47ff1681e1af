//! Reading the events of a userfaultfd: faults, and changes of the mappings.

use uswap_abi::layout::PAGE;
use uswap_core::util::growth::{Growth, during};
use uswap_sys::userfaultfd::Event;

use crate::agent::handshake::HandshakePager;
use crate::events::hook_notes::HookNotesPager;
use crate::fd_budget::FdBudgetPager;
use crate::{Pager, Space};
use uswap_pager::event_loop::Fault;

/// How often the pager thread yields the processor to a thread whose change is under way.
const QUIET_TRIES: u32 = 32;

/// Methods that this file adds to [`Pager`].
pub(crate) trait ReadingPager {
    /// Reads until no event is left and, if there were changes, none is under way. Returns `false`
    /// if one still is.
    fn read_changes(&mut self, space: &mut Space, faults: &mut Vec<Fault>) -> bool;
    /// Reads some events: faults are put aside, changes go into the window. `true` when there may
    /// be more.
    fn read_events(&mut self, space: &mut Space, faults: &mut Vec<Fault>) -> bool;
}

impl ReadingPager for Pager {
    fn read_changes(&mut self, space: &mut Space, faults: &mut Vec<Fault>) -> bool {
        for _ in 0..QUIET_TRIES {
            while self.read_events(space, faults) {}
            if space.memory.changes.window.is_empty()
                || self.shared.faults.order_as_read
                || space.memory.events.is_quiet(space.memory.area)
            {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    fn read_events(&mut self, space: &mut Space, faults: &mut Vec<Fault>) -> bool {
        if !self.may_read_events() {
            return false;
        }
        let mut events = std::mem::take(&mut self.of_memory.events);
        let more = match space.memory.events.read_events(&mut events) {
            Ok(more) => {
                space.memory.changes.starved = None;
                more
            }
            Err(error) => self.events_were_refused(space, &error),
        };
        let notice = space.memory.notice_page();
        let is_notice = |event: &Event| matches!(event, Event::Remove { start, .. } if *start == notice);
        let mut notices = events.iter().filter(|event| is_notice(event)).count() as u64;
        for event in events.drain(..) {
            if let Event::Fault { address, write, protected, thread } = event {
                self.shared.counters.pgfault.add(1);
                let agent = space.memory.agent.as_ref().map_or(0, |_| space.memory.reader);
                during(Growth::AddressSpaces, || {
                    self.find_process(space, Some(thread));
                    self.of_memory.placement.fault(thread, space.memory.pid.unwrap_or(0), agent);
                    space.waiting.throttle.note(address & !(PAGE - 1), thread);
                    faults.push(Fault { address: address & !(PAGE - 1), write, protected, thread });
                });
            } else {
                if matches!(event, Event::Fork(_)) {
                    self.fork_was_read();
                }
                self.shared.faults.pause(self.shared.faults.delay_apply);
                if is_notice(&event) {
                    notices -= 1;
                    during(Growth::AddressSpaces, || self.read_notes(space, notices));
                }
                during(Growth::AddressSpaces, || space.memory.note_change(event, &space.coverage.registered));
            }
        }
        self.of_memory.events = events;
        more
    }
}
