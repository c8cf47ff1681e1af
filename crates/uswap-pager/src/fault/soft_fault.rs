//! The soft fault: a staged page comes back to the program from its slot.
//!
//! The page that was touched becomes active: finding pages in use is the purpose of staging. Where
//! touches follow one another, the staged pages behind the first come along: in one reading and one
//! installation, for the price of one fault. They have not been touched yet, so they begin
//! inactive.

use std::time::Instant;
use uswap_core::PAGE;

use uswap_abi::layout::TRAY_PAGES;
use uswap_core::PAGE_SIZE;
use uswap_core::page::word::PageState;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::util::growth::{Growth, during};

use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::fault::install::{installed_bytes, shorten};
use crate::fault::served::Served;
use crate::latency::LatencyTier;
use crate::reclaim::staging::{Phase, StagingBatch};
use crate::space::Space;

/// Maximum number of pages that come with one soft fault. They are read into the buffer behind its
/// first page.
const MAX_STAGED: usize = 32;
/// Attempts to read a staged page, a millisecond apart, before it is given up as lost.
const MAX_FAILED_READS: u32 = 2000;

impl<M: AddressSpace> Pager<M> {
    /// Brings a staged page back: a soft fault, which counts as a reference.
    pub fn unstage(&mut self, space: &mut Space<M>, address: u64, slot: u16, write: bool, since: Instant) -> Served {
        let (tray, _) = space.trays.of_slot(slot);
        if tray.phase == Phase::Filling {
            return Served::Wait;
        }
        let inherited = tray.inherited;
        if !M::can_read(self, space) {
            self.retry_soon();
            return Served::Wait;
        }
        if space.is_clean(slot) {
            self.settle_freed(space, u32::from(slot) / TRAY_PAGES);
            if !space.is_staged(address) {
                return self.install_zeros(space, address, write, since);
            }
        }
        let window = space.readahead.soft_faults.window(address, self.most_along(space, MAX_STAGED as u32)).pages;
        let alone = inherited || !space.memory.reads_many();
        let mut pages = if alone { 1 } else { self.staged_run(space, address, window) };
        let Some(from) = space.memory.place_of(u32::from(slot), inherited) else {
            return self.unreadable(space, address);
        };
        if pages > 1 && !self.read_staged(space, address, from, pages) {
            pages = 1;
        }
        if pages == 1 && !self.read_staged(space, address, from, 1) {
            return self.unreadable(space, address);
        }
        space.failed_reads = 0;
        self.shared.faults.pause(self.shared.faults.delay_install);
        let bytes = &self.buffer[PAGE_SIZE..];
        let (result, length) = shorten(pages * PAGE, |length| space.memory.copy(address, &bytes[..length as usize]));
        let served = self.finish_install(space, address, length, result);
        let done = installed_bytes(result, length);
        if done > 0 {
            space.readahead.soft_faults.advance(address + done);
            self.note_mapped(space, address, done);
            let took = since.elapsed();
            self.shared.latencies.record(LatencyTier::Staged, took);
            if let Some(cost) = space.expense.soft_fault(took, since + took) {
                space.policy.soft_faults_cost(cost);
            }
        }
        served
    }

    /// Number of pages from `address` on, at most `window`, that lie staged and can be read
    /// together with it. Pages that the kernel may have taken meanwhile do not count.
    fn staged_run(&self, space: &Space<M>, address: u64, window: u32) -> u64 {
        let is_readable = |tray: &StagingBatch| tray.phase != Phase::Filling && !tray.inherited;
        self.run_of(space, address, window, |state| match state {
            PageState::Staged(slot) => {
                !space.is_clean(slot) && is_readable(space.trays.get(u32::from(slot) / TRAY_PAGES))
            }
            _ => false,
        })
    }

    /// Marks the first `done` bytes from `address` on as mapped again; only the first page was
    /// touched.
    fn note_mapped(&mut self, space: &mut Space<M>, address: u64, done: u64) {
        for page in (address..address + done).step_by(PAGE_SIZE) {
            let word = space.table.get(page);
            let PageState::Staged(slot) = word.state() else { continue };
            let (tray, bit) = space.trays.of_slot(slot);
            tray.live &= !(1 << bit);
            let touched = page == address;
            if touched {
                self.shared.counters.soft_faults.add(1);
                self.shared.touched(space.id, page);
                space.policy.soft_fault(word);
            } else {
                self.shared.counters.staged_ra.add(1);
            }
            self.become_resident(space, page, word.resident().set_active(touched));
        }
    }

    /// Handles a staged page that could not be read: the process is ending, or it is tried again,
    /// or after the last attempt its bytes are lost.
    fn unreadable(&mut self, space: &mut Space<M>, address: u64) -> Served {
        if self.is_over(space) {
            return Served::Done;
        }
        space.failed_reads += 1;
        if space.failed_reads < MAX_FAILED_READS {
            return Served::Wait;
        }
        during(Growth::Telling, || self.lost(space, address, "its staging slot cannot be read"))
    }

    /// Reads `pages` staged pages together, into the buffer behind its first page. The first one
    /// lies at `from`.
    pub fn read_staged(&mut self, space: &Space<M>, address: u64, from: u64, pages: u64) -> bool {
        let mut places = [from; MAX_STAGED];
        for (index, place) in places.iter_mut().enumerate().take(pages as usize).skip(1) {
            let PageState::Staged(slot) = space.table.get(address + index as u64 * PAGE).state() else { return false };
            let Some(found) = space.memory.place_of(u32::from(slot), false) else { return false };
            *place = found;
        }
        let bytes = &mut self.buffer[PAGE_SIZE..][..(pages * PAGE) as usize];
        space.memory.read_staged(&places[..pages as usize], bytes, self.shared.faults.no_nonce)
    }
}
