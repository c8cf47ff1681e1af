//! Reading pages ahead of their faults, and serving the faults that follow.

use super::*;

use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::fault::served::Served;
use crate::space::Space;
use uswap_core::Need;
use uswap_core::page::word::PageState;
use uswap_core::readahead::streams::Window;
use uswap_core::util::growth::{Growth, during};

impl<M: AddressSpace> Pager<M> {
    /// Receives a read. If no fault waits for its pages yet, a read ahead is kept for its fault.
    pub fn arrived(&mut self, space: &mut Space<M>, read: Read) {
        let failed = |load: &PageLoad| load.result.is_err();
        let awaited = |load: &PageLoad| space.waiting.waiters.contains(load.address) || failed(load);
        if read.purpose == Purpose::Ahead && space.readahead.cache.has_room() && !read.buffer.pages.iter().any(awaited)
        {
            during(Growth::Lists, || space.readahead.cache.reads.push((read, Instant::now())));
        } else {
            self.install_read(space, read);
        }
    }

    /// Serves a fault on a page with something under way. A page that has arrived ahead is
    /// installed with all pages of its read.
    pub fn reach_in_flight(&mut self, space: &mut Space<M>, address: u64) -> Served {
        let PageState::Stored(object) = space.table.get(address).state() else { return Served::Wait };
        let object = ObjectId::from_bits(object);
        let device = self.shared.store.spot_of(object).map(|spot| spot.device());
        let arrived = space.readahead.cache.take(address, object);
        let is_there = arrived.is_some();
        if let Some(mut read) = arrived {
            // The read has waited for this fault, and not the fault for the read.
            read.since = Instant::now();
            self.shared.counters.swap_ra_hit.add(1);
            self.place_read(space, read);
            // Pages of the read that the kernel put off are served soon, but not from here: one
            // read would lead to the next.
            if !space.waiting.waiters.is_empty() {
                self.retry_soon();
            }
        }
        if let Some(device) = device {
            self.fill_lead(space, address, device);
        }
        let still_away = space.table.get(address).state() != PageState::Resident;
        if is_there && !still_away { Served::Done } else { Served::Wait }
    }

    /// Reads ahead the pages that the stream of `address` lacks of its lead.
    pub fn fill_lead(&mut self, space: &mut Space<M>, address: u64, device: u8) {
        // While each touch is recorded, no page is brought before its own touch; and a process that
        // waits for its turn needs no pages yet.
        if self.shared.faults.no_prefetch || self.shared.recorder.is_some() || space.record.is_held() {
            return;
        }
        let most = self.shared.readers.most_ahead(device);
        let Some(lead) = space.readahead.streams.reached(address, most) else { return };
        let (mut from, stride) = (lead.from, lead.window.stride);
        let mut left = lead.window.pages;
        while left > 0 {
            let wanted = left.min(PER_READ);
            let Some(mut buffer) = self.lend_buffer(space, address, wanted, Need::Ahead) else { break };
            // Small reads lead to more small reads: while enough pages are under way, the pager
            // waits for a large buffer. The read of the fault itself does not count as enough: it
            // takes such a large part of a small reserve that there would never be a lead.
            if buffer.capacity() < wanted as usize && lead.ahead > PER_READ {
                break;
            }
            let passed = self.choose_ahead(space, Window { pages: left, stride }, from, &mut buffer);
            let chosen = buffer.pages.len() as u32;
            if chosen == 0 || self.send_read(space, buffer, Instant::now(), Purpose::Ahead).is_none() {
                break;
            }
            self.shared.counters.swap_ra.add(u64::from(chosen));
            (from, left) = (from.wrapping_add_signed(stride * i64::from(passed)), left - passed.min(left));
        }
        space.readahead.streams.advance_lead(lead, from);
    }

    /// Chooses pages of a lead from `from` on, as many as the buffer takes: those on a device,
    /// skipping those in memory or in the pool. Returns how many steps that are.
    fn choose_ahead(&self, space: &Space<M>, window: Window, from: u64, buffer: &mut ReadBuffer) -> u32 {
        let mut before: Option<Spot> = None;
        for step in 0..window.pages {
            let page = from.wrapping_add_signed(window.stride * i64::from(step));
            let object = match space.table.get(page).state() {
                PageState::Stored(object) => ObjectId::from_bits(object),
                PageState::Resident | PageState::Staged(_) => continue,
                _ => return step,
            };
            // The page is in the pool: its own fault is cheap.
            let Some(spot) = self.shared.store.spot_of(object) else { continue };
            let full = buffer.pages.len() == buffer.capacity();
            let chosen = buffer.pages.len();
            let breaks = before.is_some_and(|before| {
                spot.device() != before.device() || chosen >= WORTH_A_READ && !spot.is_read_with(&before)
            });
            if full || breaks || !self.may_come_along(space, page, buffer.pages.len() as i64) {
                return step;
            }
            before = Some(spot);
            buffer.pages.push(PageLoad::new(page, object));
        }
        window.pages
    }

    /// Drops reads that have waited for their faults for too long: the stream has turned elsewhere.
    pub fn drop_untouched(&mut self, space: &mut Space<M>) {
        let before = space.readahead.cache.reads.len();
        while space.readahead.cache.reads.first().is_some_and(|(_, since)| since.elapsed() > MAX_AGE) {
            let (read, _) = space.readahead.cache.reads.remove(0);
            space.readahead.streams.missed(read.buffer.pages[0].address);
            self.shared.counters.swap_ra_miss.add(1);
            self.forgo(space, read);
        }
        if space.readahead.cache.reads.len() < before {
            self.serve_waiters(space);
        }
    }

    /// Drops all reads ahead of a space that ends.
    pub fn drop_ahead(&mut self, space: &mut Space<M>) {
        for (read, _) in std::mem::take(&mut space.readahead.cache.reads) {
            self.forgo(space, read);
        }
    }
}
