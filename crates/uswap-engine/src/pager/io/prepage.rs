//! A turn begins: the working set of a process comes back as a whole.
//!
//! Whoever waits for its turn (`load_control/mod.rs`) gives all its memory to others. Brought back by a fault for each page it would
//! spend the first part of its turn on messages and wake-ups, which cost many times what the expansion of a page does. So its
//! owner brings what the process lacks of its working set: the pages that were evicted last, as many as load control's
//! estimate says beyond those that it has. Denning's remedy brings in whole working sets too; Linux's swap token, which
//! held pages but never brought any, left that to the faults.
//!
//! Only pages from the pool: those on devices come by the faults and their readahead, which keeps queues full without
//! knowing more. It goes in small steps, between the faults of all programs, and only into memory that is free. **If the guess
//! is wrong** pages come that are not touched: they lie on the list on which they were, as if they had never gone, and are
//! evicted again without having cost a fault.

use std::time::{Duration, Instant};

use uswap_core::PAGE_SIZE;
use uswap_core::page::word::PageState;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::util::growth::{Growth, during};
use uswap_store::{Load, ObjectId};

use crate::pager::accounting::charge::URGENT;
use crate::pager::address_space::AddressSpace;
use crate::pager::event_loop::{MAX_INSTALL, Pager};
use crate::pager::fault::install::{installed_bytes, page_mut, shorten};
use crate::pager::space::Space;

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages that are brought in one turn, at most: 128 MiB. The rest comes by faults.
const MAX: usize = 32_768;
/// Runs of pages that are installed between looks at the events of other processes.
const RUNS: usize = 4;
/// Where no memory is free for so long, what is left comes by faults.
const PATIENCE: Duration = Duration::from_millis(300);

/// What is on its way back to a process whose turn has begun.
#[derive(Default, Debug)]
pub struct Returning {
    was_held: bool,
    /// Highest address first.
    pages: Vec<u64>,
    /// When a page of it came last.
    moved: Option<Instant>,
}

impl Returning {
    /// Whether there is something to do, or a turn has begun or ended.
    pub fn is_due(&self, held: bool) -> bool {
        self.was_held != held || !self.pages.is_empty()
    }
}

impl<M: AddressSpace> Pager<M> {
    /// Brings some of what a process lacks in its turn. To be called again while [`Returning::is_due`].
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
        if space.returning.pages.is_empty() || space.returning.moved.is_none_or(|at| at.elapsed() > PATIENCE) {
            space.returning.pages = Vec::new();
        } else {
            self.retry_soon();
        }
    }

    /// The pages that went last, as many as the working set lacks; highest address first.
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

    /// Installs the next run of neighbours, as far as they are in the pool. `false`: not now.
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

    /// Loads a page into its place of the buffer; `false`: it is not in the pool, or has something under way.
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

    /// Book-keeping of a page that has returned: it lies where it lay. Nobody touched it, so it is no refault.
    fn returned(&mut self, space: &mut Space<M>, page: u64, lonely: bool) {
        let word = space.table.get(page);
        let active = word.workingset();
        space.waiting.waiters.remove(page);
        self.keep_copy(space, page, lonely, active);
    }
}
