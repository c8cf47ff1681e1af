//! Holding faults back, and letting them go on.

use super::*;

use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::io::reader::ReadBuffer;
use crate::space::Space;
use uswap_core::{Lease, Need};

impl Throttle {
    /// Whether the fault is inside a system call, or may be.
    fn is_system<M: AddressSpace>(&self, page: u64) -> bool {
        let thread = self.recent.iter().find(|(known, _)| *known == page).map(|(_, thread)| *thread);
        thread.is_none_or(|thread| during(Growth::Telling, || M::is_in_system_call(thread)))
    }
}

impl<M: AddressSpace> Pager<M> {
    /// Takes a buffer for a read of this many pages; it may be smaller. `None`: the fault waits
    /// until other buffers come back.
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
            return waited > if budget.usage() < budget.limit() { MAX_WAIT_FOR_ROOM } else { MAX_WAIT_ABOVE_LIMIT };
        }
        waited > MAX_WAIT_FOR_ROOM_FAR || (waited > HELD && space.waiting.throttle.is_system::<M>(address))
    }
}

/// The holder that the buffers of a space count for: its group, or without groups the space itself.
fn holder<M: AddressSpace>(space: &Space<M>) -> usize {
    space.account.as_ref().map_or(space.id as usize, |account| account.group_number())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::memory::{FakeMemory, IN_CALL};

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
