//! Bringing a working set back when its turn begins.

use super::*;

use crate::accounting::budget::URGENT;
use crate::address_space::AddressSpace;
use crate::event_loop::{MAX_INSTALL, Pager};
use crate::fault::install::{installed_bytes, page_mut, shorten};
use crate::space::Space;
use uswap_core::page::word::PageState;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::util::growth::{Growth, during};
use uswap_store::{Load, ObjectId};

impl<M: AddressSpace> Pager<M> {
    /// Brings back some of the pages that a process lacks in its turn. To be called again while
    /// [`Returning::is_due`].
    pub fn go_on_with_turn(&mut self, space: &mut Space<M>) {
        let held = space.record.is_held();
        if space.returning.was_held != held {
            let pages = if held { Vec::new() } else { during(Growth::Lists, || self.lacking(space)) };
            let moved = Some(Instant::now());
            space.returning = Returning { was_held: held, pages, moved };
        }
        for _ in 0..RUNS {
            if space.returning.pages.is_empty() || !self.bring_run(space) {
                break;
            }
            space.returning.moved = Some(Instant::now());
        }
        if space.returning.pages.is_empty() || space.returning.moved.is_none_or(|at| at.elapsed() > MAX_WAIT_FOR_MEMORY)
        {
            space.returning.pages = Vec::new();
        } else {
            self.retry_soon();
        }
    }

    /// The pages that were evicted last, as many as the working set lacks; highest address first.
    fn lacking(&self, space: &Space<M>) -> Vec<u64> {
        let faults = &self.shared.faults;
        let has = space.counts.resident + space.trays.staged_pages();
        let lacks = space.record.demand().saturating_sub(has);
        if lacks == 0 || faults.no_prefetch || faults.no_prepaging || self.shared.recorder.is_some() {
            return Vec::new();
        }
        let clock = space.policy.evictions();
        let stored = space.table.iter().filter(|(_, word)| matches!(word.state(), PageState::Stored(_)));
        let lately = stored.filter(|(_, word)| u64::from(word.refault_distance(clock)) <= lacks);
        let mut pages: Vec<u64> = lately.map(|(page, _)| page).take(MAX).collect();
        pages.reverse();
        pages
    }

    /// Installs the next run of neighbours, as far as they are in the pool. Returns `false` if that
    /// is not possible now.
    fn bring_run(&mut self, space: &mut Space<M>) -> bool {
        if space.memory.is_changing() || !self.has_room(space, URGENT + MAX_INSTALL as i64) {
            return false;
        }
        let Some(start) = space.returning.pages.pop() else { return false };
        let mut count = 0;
        while self.load_returning(space, start + count as u64 * PAGE, count) {
            count += 1;
            let next = start + count as u64 * PAGE;
            if count == MAX_INSTALL || space.returning.pages.last() != Some(&next) {
                break;
            }
            space.returning.pages.pop();
        }
        count == 0 || self.install_returning(space, start, count)
    }

    /// Loads a page into its place of the buffer; `false`: it is not in the pool, or something is
    /// under way for it.
    fn load_returning(&mut self, space: &Space<M>, page: u64, place: usize) -> bool {
        let word = space.table.get(page);
        let PageState::Stored(object) = word.state() else { return false };
        if word.in_flight() || !space.is_registered(page) || space.memory.is_own(page) {
            return false;
        }
        let into = page_mut(&mut self.buffer, place);
        matches!(self.shared.store.load(ObjectId::from_bits(object), into), Ok(Load::Ready))
    }

    fn install_returning(&mut self, space: &mut Space<M>, start: u64, count: usize) -> bool {
        self.shared.faults.pause(self.shared.faults.delay_install);
        let bytes = &self.buffer[..count * PAGE_SIZE];
        let (result, length) =
            shorten(bytes.len() as u64, |length| space.memory.copy(start, &bytes[..length as usize]));
        self.finish_install(space, start, length, result);
        let done = installed_bytes(result, length) / PAGE;
        for index in 0..done {
            self.returned(space, start + index * PAGE, count == 1);
        }
        self.shared.counters.prepaged.add(done);
        done > 0
    }

    /// Book-keeping of a page that was brought back: it returns to the list on which it was. It was
    /// not touched, so it does not count as a refault.
    fn returned(&mut self, space: &mut Space<M>, page: u64, lonely: bool) {
        let word = space.table.get(page);
        let active = word.workingset();
        space.waiting.waiters.remove(page);
        self.keep_copy(space, page, lonely, active);
    }
}
