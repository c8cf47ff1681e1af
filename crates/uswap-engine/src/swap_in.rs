//! The one way in for stored pages: which of them come, from the pool at once, from devices by way of the readers.
//!
//! What comes along with the page that faulted is decided by the stream of faults it belongs to and by where it lies: a
//! proven stream brings its window, of neighbours or in its stride; a lonely fault on a device brings only neighbours that
//! cost nothing, because the same request reads them. Pages of a stride are installed before the page that faulted, whose
//! thread wakes up when all are there.

use std::time::Instant;

use uswap_core::PAGE_SIZE;
use uswap_core::readahead::Window;
use uswap_core::word::State;
use uswap_store::{Load, ObjectId};

use crate::fault::{Served, installed_bytes, page_mut, shorten};
use crate::latency::Tier;
use crate::owner::{MOST_INSTALL, Owner};
use crate::shared::{ReadDone, ReadJob};
use crate::space::Space;

const PAGE: u64 = PAGE_SIZE as u64;
/// Readahead windows in pages: pool, device.
const MOST_POOL: u32 = 32;
const MOST_DEVICE: u32 = 64;
/// Neighbours that are read with a page for nothing, at most: they lie behind it on the device.
const FREE_NEIGHBOURS: u32 = 4;

/// Pages in memory that a stream is followed across, at most.
const MOST_HELD: usize = 1024;

/// Where the next fault of a stream is to be expected: at the first page from `page` on that is not in memory.
fn behind_held(space: &Space, page: u64, stride: i64) -> u64 {
    let is_held = |page: &u64| matches!(space.table.get(*page).state(), State::Resident | State::Staged(_));
    let steps = std::iter::successors(Some(page), |page| Some(page.wrapping_add_signed(stride)));
    steps.take(MOST_HELD).find(|page| !is_held(page)).unwrap_or(page)
}

impl Owner {
    /// A stored page comes back, from the pool at once, from a device by way of the readers.
    pub fn swap_in(&mut self, space: &mut Space, address: u64, object: ObjectId, since: Instant) -> Served {
        match self.shared.store.load(object, page_mut(&mut self.buffer, 0)) {
            Ok(Load::Ready) => self.install_from_pool(space, address, since),
            Ok(Load::OnDevice) => self.order_read(space, address, since),
            Err(error) => self.lost_object(space, address, &error),
        }
    }

    /// The page at `address` lies in the buffer; those that the stream of faults is going to want come along as far as
    /// they are in the pool.
    fn install_from_pool(&mut self, space: &mut Space, address: u64, since: Instant) -> Served {
        let window = space.streams.window(address, MOST_POOL.min(MOST_INSTALL as u32));
        let along = if window.is_run() { 0 } else { self.install_along(space, address, window) };
        let pages = if window.is_run() { self.load_run(space, address, window.pages) } else { 1 };
        self.shared.faults.pause(self.shared.faults.delay_install);
        let (served, done) = self.install_buffer(space, address, 0, pages);
        if done > 0 {
            let next = address.wrapping_add_signed(window.stride * (done + along) as i64);
            space.streams.advance(behind_held(space, next, window.stride));
            self.shared.counters.pgmajfault.add(1);
            self.shared.counters.swap_ra.add(done - 1 + along);
            self.shared.latencies.record(Tier::Pool, since);
        }
        served
    }

    /// Loads the neighbours of the page at `address`, which lies in the buffer, behind it. Returns how many pages there
    /// are now.
    fn load_run(&mut self, space: &Space, address: u64, window: u32) -> u64 {
        let most = self.run_of(space, address, window, |state| matches!(state, State::Stored(_)));
        let mut pages = 1;
        while pages < most && self.load_from_pool(space, address + pages * PAGE, pages as usize) {
            pages += 1;
        }
        pages
    }

    /// Loads a stored page into a place of the buffer; `false`: it is not in the pool.
    fn load_from_pool(&mut self, space: &Space, address: u64, place: usize) -> bool {
        let State::Stored(object) = space.table.get(address).state() else { return false };
        let into = page_mut(&mut self.buffer, place);
        matches!(self.shared.store.load(ObjectId::from_bits(object), into), Ok(Load::Ready))
    }

    /// Installs the pages of a stride that follow the one at `address`, which lies in the buffer, before that one: its
    /// thread wakes up when all are there. Returns how many.
    fn install_along(&mut self, space: &mut Space, address: u64, window: Window) -> u64 {
        let mut along = 0;
        for step in 1..i64::from(window.pages) {
            let page = address.wrapping_add_signed(window.stride * step);
            let fits = self.may_come_along(space, page, step) && self.load_from_pool(space, page, 1);
            if !fits || self.install_buffer(space, page, 1, 1).1 == 0 {
                break;
            }
            along += 1;
        }
        along
    }

    /// Whether a stored page that need not lie in the faulting page's mapping may be brought with it.
    fn may_come_along(&self, space: &Space, page: u64, others: i64) -> bool {
        space.is_registered(page) && self.fits_beside(space, page, others, |state| matches!(state, State::Stored(_)))
    }

    /// The pages to be read with the one at `address`, which is the first, and their objects: those that the stream of
    /// faults is going to want as far as they lie on a device; of no stream, those that one request brings along.
    fn choose_reads(&mut self, space: &mut Space, address: u64) -> Vec<(u64, ObjectId)> {
        let window = space.streams.window(address, MOST_DEVICE);
        let most = if window.is_run() { window.pages.max(FREE_NEIGHBOURS) } else { window.pages };
        let mut pages: Vec<(u64, ObjectId)> = Vec::new();
        let mut behind = None;
        for step in 0..i64::from(most) {
            let page = address.wrapping_add_signed(window.stride * step);
            let object = match space.table.get(page).state() {
                State::Stored(object) => ObjectId::from_bits(object),
                State::Resident | State::Staged(_) => continue,
                _ => break,
            };
            let spot = self.shared.store.spot_of(object);
            let wanted = step < i64::from(window.pages) || spot == behind;
            if step > 0 && (spot.is_none() || !wanted || !self.may_come_along(space, page, step)) {
                break;
            }
            behind = spot.map(|(device, slot)| (device, slot + 1));
            pages.push((page, object));
        }
        let next = pages.last().map_or(address, |(last, _)| last.wrapping_add_signed(window.stride));
        space.streams.advance(behind_held(space, next, window.stride));
        pages
    }

    /// Hands the page, and the neighbours that come with it, to the readers.
    fn order_read(&mut self, space: &mut Space, address: u64, since: Instant) -> Served {
        let pages = self.choose_reads(space, address);
        for (page, object) in &pages {
            self.shared.store.retain(*object);
            space.table.set(*page, space.table.get(*page).set_in_flight(true));
        }
        self.shared.counters.pgmajfault.add(1);
        self.shared.counters.pgmajfault_device.add(1);
        // Charged from now on, so that the reads under way have room when they arrive.
        self.charge(space, pages.len() as i64);
        let job = ReadJob { space: space.id, owner: self.number, pages, since };
        if let Err(error) = self.shared.reads.try_send(job) {
            let (std::sync::mpsc::TrySendError::Full(job) | std::sync::mpsc::TrySendError::Disconnected(job)) = error;
            self.charge(space, -(job.pages.len() as i64));
            for (page, object) in job.pages {
                self.shared.store.release(object);
                let word = space.table.get(page);
                space.table.set(page, word.set_in_flight(false));
            }
        }
        Served::Wait
    }

    /// A device read is done: install what is still wanted, neighbours together. The references taken for the read are
    /// given back.
    pub fn install_read(&mut self, space: &mut Space, done: ReadDone) {
        self.placement.keep();
        let (mut start, mut pages) = (0, 0);
        for (address, object, result) in done.pages {
            let word = space.table.get(address);
            if word.in_flight() && word.state() == State::Stored(object.to_bits()) {
                space.table.set(address, word.set_in_flight(false));
                if pages > 0 && (address != start + pages as u64 * PAGE || pages == MOST_INSTALL || result.is_err()) {
                    self.install_run(space, start, std::mem::take(&mut pages), done.since);
                }
                match result {
                    Ok(page) => {
                        start = if pages == 0 { address } else { start };
                        *page_mut(&mut self.buffer, pages) = *page;
                        pages += 1;
                    }
                    Err(error) => {
                        self.lost_object(space, address, &error);
                        space.waiters.remove(&address);
                    }
                }
            }
            self.shared.store.release(object);
        }
        if pages > 0 {
            self.install_run(space, start, pages, done.since);
        }
        self.serve_waiters(space);
    }

    /// Installs pages that a device brought into the buffer. Those that the kernel puts off are read again.
    fn install_run(&mut self, space: &mut Space, start: u64, pages: usize, since: Instant) {
        let (served, done) = self.install_buffer(space, start, 0, pages as u64);
        for index in 0..done {
            space.waiters.remove(&(start + index * PAGE));
            self.shared.latencies.record(Tier::Device, since);
        }
        if served == Served::Done {
            space.waiters.remove(&start);
        }
    }

    /// Installs stored pages whose bytes lie in the buffer, from the page `place` on. Returns how the first fared and how
    /// many are in place.
    fn install_buffer(&mut self, space: &mut Space, address: u64, place: usize, pages: u64) -> (Served, u64) {
        let bytes = &self.buffer[place * PAGE_SIZE..];
        let (result, length) = shorten(pages * PAGE, |length| space.copy(address, &bytes[..length as usize]));
        let served = self.finish_install(space, address, length, result);
        let done = installed_bytes(result, length) / PAGE;
        let lonely = place == 0 && pages == 1;
        let ample = self.is_ample(space);
        for index in 0..done {
            self.came_back(space, address + index * PAGE, lonely, ample);
        }
        (served, done)
    }

    /// Book-keeping of a stored page that was installed: its object becomes the kept copy. Not in the pool and for a page
    /// that came alone: such a page goes again at no foreseeable time, if at all, and until then the copy would take
    /// memory from others (at random over slightly more than the budget the copies were a third of it). What comes in
    /// runs goes in runs, soon and mostly unchanged.
    fn came_back(&mut self, space: &mut Space, address: u64, lonely: bool, ample: bool) {
        let word = space.table.get(address);
        let State::Stored(object) = word.state() else { return };
        space.stored = space.stored.saturating_sub(1);
        let active = self.is_welcome(space, address, ample);
        let id = ObjectId::from_bits(object);
        if lonely && self.shared.store.spot_of(id).is_none() {
            self.shared.store.release(id);
            return self.become_resident(space, address, word.resident().set_active(active));
        }
        self.shared.store.make_cached(id);
        self.become_resident(space, address, word.resident_with_copy(object).set_active(active));
    }
}
