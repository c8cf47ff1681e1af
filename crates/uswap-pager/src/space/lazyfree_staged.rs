//! Staged pages that the kernel takes out of their slots because the program had freed them.
//!
//! A page that a program has freed with MADV_FREE and not written again is clean, and the kernel
//! may take such a page at any time: then it is zeros. The kernel takes it wherever it lies by that
//! time, and the pager cannot see that it was freed: it may have been before the memory was
//! managed, or between the reading of the event and the act that it announced. MOVE leaves a clean
//! page clean. So agents write to all pages that they have moved (`make_dirty`), and a page that
//! was written to can only be lost. Until its agent has written to it, a page is marked *clean* in
//! its tray, and stays so if the agent finds it gone: a clean page that is in neither half of its
//! slot is zeros. In a fork child, and when the agent ends, clean pages remain marked.

use uswap_abi::layout::TRAY_PAGES;
use uswap_core::page::word::PageState;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_store::ObjectId;

use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::reclaim::staging::bits;
use crate::space::Space;

impl<M: AddressSpace> Pager<M> {
    /// Turns clean pages of the tray that the kernel has taken into zeros.
    pub fn settle_freed(&mut self, space: &mut Space<M>, number: u32) {
        let tray = space.trays.get(number);
        for bit in bits(tray.clean & tray.live) {
            if !self.shared.faults.mourn_freed && space.is_taken(number * TRAY_PAGES + bit) {
                self.become_zeros(space, number, bit);
            }
        }
    }

    fn become_zeros(&mut self, space: &mut Space<M>, number: u32, bit: u32) {
        self.shared.counters.freed_in_staging.add(1);
        let address = space.trays.get(number).addresses[bit as usize];
        if let Some(copy) = space.table.get(address).kept_copy() {
            self.shared.store.release_cached(ObjectId::from_bits(copy));
        }
        self.evicted_as_zeros(space, number, bit);
    }

    /// Notes that a staged page holds only zeros: it no longer needs its slot.
    pub fn evicted_as_zeros(&mut self, space: &mut Space<M>, number: u32, bit: u32) {
        let tray = space.trays.get_mut(number);
        tray.live &= !(1 << bit);
        let address = tray.addresses[bit as usize];
        let word = space.table.get(address);
        space.table.set(address, word.zero(space.policy.evict(word)));
        space.counts.zeros += 1;
        space.readahead.first_touches.was_zeros();
        self.shared.gauges.zero_pages.add(1);
        self.shared.counters.swpout_zero.add(1);
    }
}

impl<M: AddressSpace> Space<M> {
    /// Whether neither half of the slot holds a page; `false` also where that is unknown.
    fn is_taken(&self, slot: u32) -> bool {
        self.memory.is_slot_empty(slot)
    }

    /// Whether the kernel may have taken the page of this slot.
    pub fn is_clean(&self, slot: u16) -> bool {
        let slot = u32::from(slot);
        self.trays.get(slot / TRAY_PAGES).clean & 1 << (slot % TRAY_PAGES) != 0
    }

    /// Whether the page lies in a staging slot.
    pub fn is_staged(&self, address: u64) -> bool {
        matches!(self.table.get(address).state(), PageState::Staged(_))
    }
}
