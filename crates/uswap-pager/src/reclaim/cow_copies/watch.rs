//! Watching the pages that a fork left shared, and serving the writes that copy them.

use super::*;

use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::space::Space;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use uswap_core::page::word::PageState;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::util::growth::{Growth, during};

impl Copies {
    /// Watches a range that was just registered.
    pub fn watch_also<M: AddressSpace>(&mut self, memory: &M, start: u64, end: u64) {
        if self.watch == Watch::Yes && memory.protect(start, end - start).is_err() {
            self.watch = Watch::Soon;
        }
    }

    /// Wakes the writes that wait in this range: its pages have gone.
    pub fn wake<M: AddressSpace>(&mut self, memory: &M, start: u64, end: u64) {
        let gone = self.waiting.extract_if(.., |(address, _)| (start..end).contains(address));
        gone.for_each(|(address, _)| memory.wake(address, PAGE));
    }
}

impl<M: AddressSpace> Pager<M> {
    /// Notes that the space was forked, or has forked: pages that were copied before are shared
    /// again.
    pub fn copies_begin(&mut self, space: &mut Space<M>) {
        if space.lineage.copies.watch != Watch::Never {
            space.lineage.copies.watch = Watch::No;
            self.expect_copies(space);
        }
    }

    /// Watches the space if all pages that can be copied may not fit.
    pub fn expect_copies(&mut self, space: &mut Space<M>) {
        let is_due = space.lineage.copies.watch == Watch::No && space.lineage.family.may_share();
        if is_due && self.may_copies_not_fit(space) {
            self.watch(space);
        }
    }

    pub(super) fn may_copies_not_fit(&self, space: &Space<M>) -> bool {
        let most = space.counts.resident as i64 * i64::from(space.lineage.family.relatives().max(1));
        self.is_worth_watching(space) && !self.has_free_room(space, most)
    }

    /// Protects the pages of a new child, before it is known which pages these are. Returns whether
    /// they are protected.
    pub fn protect_child(&self, parent: &Space<M>, child: &Space<M>) -> bool {
        child.lineage.copies.watch == Watch::No && self.may_copies_not_fit(parent) && protect(child)
    }

    /// The same as [`Self::copies_begin`] for a child that has its page table by now.
    pub fn copies_of_child_begin(&mut self, child: &mut Space<M>, is_protected: bool) {
        if is_protected { watch_all_pages(child) } else { self.copies_begin(child) }
    }

    fn is_worth_watching(&self, space: &Space<M>) -> bool {
        let least = (self.shared.budget.limit() / MIN_PART).clamp(MIN_WATCHED.0, MIN_WATCHED.1);
        space.active && space.counts.resident as i64 >= least
    }

    /// Called when memory is short: all spaces that may share pages are watched from now on.
    pub fn watch_relatives(&mut self) {
        let is_due = |space: &Space<M>| space.lineage.copies.watch == Watch::No && space.lineage.family.may_share();
        if self.spaces.values().any(|space| is_due(space) && self.is_worth_watching(space)) {
            self.for_each_id(|owner, id| {
                let space = &owner.spaces[&id];
                if is_due(space) && owner.is_worth_watching(space) {
                    owner.with_space(id, Self::watch);
                }
            });
        }
    }

    /// Protects all present pages of the space.
    fn watch(&mut self, space: &mut Space<M>) {
        if protect(space) {
            return watch_all_pages(space);
        }
        space.lineage.copies.watch = Watch::Soon;
        self.retry_soon();
    }

    /// Serves a write to a protected page.
    pub fn serve_copy(&mut self, space: &mut Space<M>, address: u64, since: Instant) {
        self.shared.counters.copy_faults.add(1);
        if !space.lineage.family.may_share() && !space.lineage.copies.expects_fork() {
            self.watch_no_more(space);
        }
        let run = copy_run(space, address);
        let fits = run.shared == 0 || self.has_room(space, run.shared as i64);
        if fits && self.let_copy(space, address, &run) {
            return;
        }
        if !space.lineage.copies.waiting.iter().any(|(known, _)| *known == address) {
            self.shared.counters.throttled.add(1);
            during(Growth::Lists, || space.lineage.copies.waiting.push((address, since)));
        }
        self.retry_soon();
    }

    /// Lets waiting writes go on, as far as there is room or they have waited for too long, and
    /// protects the pages that are still to be protected.
    pub fn serve_copies(&mut self, space: &mut Space<M>) {
        if space.lineage.copies.watch == Watch::Soon {
            self.watch(space);
        }
        let mut index = 0;
        while let Some((address, since)) = space.lineage.copies.waiting.get(index).copied() {
            let run = copy_run(space, address);
            let has_room = run.shared == 0 || self.has_room(space, run.shared as i64);
            let goes_on = has_room || self.is_too_late(space, address, since);
            if goes_on && self.let_copy(space, address, &run) {
                self.shared.counters.over_limit.add(u64::from(!has_room));
                self.shared.counters.throttled_us.add(since.elapsed().as_micros() as u64);
                space.lineage.copies.waiting.remove(index);
            } else {
                index += 1;
            }
        }
        if !space.lineage.copies.waiting.is_empty() {
            self.retry_soon();
        }
    }

    /// Takes the protection of a run back. Its pages can be evicted like others once they are
    /// copied. Returns `false` if an event is pending.
    fn let_copy(&self, space: &mut Space<M>, address: u64, run: &CopyRun) -> bool {
        match space.memory.unprotect(run.start, run.pages * PAGE) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            // The run is no longer registered, or only a part of it is.
            Err(_) => {
                let _ = space.memory.unprotect(address, PAGE);
                space.memory.wake(address, PAGE);
            }
        }
        self.shared.counters.pages_copied.add(run.shared);
        space.lineage.copies.are_unprotected(run.pages);
        space.lineage.copies.made.add(run.shared);
        self.charge(space, run.shared as i64);
        for page in (run.start..run.start + run.pages * PAGE).step_by(PAGE as usize) {
            if space.is_on_no_list(page) {
                let word = space.table.get(page);
                space.policy.join(&mut space.table, page, word);
            }
        }
        true
    }

    /// Ends the watch of a space that has no relatives any more.
    fn watch_no_more(&mut self, space: &mut Space<M>) {
        for (start, end) in &space.coverage.registered {
            // Where this is refused, the next write tries again.
            let _ = space.memory.unprotect(*start, end - start);
        }
        space.lineage.copies.watch = Watch::No;
        space.lineage.copies.before_fork = None;
    }
}

/// Protects all present pages of the space. `false`: an event is pending.
pub(super) fn protect<M: AddressSpace>(space: &Space<M>) -> bool {
    let control = during(Growth::Telling, || space.memory.never_protected());
    let ranges = during(Growth::Lists, || without(&space.coverage.registered, &control));
    // A mapping that is gone has no pages to copy.
    ranges.into_iter().all(|(start, end)| {
        space.memory.protect(start, end - start).err().is_none_or(|error| error.kind() != ErrorKind::WouldBlock)
    })
}

/// Notes that all pages of the space are protected.
pub(super) fn watch_all_pages<M: AddressSpace>(space: &mut Space<M>) {
    space.lineage.copies.watch = Watch::Yes;
    space.lineage.copies.all_known = space.lineage.family.relatives() > 0;
    if space.lineage.copies.all_known {
        space.park_shared();
    }
}

/// The run of pages that a write to this page lets go.
fn copy_run<M: AddressSpace>(space: &mut Space<M>, address: u64) -> CopyRun {
    let copies = &mut space.lineage.copies;
    let goes_on = (copies.next..copies.next + MAX_RUN * PAGE).contains(&address);
    let wanted = if goes_on { (copies.run * 2).clamp(MIN_RUN, MAX_RUN) } else { MIN_RUN };
    let border = space.coverage.range_of(address).map_or(address + PAGE, |range| range.end);
    // Pages written before an expected fork are shared without protection.
    let most = if copies.expects_fork() { 1 } else { (border - address) / PAGE };
    let (table, memory) = (&space.table, &mut space.memory);
    let mut is_shared = |page: u64| {
        table.get(page).state() == PageState::Resident && !(memory.knows_sharing() && memory.is_exclusive(page))
    };
    let (mut pages, mut shared) = (0, 0);
    while pages < most.min(if shared > 0 { wanted } else { MAX_EXCLUSIVE }) {
        let is_one = is_shared(address + pages * PAGE);
        if is_one && pages >= wanted {
            break;
        }
        (pages, shared) = (pages + 1, shared + u64::from(is_one));
    }
    (copies.next, copies.run) = (address + pages * PAGE, pages.min(MAX_RUN));
    CopyRun { start: address, pages, shared }
}

/// The ranges without these pages, which are in order.
fn without(ranges: &BTreeMap<u64, u64>, pages: &[u64]) -> Vec<(u64, u64)> {
    let mut left = Vec::with_capacity(ranges.len());
    for (start, end) in ranges {
        let mut from = *start;
        for page in pages.iter().filter(|page| (*start..*end).contains(page)) {
            if *page > from {
                left.push((from, *page));
            }
            from = page + PAGE;
        }
        if from < *end {
            left.push((from, *end));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_out_of_ranges() {
        let ranges = BTreeMap::from([(0x1000, 0x5000), (0x8000, 0xa000), (0xc000, 0xd000)]);
        assert_eq!(without(&ranges, &[]), [(0x1000, 0x5000), (0x8000, 0xa000), (0xc000, 0xd000)]);
        let pages = [0x1000, 0x3000, 0x9000, 0xb000, 0xc000];
        assert_eq!(without(&ranges, &pages), [(0x2000, 0x3000), (0x4000, 0x5000), (0x8000, 0x9000)]);
    }
}
