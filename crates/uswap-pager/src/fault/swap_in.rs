//! Swap-in, the only way in for stored pages: which pages come, those in the pool at once, those on
//! devices through the readers.
//!
//! The pages that come along with the page that faulted are chosen by the stream of faults that it
//! belongs to, and by its place. A proven stream brings its window, of neighbours or with its
//! stride. An isolated fault brings neighbours from where it is served, as far as such neighbours
//! are used (`neighbours.rs`). Pages of a stride are installed
//! before the page that faulted, whose thread wakes up when all are present.

use std::time::Instant;
use uswap_core::PAGE;

use uswap_core::page::word::PageState;
use uswap_core::readahead::neighbours::{Around, Place};
use uswap_core::readahead::streams::Window;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::{Lease, Need, PAGE_SIZE};
use uswap_store::{Load, ObjectId, PageLoad};
use uswap_sys::userfaultfd::Install;

use crate::address_space::AddressSpace;
use crate::event_loop::{MAX_INSTALL, Pager};
use crate::fault::install::{installed_bytes, page_mut, shorten};
use crate::fault::served::Served;
use crate::io::reader::{Job, Purpose, Read, ReadBuffer};
use crate::latency::LatencyTier;
use crate::space::Space;

/// Largest readahead windows in pages: pool, device.
const MAX_POOL: u32 = 32;
const MAX_DEVICE: u32 = 64;
/// Smallest readahead window in pages.
const MIN_WINDOW: u32 = 2;
/// Maximum number of neighbours that are read with a page at no extra cost: they lie behind it on
/// the device.
const FREE_NEIGHBOURS: u32 = 4;

/// A page counts as near if 1/`NEAR` more memory for its space would have kept it resident.
pub const NEAR: u64 = 8;

/// Maximum number of pages in memory across which a stream is followed.
const MAX_HELD: usize = 1024;

/// Where the next fault of a stream is expected: at the first page from `page` on that is not in
/// memory.
fn behind_held<M: AddressSpace>(space: &Space<M>, page: u64, stride: i64) -> u64 {
    let is_held = |page: &u64| matches!(space.table.get(*page).state(), PageState::Resident | PageState::Staged(_));
    let steps = std::iter::successors(Some(page), |page| Some(page.wrapping_add_signed(stride)));
    steps.take(MAX_HELD).find(|page| !is_held(page)).unwrap_or(page)
}

/// Number of evictions of the space since a stored page was evicted.
pub fn refault_distance<M: AddressSpace>(space: &Space<M>, address: u64) -> u32 {
    space.table.get(address).refault_distance(space.policy.evictions())
}

/// Whether a stored page was evicted so recently that it would still be in memory if its space had
/// an eighth more.
fn is_near<M: AddressSpace>(space: &Space<M>, address: u64) -> bool {
    u64::from(refault_distance(space, address)) * NEAR < space.counts.resident
}

impl<M: AddressSpace> Pager<M> {
    /// Brings a stored page back: from the pool at once, from a device through the readers.
    pub fn swap_in(&mut self, space: &mut Space<M>, address: u64, object: ObjectId, since: Instant) -> Served {
        match self.shared.store.load(object, page_mut(&mut self.buffer, 0)) {
            Ok(Load::Ready) => self.install_from_pool(space, address, since),
            Ok(Load::OnDevice) => self.order_read(space, address, since),
            Err(error) => self.lost_object(space, address, &error),
        }
    }

    /// Maximum number of pages, itself included, that come with a fault: only itself while each
    /// touch is recorded, and at most `MIN_WINDOW` with a page of a process that waits for its
    /// turn.
    pub fn most_along(&self, space: &Space<M>, most: u32) -> u32 {
        match space.record.is_held() {
            _ if self.shared.recorder.is_some() => 1,
            true => most.min(MIN_WINDOW),
            false => most,
        }
    }

    /// Installs the page at `address`, which lies in the buffer; the pages that the stream of
    /// faults needs next come along if they are in the pool.
    fn install_from_pool(&mut self, space: &mut Space<M>, address: u64, since: Instant) -> Served {
        let most = self.most_along(space, MAX_POOL.min(MAX_INSTALL as u32));
        let passed = space.readahead.streams.passed(address, most);
        let mut window = passed.unwrap_or_else(|| space.readahead.streams.window(address, most));
        let alone = window.pages == 1 && passed.is_none();
        let around = if alone { self.worthwhile(space, address, Place::Pool) } else { Around::default() };
        if around.above > 0 {
            window = Window { pages: 1 + around.above, stride: PAGE as i64 };
        }
        let below = self.install_below(space, address, around.below);
        let along = if window.is_run() { 0 } else { self.install_along(space, address, window) };
        let pages = if window.is_run() { self.load_run(space, address, window.pages) } else { 1 };
        self.shared.faults.pause(self.shared.faults.delay_install);
        let (served, done) = self.install_buffer(space, address, 0, pages);
        if done > 0 {
            if passed.is_none() {
                let next = address.wrapping_add_signed(window.stride * (done + along) as i64);
                space.readahead.streams.advance(behind_held(space, next, window.stride));
            }
            self.shared.counters.pgmajfault.add(1);
            self.shared.counters.swap_ra.add(done - 1 + along + below);
            let took = since.elapsed();
            self.shared.latencies.record(LatencyTier::Pool, took);
            space.expense.refault(took);
            space.record.waited(took);
        }
        served
    }

    /// Loads the neighbours of the page at `address` into the buffer, behind it. Returns how many
    /// pages the buffer holds now.
    fn load_run(&mut self, space: &Space<M>, address: u64, window: u32) -> u64 {
        let most = self.run_of(space, address, window, |state| matches!(state, PageState::Stored(_)));
        let mut pages = 1;
        while pages < most && self.load_from_pool(space, address + pages * PAGE, pages as usize) {
            pages += 1;
        }
        pages
    }

    /// Loads a stored page into a place of the buffer; `false`: it is not in the pool.
    pub fn load_from_pool(&mut self, space: &Space<M>, address: u64, place: usize) -> bool {
        let PageState::Stored(object) = space.table.get(address).state() else { return false };
        let into = page_mut(&mut self.buffer, place);
        matches!(self.shared.store.load(ObjectId::from_bits(object), into), Ok(Load::Ready))
    }

    /// Installs the pages of a stride that follow the page at `address`, before that page: its
    /// thread wakes up when all are present. Returns how many were installed. The page at `address`
    /// lies in the buffer.
    fn install_along(&mut self, space: &mut Space<M>, address: u64, window: Window) -> u64 {
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

    /// Whether a stored page may be brought along that need not lie in the same mapping as the page
    /// that faulted.
    pub fn may_come_along(&self, space: &Space<M>, page: u64, others: i64) -> bool {
        space.is_registered(page)
            && self.fits_beside(space, page, others, |state| matches!(state, PageState::Stored(_)))
    }

    /// Chooses the pages that are read together with the one at `address`: the pages that the
    /// stream of faults needs next, if they lie on a device and the buffer has room; without a
    /// stream, those that the same request reads. Returns whether the page lies on the device
    /// uncompressed, because it does not compress.
    fn choose_reads(&mut self, space: &mut Space<M>, address: u64, buffer: &mut ReadBuffer) -> bool {
        let window = self.window(space, address);
        let around = match window {
            _ if !window.is_run() => Around::default(),
            Window { pages: 1, .. } => self.worthwhile(space, address, Place::Device),
            _ => Around { above: self.most_along(space, FREE_NEIGHBOURS) - 1, below: 0 },
        };
        let most = window.pages.max(1 + around.above);
        let (mut before, mut whole) = (None, false);
        for step in 0..i64::from(most) {
            let page = address.wrapping_add_signed(window.stride * step);
            let object = match space.table.get(page).state() {
                PageState::Stored(object) => ObjectId::from_bits(object),
                PageState::Resident | PageState::Staged(_) => continue,
                _ => break,
            };
            let spot = self.shared.store.spot_of(object);
            whole |= step == 0 && spot.is_some_and(|spot| spot.is_whole());
            let behind = spot.zip(before).is_some_and(|(spot, before)| spot.is_read_with(&before));
            let wanted = step < i64::from(window.pages) || behind;
            if step > 0 && wanted && spot.is_none() {
                // The page is in the pool: its own fault is cheap.
                continue;
            }
            let full = buffer.pages.len() == buffer.capacity();
            if step > 0 && (full || !wanted || !self.may_come_along(space, page, step)) {
                break;
            }
            before = spot;
            buffer.pages.push(PageLoad::new(page, object));
        }
        let next = buffer.pages.last().map_or(address, |last| last.address.wrapping_add_signed(window.stride));
        space.readahead.streams.advance(behind_held(space, next, window.stride));
        self.read_below(space, address, around.below, buffer);
        whole
    }

    fn window(&self, space: &mut Space<M>, address: u64) -> Window {
        if self.shared.faults.no_prefetch {
            return Window { pages: 1, stride: PAGE as i64 };
        }
        space.readahead.streams.window(address, self.most_along(space, MAX_DEVICE))
    }

    /// Hands the page, and the neighbours that come with it, to the readers of its device.
    fn order_read(&mut self, space: &mut Space<M>, address: u64, since: Instant) -> Served {
        let now = space.now();
        let neighbours = 1 + space.readahead.neighbours.most(Place::Device, now);
        let pages = space
            .readahead
            .streams
            .forecast(address, self.most_along(space, MAX_DEVICE))
            .max(self.most_along(space, FREE_NEIGHBOURS.max(neighbours)));
        let Some(mut buffer) = self.lend_buffer(space, address, pages, Need::Fault) else { return Served::Wait };
        let whole = self.choose_reads(space, address, &mut buffer);
        if let Some(device) = self.send_read(space, buffer, since, Purpose::Fault) {
            self.shared.counters.pgmajfault.add(1);
            self.shared.counters.pgmajfault_device.add(1);
            self.shared.counters.pgmajfault_incompressible.add(u64::from(whole));
            self.shared.counters.pgnear_incompressible.add(u64::from(whole && is_near(space, address)));
            self.fill_lead(space, address, device);
        }
        Served::Wait
    }

    /// Sends a read and marks its pages. Returns the device that it was sent to. `None`: it could
    /// not be sent, and nothing is changed.
    pub fn send_read(
        &mut self,
        space: &mut Space<M>,
        buffer: Lease<ReadBuffer>,
        since: Instant,
        purpose: Purpose,
    ) -> Option<u8> {
        let first = buffer.pages.first()?.id;
        // If the page has just left its device, any reader finds it.
        let device = self.shared.store.spot_of(first).map_or(0, |spot| spot.device());
        for load in &buffer.pages {
            self.shared.store.retain(load.id);
            space.table.set(load.address, space.table.get(load.address).set_in_flight(true));
        }
        // The pages are charged from now on, so that the reads under way have room when they
        // arrive.
        self.arriving(space, buffer.pages.len() as i64);
        let beside = if purpose == Purpose::Fault { M::processor(self) } else { None };
        let read = Read { space: space.id, owner: self.number, buffer, since, purpose, beside };
        let Err(read) = self.ask_device(device, read) else { return Some(device) };
        match self.shared.readers.push(device, Job::Read(read)) {
            Err(Job::Read(read)) => {
                self.forgo(space, read);
                None
            }
            _ => Some(device),
        }
    }

    /// Gives up a read: its pages stay where they are stored.
    pub fn forgo(&mut self, space: &mut Space<M>, read: Read) {
        self.arriving(space, -(read.buffer.pages.len() as i64));
        for load in &read.buffer.pages {
            let word = space.table.get(load.address);
            if word.in_flight() && word.state() == PageState::Stored(load.id.to_bits()) {
                space.table.set(load.address, word.set_in_flight(false));
            }
            self.shared.store.release(load.id);
        }
    }

    /// Handles a finished device read: installs the pages that are still needed, neighbours
    /// together, from the buffer of the reader. The pages that were charged when the read was
    /// ordered are charged anew when they are installed, and the references taken for the read are
    /// given back.
    pub fn install_read(&mut self, space: &mut Space<M>, read: Read) {
        self.place_read(space, read);
        self.serve_waiters(space);
    }

    /// Like [`Self::install_read`], without serving other faults that wait.
    pub fn place_read(&mut self, space: &mut Space<M>, read: Read) {
        self.arriving(space, -(read.buffer.pages.len() as i64));
        M::keep_place(self);
        self.shared.faults.pause(self.shared.faults.delay_install);
        let pages = &read.buffer.pages;
        let mut at = 0;
        while at < pages.len() {
            let count = self.accept_run(space, &pages[at..]);
            if count == 0 {
                self.leave_out(space, &pages[at], read.purpose);
                at += 1;
                continue;
            }
            let (start, bytes) = (pages[at].address, read.buffer.bytes(at..at + count));
            match read.purpose {
                Purpose::BringIn => self.install_brought(space, start, bytes),
                _ => self.install_run(space, start, bytes, read.since),
            }
            at += count;
        }
        for load in pages {
            self.shared.store.release(load.id);
        }
    }

    /// Number of these pages, from the first on, that can be installed together. Clears their mark
    /// that a read is under way.
    fn accept_run(&mut self, space: &mut Space<M>, pages: &[PageLoad]) -> usize {
        let mut count = 0;
        for load in pages.iter().take(MAX_INSTALL) {
            let word = space.table.get(load.address);
            let follows = load.address == pages[0].address + count as u64 * PAGE;
            let wanted = word.in_flight() && word.state() == PageState::Stored(load.id.to_bits());
            let wanted = wanted || self.shared.faults.believe_late_answers;
            if !(follows && wanted && load.result.is_ok()) {
                break;
            }
            space.table.set(load.address, word.set_in_flight(false));
            count += 1;
        }
        count
    }

    /// Handles a page that was read and is not installed: it is no longer needed, or its bytes
    /// cannot be loaded.
    fn leave_out(&mut self, space: &mut Space<M>, load: &PageLoad, purpose: Purpose) {
        let word = space.table.get(load.address);
        if !word.in_flight() || word.state() != PageState::Stored(load.id.to_bits()) {
            return;
        }
        space.table.set(load.address, word.set_in_flight(false));
        match &load.result {
            Err(_) if purpose == Purpose::BringIn => self.could_not_bring(),
            Err(error) => {
                self.lost_object(space, load.address, error);
                space.waiting.waiters.remove(load.address);
            }
            Ok(()) => {}
        }
    }

    /// Installs pages that were read from a device. Pages that the kernel puts off are read again.
    fn install_run(&mut self, space: &mut Space<M>, start: u64, bytes: &[u8], since: Instant) {
        let (served, done) = self.install_bytes(space, start, bytes);
        let took = since.elapsed();
        space.record.waited(took);
        let mut awaited = false;
        for page in (start..start + done * PAGE).step_by(PAGE_SIZE) {
            awaited |= space.waiting.waiters.remove(page);
        }
        if awaited {
            space.expense.refault(took);
        }
        if done > 0 {
            self.shared.latencies.record(LatencyTier::Device, took);
        }
        if served == Served::Done {
            space.waiting.waiters.remove(start);
        }
    }

    /// Installs stored pages whose bytes lie in the buffer, from the page `place` on. Returns the
    /// outcome for the first page and the number of pages that are in place.
    pub fn install_buffer(&mut self, space: &mut Space<M>, address: u64, place: usize, pages: u64) -> (Served, u64) {
        let bytes = &self.buffer[place * PAGE_SIZE..];
        let (result, length) = shorten(pages * PAGE, |length| space.memory.copy(address, &bytes[..length as usize]));
        self.book_install(space, address, (result, length), place == 0 && pages == 1)
    }

    /// Installs stored pages with these bytes, which were read from a device.
    fn install_bytes(&mut self, space: &mut Space<M>, address: u64, bytes: &[u8]) -> (Served, u64) {
        let result = shorten(bytes.len() as u64, |length| space.memory.copy(address, &bytes[..length as usize]));
        self.book_install(space, address, result, bytes.len() == PAGE_SIZE)
    }

    /// Handles the kernel's answer for stored pages. Returns the outcome for the first page and the
    /// number of pages that are in place.
    fn book_install(
        &mut self,
        space: &mut Space<M>,
        address: u64,
        (result, length): (Install, u64),
        lonely: bool,
    ) -> (Served, u64) {
        let served = self.finish_install(space, address, length, result);
        let done = installed_bytes(result, length) / PAGE;
        let ample = self.is_ample(space);
        for index in 0..done {
            self.came_back(space, address + index * PAGE, lonely, ample);
        }
        (served, done)
    }

    /// Book-keeping of a stored page that was installed: its object becomes the kept copy. The
    /// exception is an object in the pool whose page came alone: nobody can tell when such a page
    /// is evicted again, if at all, and until then the copy would take memory from others (with
    /// random touches of slightly more memory than the budget, the copies took a third of it).
    /// Pages that come in runs are evicted in runs, soon and mostly unchanged.
    fn came_back(&mut self, space: &mut Space<M>, address: u64, lonely: bool, ample: bool) {
        if matches!(space.table.get(address).state(), PageState::Stored(_)) {
            self.shared.touched(space.id, address);
            let active = self.is_welcome(space, address, ample);
            self.keep_copy(space, address, lonely, active);
        }
    }

    /// Like `came_back`, for a page of which it is known whether it is active.
    pub fn keep_copy(&mut self, space: &mut Space<M>, address: u64, lonely: bool, active: bool) {
        let word = space.table.get(address);
        let PageState::Stored(object) = word.state() else { return };
        space.counts.stored = space.counts.stored.saturating_sub(1);
        let id = ObjectId::from_bits(object);
        if !self.keeps_copy(id, lonely) {
            self.shared.store.release(id);
            return self.become_resident(space, address, word.resident().set_active(active));
        }
        self.shared.store.make_cached(id);
        self.become_resident(space, address, word.resident_with_copy(object).set_active(active));
    }
}
