//! Throttling: who waits when buffers or room are short, and for how long.
//!
//! A fault waits for a buffer of the reserve when its group has its share of them (`uswap_core::Reserve`), and for room when
//! the budget is used up. Both come back by themselves: a buffer when a device has answered, room when pages were
//! stored. Nothing that frees memory takes a buffer of the reserve or waits for room, so the wait is for devices alone, whose
//! time is bounded.
//!
//! A fault inside a system call may hold locks that others want (a mapping's, a file's), so it is held a few milliseconds
//! only; then it takes what is left of the reserve, or goes through above the limit. A fault of the program's own code
//! holds nothing: it can wait until a slow device has taken pages. Which of both it is /proc/TID/syscall tells, and is asked
//! only when the few milliseconds are over.

use std::time::{Duration, Instant};

use uswap_core::util::growth::{Growth, during};
use uswap_core::{Lease, Need};

use crate::pager::address_space::AddressSpace;
use crate::pager::event_loop::Pager;
use crate::pager::io::reader::ReadBuffer;
use crate::pager::space::Space;

/// How long a fault inside a system call is held.
const HELD: Duration = Duration::from_millis(4);
/// How long a fault waits for room before it is let through above the limit, where swap is fast.
const PATIENCE: Duration = Duration::from_millis(250);
/// The same above the limit itself, where the kernel may kill: since it may be a system call that waits, with locks that others want.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// The same for the program's own faults where swap is far away: a server may have to be started anew.
const PATIENCE_FAR: Duration = Duration::from_secs(10);
/// How long it waits when nothing is under way that would make room.
const GRACE: Duration = Duration::from_millis(2);
/// Faults whose threads are remembered.
const REMEMBERED: usize = 64;

/// What is known of the faults of a space that wait.
#[derive(Debug)]
pub struct Throttle {
    /// Pages whose faults were refused a buffer, and since when.
    refused: Vec<(u64, Instant)>,
    /// The last faults: page and thread.
    recent: [(u64, u32); REMEMBERED],
    next: usize,
}

impl Default for Throttle {
    fn default() -> Self {
        Self { refused: Vec::with_capacity(REMEMBERED), recent: [(0, 0); REMEMBERED], next: 0 }
    }
}

impl Throttle {
    /// A fault was read.
    pub fn note(&mut self, page: u64, thread: u32) {
        self.recent[self.next % REMEMBERED] = (page, thread);
        self.next += 1;
    }

    /// Whether the fault is one inside a system call, or may be one.
    fn is_system<M: AddressSpace>(&self, page: u64) -> bool {
        let thread = self.recent.iter().find(|(known, _)| *known == page).map(|(_, thread)| *thread);
        thread.is_none_or(|thread| during(Growth::Telling, || M::is_in_system_call(thread)))
    }

    /// The fault waits for a buffer. Returns since when, and whether it is new.
    fn refuse(&mut self, page: u64) -> (Instant, bool) {
        if let Some((_, since)) = self.refused.iter().find(|(known, _)| *known == page) {
            return (*since, false);
        }
        let now = Instant::now();
        // Who is not remembered waits all the same, and is not counted.
        if self.refused.len() < REMEMBERED {
            self.refused.push((page, now));
        }
        (now, true)
    }

    /// It has got one. Returns since when it waited.
    fn granted(&mut self, page: u64) -> Option<Instant> {
        let index = self.refused.iter().position(|(known, _)| *known == page)?;
        Some(self.refused.swap_remove(index).1)
    }

    /// Forgets those who wait no more: their pages were unmapped.
    pub fn forget(&mut self, waits: impl Fn(u64) -> bool) {
        self.refused.retain(|(page, _)| waits(*page));
    }
}

impl<M: AddressSpace> Pager<M> {
    /// A buffer for a read of so many pages, mostly. `None`: the fault waits until others come back.
    pub fn lend_buffer(
        &mut self,
        space: &mut Space<M>,
        address: u64,
        pages: u32,
        need: Need,
    ) -> Option<Lease<ReadBuffer>> {
        let holder = holder(space);
        let reserve = self.shared.readers.reserve();
        let mut lent = reserve.take(holder, pages, need);
        if lent.is_none() && need == Need::Fault {
            let (since, new) = space.waiting.throttle.refuse(address);
            self.shared.counters.throttled.add(u64::from(new));
            if since.elapsed() > HELD && space.waiting.throttle.is_system::<M>(address) {
                lent = reserve.take(holder, 1, Need::System);
            }
        }
        let mut buffer = lent?;
        buffer.pages.clear();
        if need == Need::Fault
            && let Some(since) = space.waiting.throttle.granted(address)
        {
            self.shared.counters.throttled_us.add(since.elapsed().as_micros() as u64);
        }
        Some(buffer)
    }

    /// Whether a fault that waits for room is let through above the limit.
    pub fn is_too_late(&self, space: &Space<M>, address: u64, since: Instant) -> bool {
        let waited = since.elapsed();
        if waited > GRACE && self.is_helpless(space) {
            return true;
        }
        if !self.shared.readers.is_far() {
            let budget = &self.shared.budget;
            return waited > if budget.usage() < budget.limit() { PATIENCE } else { LAST_PATIENCE };
        }
        waited > PATIENCE_FAR || (waited > HELD && space.waiting.throttle.is_system::<M>(address))
    }
}

/// Who a space's buffers count for: its group, or where there are none it alone.
fn holder<M: AddressSpace>(space: &Space<M>) -> usize {
    space.account.as_ref().map_or(space.id as usize, |account| account.group_number())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fake::memory::{FakeMemory, IN_CALL};

    #[test]
    fn a_wait_is_counted_once_and_from_its_beginning() {
        let mut throttle = Throttle::default();
        let (since, new) = throttle.refuse(0x1000);
        assert!(new && throttle.refuse(0x1000) == (since, false));
        assert_eq!((throttle.granted(0x1000), throttle.granted(0x1000)), (Some(since), None));
    }

    #[test]
    fn a_thread_in_its_own_code_is_told_from_one_in_a_system_call() {
        let mut throttle = Throttle::default();
        assert!(throttle.is_system::<FakeMemory>(0x1000), "nothing is known of it");
        throttle.note(0x1000, IN_CALL);
        assert!(throttle.is_system::<FakeMemory>(0x1000));
        throttle.note(0x2000, 1);
        assert!(!throttle.is_system::<FakeMemory>(0x2000));
    }
}
