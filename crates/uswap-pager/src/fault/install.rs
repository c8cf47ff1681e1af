//! The life of a fault: from the page word to the installed page.
//!
//! The pager decides on and issues every installation between two readings of the space's events. A
//! page with an order or a device read under way is never installed, but waits for the outcome. An
//! installation that the kernel puts off (EAGAIN: an event is pending) is decided anew after that
//! event was read.

use std::time::{Duration, Instant};
use uswap_core::PAGE;

use uswap_core::PAGE_SIZE;
use uswap_core::page::word::{PageState, PageWord};
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::util::growth::{Growth, during};
use uswap_store::{LoadError, ObjectId};
use uswap_sys::userfaultfd::Install;

use crate::address_space::AddressSpace;
use crate::event_loop::{Fault, Pager};
use crate::fault::served::Served;
use crate::latency::LatencyTier;
use crate::space::Space;

/// Readahead window of first touches, in pages.
const MAX_FIRST_TOUCH: u32 = 64;
/// A first touch that takes longer than this has waited for room.
const WAITED_FOR_ROOM: Duration = Duration::from_micros(500);

impl<M: AddressSpace> Pager<M> {
    /// Reads and applies the events of a space under the gate, then serves the faults among them.
    /// While another change is under way the gate stays closed, nothing is applied and the faults
    /// wait.
    pub fn serve(&mut self, space: &mut Space<M>) {
        if !self.close_gate(space) {
            return self.retry_soon();
        }
        self.bind_account(space);
        if !self.shared.faults.no_absorb {
            self.absorb(space);
        }
        let mut faults = std::mem::take(&mut self.faults);
        let since = Instant::now();
        let complete = M::read(self, space, &mut faults);
        if complete {
            if space.memory.is_changing() {
                during(Growth::AddressSpaces, || self.apply_changes(space));
            }
            self.rescue(space, &faults);
            self.shared.faults.pause(self.shared.faults.delay_gate);
            space.memory.open_gate();
        } else {
            self.retry_soon();
        }
        for Fault { address, write, protected, thread } in faults.drain(..) {
            if protected {
                self.serve_copy(space, address, since);
                continue;
            }
            let held = self.shared.load.is_holding() && self.put_aside(space, address, write, thread);
            if !held {
                self.serve_fault(space, address, write, since);
            }
        }
        self.faults = faults;
    }

    /// Cancels the orders for pages that have faults although they are believed resident and
    /// ordered: such a page was dropped without the pager's knowledge, since all moves have been
    /// absorbed. Otherwise the fault would wait for an agent that may itself wait for this page (it
    /// touches shared pages before it moves them).
    fn rescue(&mut self, space: &mut Space<M>, faults: &[Fault]) {
        let held = space.waiting.held.iter().map(|fault| fault.address);
        let missing = faults.iter().filter(|fault| !fault.protected);
        let waiting = missing.map(|fault| fault.address).chain(space.waiting.waiters.addresses()).chain(held);
        let ordered = |word: PageWord| word.in_flight() && word.state() == PageState::Resident;
        let mut stray = Vec::new();
        let found = waiting.filter(|address| ordered(space.table.get(*address)));
        found.for_each(|address| during(Growth::Lists, || stray.push(address)));
        for address in stray {
            during(Growth::Lists, || self.cancel_orders(space, address, address + PAGE));
        }
    }

    /// Applies the changes in the order in which they happened.
    fn apply_changes(&mut self, space: &mut Space<M>) {
        let mut changes = M::take_changes(self, space).into_iter();
        while let Some(change) = changes.next() {
            self.apply(space, change, changes.len() == 0);
        }
        M::comes_to(space, u64::MAX);
    }

    /// Closes the gate. Returns `false` while a page may still move; the gate stays closed in that
    /// case too.
    fn close_gate(&mut self, space: &mut Space<M>) -> bool {
        let closed = self.shared.faults.no_gate || space.memory.close_gate();
        self.shared.counters.gate_deferred.add(u64::from(!closed));
        closed
    }

    /// Serves one fault, or notes that it waits.
    pub fn serve_fault(&mut self, space: &mut Space<M>, address: u64, write: bool, since: Instant) {
        if self.try_serve(space, address, write, since) == Served::Wait {
            space.waiting.waiters.insert(address, write);
            self.retry_unless_reading(space, address);
        } else {
            space.waiting.waiters.remove(address);
        }
    }

    /// Brings a page back for which no fault waits. If it is put off, the caller tries again.
    pub fn bring(&mut self, space: &mut Space<M>, address: u64) -> Served {
        self.try_serve(space, address, false, Instant::now())
    }

    fn try_serve(&mut self, space: &mut Space<M>, address: u64, write: bool, since: Instant) -> Served {
        if space.memory.is_own(address) {
            if space.memory.asks_to_fork(address) {
                self.reserve_fork_room(space);
                if !self.has_room(space, 0) && !self.is_helpless(space) {
                    self.stall(space, address, write);
                    return Served::Done;
                }
                self.protect_before_fork(space);
            }
            return M::serve_own(self, space, address);
        }
        if space.memory.is_changing() {
            return Served::Wait;
        }
        if !space.is_registered(address) {
            during(Growth::AddressSpaces, || M::learn(space, address, false));
        }
        let word = space.table.get(address);
        if word.in_flight() {
            return self.reach_in_flight(space, address);
        }
        let needs_room = !matches!(word.state(), PageState::Poisoned) && !self.has_room(space, 1);
        if needs_room && self.is_helpless(space) {
            self.shared.counters.over_limit.add(1);
        } else if needs_room {
            self.stall(space, address, write);
            return Served::Done;
        }
        self.install(space, address, write, since)
    }

    /// Installs the page from the place that its page word gives.
    fn install(&mut self, space: &mut Space<M>, address: u64, write: bool, since: Instant) -> Served {
        M::keep_place(self);
        match space.table.get(address).state() {
            PageState::Untouched | PageState::Zero => self.install_zeros(space, address, write, since),
            PageState::Resident if self.shared.faults.no_stray => Served::Done,
            PageState::Resident => self.install_stray(space, address),
            PageState::Staged(slot) => self.unstage(space, address, slot, write, since),
            PageState::Stored(object) => self.swap_in(space, address, ObjectId::from_bits(object), since),
            PageState::Poisoned => self.poison(space, address),
        }
    }

    /// Lets the fault wait for room.
    fn stall(&mut self, space: &mut Space<M>, address: u64, write: bool) {
        if space.waiting.stalled.iter().any(|(known, ..)| *known == address) {
            return;
        }
        self.shared.counters.throttled.add(1);
        during(Growth::Lists, || space.waiting.stalled.push_back((address, write, Instant::now())));
        self.retry_soon();
    }

    /// Serves faults that waited for room, as far as there is room or they have waited for too
    /// long.
    pub fn serve_stalled(&mut self, space: &mut Space<M>) {
        while !space.waiting.stalled.is_empty() {
            // For a fork the room is reserved already.
            let has_room = [0, 1].map(|pages| self.has_room(space, pages));
            let fits = |(address, ..): &(u64, bool, Instant)| has_room[usize::from(!space.memory.is_own(*address))];
            let too_late = |(address, _, since): &(u64, bool, Instant)| self.is_too_late(space, *address, *since);
            let first = space.waiting.stalled.iter().position(fits);
            let next = first.or_else(|| space.waiting.stalled.iter().position(too_late));
            let Some((address, write, since)) = next.and_then(|index| space.waiting.stalled.remove(index)) else {
                return self.retry_soon();
            };
            self.shared.counters.over_limit.add(u64::from(first.is_none()));
            self.shared.counters.throttled_us.add(since.elapsed().as_micros() as u64);
            let served = if space.memory.is_own(address) {
                M::serve_own(self, space, address)
            } else if space.table.get(address).in_flight() {
                Served::Wait
            } else {
                self.install(space, address, write, since)
            };
            if served == Served::Wait {
                space.waiting.waiters.insert(address, write);
                self.retry_unless_reading(space, address);
            }
        }
    }

    /// Tries again to serve the faults that waited for something under way.
    pub fn serve_waiters(&mut self, space: &mut Space<M>) {
        let mut from = 0;
        while let Some((address, write)) = space.waiting.waiters.next_from(from) {
            from = address + PAGE;
            if space.table.get(address).in_flight() && !has_arrived(space, address) {
                self.retry_unless_reading(space, address);
            } else {
                self.serve_fault(space, address, write, Instant::now());
            }
        }
    }

    /// Tries a waiting fault again soon, unless it waits for a device: the answer of the device
    /// comes into the mailbox.
    fn retry_unless_reading(&mut self, space: &Space<M>, address: u64) {
        let word = space.table.get(address);
        let is_reading = word.in_flight() && matches!(word.state(), PageState::Stored(_));
        if !is_reading || has_arrived(space, address) {
            self.retry_soon();
        }
    }

    /// Installs zeros, along a run of first touches at once. A read of an untouched page gets the
    /// zero page (charged as if it were written: a later write to it is not seen). With zero pages
    /// for writes too, no test sees more memory than without (alloc_fast, 2 threads): installed
    /// pages are charged in either case, and at most a tray at a time. The cost is a second fault
    /// for each page.
    pub fn install_zeros(&mut self, space: &mut Space<M>, address: u64, write: bool, since: Instant) -> Served {
        let window = space.readahead.first_touches.window(address, self.most_along(space, MAX_FIRST_TOUCH)).pages;
        // A page that was evicted as zeros was written once and will probably be written again: a
        // zero page would then grow unseen.
        let fills = write || space.table.get(address).state() == PageState::Zero;
        let fits = |state| state == PageState::Untouched || fills && state == PageState::Zero;
        let pages = self.run_of(space, address, window, fits);
        let length = pages * PAGE;
        if self.shared.faults.hits(self.shared.faults.found_there) {
            space.memory.copy_quietly(address, &self.zeros[..PAGE_SIZE]);
        }
        let (result, length) = shorten(length, |length| {
            if fills {
                space.memory.copy(address, &self.zeros[..length as usize])
            } else {
                space.memory.zero(address, length)
            }
        });
        let served = self.finish_install(space, address, length, result);
        if served == Served::Done {
            let done = installed_bytes(result, length);
            space.readahead.first_touches.advance(address, address + done.max(PAGE));
            self.shared.counters.zero_fills.add(done / PAGE);
            let ample = self.is_ample(space);
            for page in (address..address + done).step_by(PAGE_SIZE) {
                self.shared.touched(space.id, page);
                let active = self.is_welcome(space, page, ample);
                let word = space.table.get(page);
                self.shared.counters.swpin_zero.add(u64::from(word.state() == PageState::Zero));
                self.become_resident(space, page, word.resident().set_active(active));
            }
            let took = since.elapsed();
            self.shared.latencies.record(LatencyTier::Zero, took);
            if took > WAITED_FOR_ROOM {
                space.record.waited(took);
            }
        }
        served
    }

    /// How many pages from `address` on, at most `window`, may be installed together: all satisfy
    /// `fits`, none has anything under way, and there is room for them.
    pub fn run_of(&self, space: &Space<M>, address: u64, window: u32, fits: impl Fn(PageState) -> bool) -> u64 {
        let border = space.coverage.range_of(address).map_or(address + PAGE, |range| range.end);
        let mut pages = 1;
        while pages < u64::from(window) {
            let next = address + pages * PAGE;
            if next >= border || !self.fits_beside(space, next, pages as i64, &fits) {
                break;
            }
            pages += 1;
        }
        pages
    }

    /// Whether a page of a managed mapping may be installed although no fault for it was read: it
    /// satisfies `fits`, nothing is under way for it, and there is room for it beside `others`
    /// pages.
    pub fn fits_beside(&self, space: &Space<M>, page: u64, others: i64, fits: impl Fn(PageState) -> bool) -> bool {
        let word = space.table.get(page);
        let free = !word.in_flight() && fits(word.state()) && !space.memory.is_own(page);
        free && self.has_room(space, others + 16)
    }

    /// Installs zeros for a page that is believed resident with nothing under way. It was dropped
    /// between an event and the act that the event announced, or it is present already and the
    /// fault message is old.
    fn install_stray(&mut self, space: &mut Space<M>, address: u64) -> Served {
        let result = space.memory.copy(address, &self.zeros[..PAGE_SIZE]);
        let served = self.finish_install(space, address, PAGE, result);
        if result == Install::Done {
            self.shared.counters.stray_faults.add(1);
            let word = space.table.get(address);
            if let Some(copy) = word.kept_copy() {
                self.shared.store.release_cached(ObjectId::from_bits(copy));
            }
            space.table.set(address, word.without_copy());
        }
        served
    }

    /// Whether an incoming page becomes active, by its shadow if it was evicted, and by whether
    /// memory is `ample`.
    pub fn is_welcome(&mut self, space: &mut Space<M>, address: u64, ample: bool) -> bool {
        let word = space.table.get(address);
        let room = space.policy.has_room(ample);
        if !matches!(word.state(), PageState::Stored(_) | PageState::Zero) {
            return room;
        }
        let refault = space.policy.refault(word);
        space.record.refaulted(refault.distance);
        space.readahead.neighbours.returned(address, refault.distance as u32, space.now());
        let counters = &self.shared.counters;
        counters.workingset_refault_anon.add(1);
        counters.workingset_restore_anon.add(u64::from(refault.restore));
        counters.workingset_activate_anon.add(u64::from(refault.activate));
        space.set_aside.refaults += u64::from(!space.set_aside.shared_parked.is_empty());
        refault.activate || room
    }

    /// Marks the page as resident: sets its word, puts it on a list, and counts it.
    pub fn become_resident(&mut self, space: &mut Space<M>, address: u64, word: PageWord) {
        if space.table.get(address).state() == PageState::Zero {
            space.counts.zeros -= 1;
            self.shared.gauges.zero_pages.sub(1);
        }
        space.policy.join(&mut space.table, address, word);
        space.counts.resident += 1;
    }

    /// Handles the kernel's answer to an installation. Returns whether the fault is served.
    pub fn finish_install(&mut self, space: &mut Space<M>, address: u64, length: u64, result: Install) -> Served {
        let counters = &self.shared.counters;
        let done = installed_bytes(result, length);
        self.charge(space, (done / PAGE) as i64);
        space.lineage.copies.are_unprotected(done / PAGE);
        match result {
            Install::Done => Served::Done,
            // The first page is in place: its waiting threads have been woken.
            Install::Exists(bytes) if bytes > 0 => Served::Done,
            Install::Exists(_) => {
                counters.install_exists.add(1);
                if !self.shared.faults.no_wake {
                    space.memory.wake(address, PAGE);
                }
                self.found_present(space, address);
                Served::Done
            }
            Install::Again(bytes) => {
                counters.install_again.add(1);
                if bytes > 0 || self.shared.faults.no_retry { Served::Done } else { Served::Wait }
            }
            Install::NotRegistered(_) | Install::Gone => {
                space.memory.wake(address, length);
                Served::Done
            }
            Install::NoMemory(_) => Served::Wait,
            Install::Other(errno, _) => {
                let text = during(Growth::Telling, || format!("the kernel refused page {address:#x}: errno {errno}"));
                self.shared.notice(text);
                space.memory.wake(address, length);
                Served::Wait
            }
        }
    }

    /// Handles the kernel's answer that the page is present already. If the page table says
    /// otherwise, the kernel is right: no stored copy can be newer than the page that the program
    /// sees.
    fn found_present(&mut self, space: &mut Space<M>, address: u64) {
        let word = space.table.get(address);
        if matches!(word.state(), PageState::Untouched | PageState::Zero) {
            self.become_resident(space, address, word.resident());
        }
    }

    /// Handles a stored page whose bytes cannot be loaded.
    pub fn lost_object(&mut self, space: &mut Space<M>, address: u64, error: &LoadError) -> Served {
        if matches!(error, LoadError::Checksum { .. }) {
            self.shared.counters.checksum_errors.add(1);
        }
        during(Growth::Telling, || self.lost(space, address, &error.to_string()))
    }

    /// Poisons a page whose bytes are lost: touching it raises SIGBUS, and all other pages stay
    /// usable.
    pub fn lost(&mut self, space: &mut Space<M>, address: u64, why: &str) -> Served {
        self.shared.counters.poisoned_pages.add(1);
        let whose = space.memory.label();
        self.shared.alarm(format!("page {address:#x} of {whose} is lost: {why}; touching it raises SIGBUS"));
        self.release_pages(space, address, address + PAGE);
        space.table.set(address, PageWord::UNTOUCHED.poisoned());
        self.poison(space, address)
    }

    fn poison(&mut self, space: &mut Space<M>, address: u64) -> Served {
        let result = space.memory.poison(address, PAGE);
        self.charge(space, -1);
        self.finish_install(space, address, PAGE, result)
    }

    /// Whether the address space has ended meanwhile.
    pub fn is_over(&self, space: &Space<M>) -> bool {
        !space.memory.is_alive()
    }
}

/// Whether the page was read ahead and lies in its buffer.
fn has_arrived<M: AddressSpace>(space: &Space<M>, address: u64) -> bool {
    match space.table.get(address).state() {
        PageState::Stored(object) => space.readahead.cache.has(address, ObjectId::from_bits(object)),
        _ => false,
    }
}

/// One page of an installation buffer.
pub fn page_mut(buffer: &mut [u8], index: usize) -> &mut uswap_core::PageBuf {
    (&mut buffer[index * PAGE_SIZE..(index + 1) * PAGE_SIZE]).try_into().expect("a whole page")
}

/// Installs several pages; if they do not lie in one mapping, only the first.
pub fn shorten(length: u64, mut install: impl FnMut(u64) -> Install) -> (Install, u64) {
    match install(length) {
        Install::NotRegistered(0) if length > PAGE => (install(PAGE), PAGE),
        result => (result, length),
    }
}

/// Number of bytes that are in place now.
pub fn installed_bytes(result: Install, length: u64) -> u64 {
    match result {
        Install::Done => length,
        Install::Exists(n)
        | Install::Again(n)
        | Install::NotRegistered(n)
        | Install::NoMemory(n)
        | Install::Other(_, n) => n,
        Install::Gone => 0,
    }
}
