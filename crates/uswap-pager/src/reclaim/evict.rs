//! The life of an eviction: from the choice of a page (`reclaim/policy.rs` of the core) to the
//! dropped staging slot.
//!
//! Staging tests the age of a page: the page leaves the program but stays in RAM, and comes back
//! for the price of one fault if it was in use. The oldest staged trays are stored when memory is
//! needed, as long as enough younger ones remain for the test to be useful.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use uswap_core::PAGE;

use uswap_abi::layout::TRAY_PAGES;
use uswap_abi::ring::RunResult;
use uswap_core::Need;
use uswap_core::page::word::PageState;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::util::growth::{Growth, during};
use uswap_store::ObjectId;

use crate::address_space::{AddressSpace, Filled};
use crate::context::{EvictDone, EvictJob, EvictPage, Stored};
use crate::event_loop::Pager;
use crate::reclaim::staging::{PageRun, Phase, bits};
use crate::space::Space;

/// Maximum number of trays of a space that are being filled at a time.
const MAX_FILLING: usize = 32;
/// How long a page that cannot be moved is left alone.
const PARKING: Duration = Duration::from_secs(1);
/// Checking which of the formerly shared pages are still shared takes at most one part in this many
/// of the time.
const UNPARKING_COST: u32 = 50;
/// Smallest number of staged pages (unless soft faults cost too much), and largest.
const MIN_STAGED: u64 = 128;
const MAX_STAGED: u64 = 8192;
/// Maximum number of shared pages that a space must give up for its refaults: pages that it brought
/// back long ago, when there was room, do not count.
const MAX_OWED: u64 = 256;
/// Maximum number of trays of all spaces that are being stored at a time (the workers' queue).
pub const MAX_STORING: usize = 64;

impl<M: AddressSpace> Pager<M> {
    /// Starts evictions to free `wanted` pages.
    pub fn reclaim(&mut self, space: &mut Space<M>, wanted: u64) {
        if space.set_aside.refaults > 0 {
            let most = space.set_aside.refaults.min(wanted).min(TRAY_PAGES.into());
            let pressed = self.reclaim_cow_shared(space, most as usize) as u64;
            let left = (space.set_aside.refaults - pressed).min(MAX_OWED);
            space.set_aside.refaults = if space.set_aside.shared_parked.is_empty() { 0 } else { left };
        }
        let keep = staging_target(space);
        let (stored, staged) = self.store_staged(space, wanted, keep);
        let filling = space.trays.filling.len() as u64 * u64::from(TRAY_PAGES);
        let short = (wanted - stored.min(wanted)) + keep;
        let trays = short.saturating_sub(staged + filling).div_ceil(u64::from(TRAY_PAGES));
        for _ in 0..trays.min(8) {
            if space.trays.filling.len() >= MAX_FILLING || !self.fill_tray(space) {
                break;
            }
        }
    }

    /// Stores the oldest staged trays, until `wanted` pages are being stored or no more than `keep`
    /// lie staged. Returns both numbers of pages.
    pub fn store_staged(&mut self, space: &mut Space<M>, wanted: u64, keep: u64) -> (u64, u64) {
        let mut stored = 0;
        let mut staged = space.trays.staged_pages();
        while stored < wanted && staged > keep {
            let Some(number) = space.trays.staged.pop_front() else { break };
            let live = u64::from(space.trays.get(number).live.count_ones());
            if !self.store_tray(space, number) {
                break;
            }
            stored += live;
            staged -= live;
        }
        (stored, staged)
    }

    /// Orders the next pages of the inactive list into a free tray.
    fn fill_tray(&mut self, space: &mut Space<M>) -> bool {
        if !M::is_settled(self, space) && !self.shared.faults.trust_fresh {
            return false;
        }
        let (mut room, count) = self.candidates(space);
        let candidates = &mut room[..count];
        if candidates.is_empty() {
            return false;
        }
        candidates.sort_unstable();
        let Some(number) = space.trays.take_free() else {
            for address in candidates {
                let word = space.table.get(*address);
                space.policy.rejoin(&mut space.table, *address, word);
            }
            return false;
        };
        self.shared.counters.pgscan.add(candidates.len() as u64);
        let tray = space.trays.get_mut(number);
        let mut runs = std::mem::take(&mut tray.runs);
        group_runs(candidates, &space.set_aside.shared_pages, &space.set_aside.alone, &mut runs);
        if self.shared.faults.audit {
            self.audit_runs(space, &runs);
        }
        let tray = space.trays.get_mut(number);
        (tray.live, tray.filled, tray.clean, tray.ordered) = (0, 0, 0, 0);
        let mut copies = 0;
        for run in &runs {
            space.trays.get_mut(number).ordered |= run.slots();
            for index in 0..run.pages {
                let address = run.address + u64::from(index) * PAGE;
                let copied = run.unshare && space.is_mapped_elsewhere(address);
                copies += u64::from(copied);
                space.trays.get_mut(number).addresses[(run.slot + index) as usize] = address;
                let word = space.table.get(address);
                space.table.set(address, word.set_in_flight(true).set_queued(false));
                space.set_aside.shared_pages.remove(&address);
                space.set_aside.alone.remove(&address);
            }
        }
        // Dropping a copy frees what making it took: the page itself stays with the relatives.
        space.lineage.copies.unshared(copies);
        self.charge(space, copies as i64);
        let tray = space.trays.get_mut(number);
        tray.runs = runs;
        tray.phase = Phase::Filling;
        space.trays.filling.push(number);
        self.push_fill(space, number);
        true
    }

    fn push_fill(&mut self, space: &mut Space<M>, number: u32) {
        let tray = space.trays.get_mut(number);
        let drop_first = std::mem::take(&mut tray.inherited);
        tray.pushed += space.memory.order_fill(number, &tray.runs, drop_first);
    }

    /// Chooses up to a tray of pages to be evicted next. Returns them and their number.
    fn candidates(&mut self, space: &mut Space<M>) -> ([u64; TRAY_PAGES as usize], usize) {
        self.unpark(space);
        let (mut pages, mut count) = ([0; TRAY_PAGES as usize], 0);
        let mut looked = 0;
        while count < TRAY_PAGES as usize && looked < 8192 {
            looked += 1;
            let Some(address) = space.policy.next_victim(&mut space.table) else { break };
            if space.coverage.spared.contains(&address) {
                during(Growth::Lists, || space.set_aside.parked.push(address));
                continue;
            }
            let is_known = space.lineage.copies.are_known() || space.set_aside.shared_pages.contains(&address);
            if !is_known && space.is_shared(address) {
                during(Growth::Lists, || space.set_aside.shared_parked.push_back(address));
            } else {
                self.shared.counters.pgdeactivate.add(u64::from(space.table.get(address).active()));
                pages[count] = address;
                count += 1;
            }
        }
        (pages, count)
    }

    /// Tries the parked pages again, once a second.
    fn unpark(&mut self, space: &mut Space<M>) {
        let none = space.set_aside.parked.is_empty() && space.set_aside.shared_parked.is_empty();
        if none || Instant::now() < space.set_aside.unpark_at {
            return;
        }
        let begun = Instant::now();
        let own = space.take_unshared();
        for address in std::mem::take(&mut space.set_aside.parked).into_iter().chain(own) {
            if space.is_on_no_list(address) {
                let word = space.table.get(address);
                space.policy.join(&mut space.table, address, word.set_active(false));
            }
        }
        space.set_aside.unpark_at = Instant::now() + PARKING.max(begun.elapsed() * UNPARKING_COST);
    }

    /// Takes over the results that the agent has published. Called with the gate closed, or when no
    /// event that is still to come matters.
    pub fn absorb(&mut self, space: &mut Space<M>) {
        let mut index = 0;
        while let Some(number) = space.trays.filling.get(index).copied() {
            let (completed, filled) = self.look(space, number);
            let filled = filled | self.look_again(space, number);
            self.absorb_filled(space, number, filled);
            if completed {
                self.finish_fill(space, number);
            }
            // A tray that is filled has left the list.
            index += usize::from(!completed || space.trays.filling.get(index) == Some(&number));
        }
        let mut index = 0;
        while let Some(number) = space.trays.dropping.get(index).copied() {
            if self.look(space, number).0 {
                self.finish_drop(space, number);
            }
            index += usize::from(space.trays.dropping.get(index) == Some(&number));
        }
    }

    /// Whether the tray's orders are completed, and the slots that hold a page.
    fn look(&self, space: &Space<M>, number: u32) -> (bool, u64) {
        space.memory.completed(number, space.trays.get(number).pushed)
    }

    /// The slots that hold a page although the agent could not report it.
    fn look_again(&self, space: &Space<M>, number: u32) -> u64 {
        if self.shared.faults.no_second_look {
            return 0;
        }
        space.memory.found_unseen(number, space.trays.get(number).ordered)
    }

    /// Marks the pages that arrived in the tray as staged.
    fn absorb_filled(&mut self, space: &mut Space<M>, number: u32, filled: u64) {
        let tray = space.trays.get_mut(number);
        // A drop of leftovers may come first: until the fill itself runs, no slot counts as filled
        // (push_fill cleared it).
        let new = filled & tray.ordered;
        tray.filled |= filled;
        tray.clean |= new;
        tray.ordered &= !new;
        let addresses = tray.addresses;
        let mut live = 0;
        for bit in bits(new) {
            let address = addresses[bit as usize];
            let word = space.table.get(address);
            if word.state() == PageState::Resident && word.in_flight() {
                space.table.set(address, word.staged((number * TRAY_PAGES + bit) as u16));
                space.counts.resident = space.counts.resident.saturating_sub(1);
                live |= 1 << bit;
            }
        }
        space.trays.get_mut(number).live |= live;
    }

    /// Ends the filling of a tray, after all its runs were tried: pages that did not move go back
    /// to the lists.
    fn finish_fill(&mut self, space: &mut Space<M>, number: u32) {
        let Some(Filled { results, errno, stuck, clean }) = space.memory.filled(number) else { return };
        let tray = space.trays.get_mut(number);
        let left = std::mem::take(&mut tray.ordered);
        tray.inherited = stuck & tray.filled != 0;
        tray.clean &= clean;
        tray.phase = Phase::Staged;
        let mut runs = std::mem::take(&mut tray.runs);
        let addresses = tray.addresses;
        // A program without hooks may have guards where pages are believed; its own system calls
        // were checked.
        let refused = !space.memory.is_opaque()
            && tray.filled == 0
            && !results.is_empty()
            && results[..runs.len()].iter().all(|r| *r == RunResult::Gone);
        self.count_refusal(space, refused, errno);
        for (run, result) in runs.iter().zip(results) {
            for bit in bits(run.slots() & left) {
                self.put_back(space, addresses[bit as usize], result, run);
            }
        }
        runs.clear();
        space.trays.get_mut(number).runs = runs;
        space.trays.filling.retain(|n| *n != number);
        space.trays.staged.push_back(number);
        if space.trays.get(number).filled == 0 {
            space.trays.staged.retain(|n| *n != number);
            space.trays.put_free(number);
        }
        self.settle_freed(space, number);
    }

    /// Counts whether an agent's calls are all refused (for example by a seccomp filter over all
    /// threads). Such an agent will hardly do better the next time: nothing is ordered for a while
    /// ([`Space::can_evict`]). `errno`: the kernel's answer.
    fn count_refusal(&mut self, space: &mut Space<M>, refused: bool, errno: i32) {
        let is_left_alone = space.memory.count_refusal(refused, Instant::now());
        if is_left_alone && space.memory.is_alive() {
            let text = during(Growth::Telling, || {
                let error = std::io::Error::from_raw_os_error(errno);
                let whose = space.memory.label();
                format!("{whose}: its agent's system calls are refused (a seccomp filter?): {error}; its memory stays")
            });
            self.shared.notice(text);
        }
    }

    /// Puts a page back that could not be moved.
    fn put_back(&mut self, space: &mut Space<M>, address: u64, result: RunResult, run: &PageRun) {
        let word = space.table.get(address);
        if word.state() != PageState::Resident || !word.in_flight() {
            return;
        }
        let counters = &self.shared.counters;
        let result = if result == RunResult::Gone && space.memory.is_opaque() { RunResult::Refused } else { result };
        let park = match result {
            RunResult::Busy => {
                counters.move_busy.add(1);
                space.suspect_sharing();
                if space.is_shared(address) {
                    space.table.set(address, word.set_in_flight(false).set_active(false).set_queued(false));
                    return during(Growth::Lists, || space.set_aside.shared_parked.push_back(address));
                }
                run.unshare || !during(Growth::Lists, || space.set_aside.shared_pages.insert(address))
            }
            RunResult::ThreadPage | RunResult::Refused => {
                let counter =
                    if result == RunResult::Refused { &counters.move_refused } else { &counters.thread_pages };
                counter.add(1);
                run.pages == 1 || !during(Growth::Lists, || space.set_aside.alone.insert(address))
            }
            _ => {
                let word = word.set_in_flight(false).set_active(false);
                return space.policy.join(&mut space.table, address, word);
            }
        };
        if park {
            space.table.set(address, word.set_in_flight(false).set_active(false).set_queued(false));
            during(Growth::Lists, || space.set_aside.parked.push(address));
        } else {
            space.policy.rejoin(&mut space.table, address, word.set_in_flight(false));
        }
    }

    /// Hands a staged tray to the workers; `false` when they have enough to do.
    fn store_tray(&mut self, space: &mut Space<M>, number: u32) -> bool {
        self.settle_freed(space, number);
        let tray = space.trays.get(number);
        if tray.live == 0 {
            self.drop_tray(space, number);
            return true;
        }
        let Some(job) = self.evict_job(space, number) else {
            space.trays.staged.push_back(number);
            return false;
        };
        let pages = job.pages.pages.len() as u32;
        if let Err(job) = self.shared.storing.jobs.push(job) {
            self.shared.release_kept(&job);
            space.trays.staged.push_front(number);
            self.retry_soon();
            return false;
        }
        let tray = space.trays.get_mut(number);
        (tray.phase, tray.charged) = (Phase::Storing, pages);
        self.under_way(space, i64::from(pages));
        true
    }

    fn evict_job(&mut self, space: &mut Space<M>, number: u32) -> Option<EvictJob<M>> {
        let inherited = space.trays.get(number).inherited;
        let reader = space.memory.reader()?;
        let tray = space.trays.get(number);
        let mut list = self.shared.storing.lists.take(space.id as usize, 1, Need::System)?;
        list.pages.clear();
        for bit in bits(tray.live) {
            let slot = number * TRAY_PAGES + bit;
            let address = space.memory.place_of(slot, inherited)?;
            let word = space.table.get(tray.addresses[bit as usize]);
            let kept = word.kept_copy().map(ObjectId::from_bits);
            list.pages.push(EvictPage { slot: bit, address, kept, fate: Stored::Full });
        }
        let generation = tray.generation;
        let (space_id, owner) = (space.id, self.number);
        // From here on the worker decides about the kept copies.
        for page in list.pages.iter().filter(|page| page.kept.is_some()) {
            let address = space.trays.get(number).addresses[page.slot as usize];
            let word = space.table.get(address);
            space.table.set(address, word.without_copy());
        }
        let forked = space.memory.is_copy() || space.lineage.forks > 0;
        Some(EvictJob { space: space_id, owner, tray: number, generation, reader, forked, pages: list })
    }

    /// Handles a worker's answer for a space that may be gone: its objects must not leak.
    pub fn with_space_or_release(&mut self, done: EvictDone) {
        let known = self.spaces.contains_key(&done.space);
        if known {
            self.with_space(done.space, |owner, space| owner.stored(space, done));
            return;
        }
        for page in &done.pages.pages {
            if let Stored::Object(object) = page.fate {
                self.shared.store.release(object);
            }
        }
    }

    /// Handles the answer of a worker that has stored a tray: pages that are still staged there are
    /// stored now.
    fn stored(&mut self, space: &mut Space<M>, done: EvictDone) {
        let number = done.tray;
        let valid = space.trays.get(number).generation == done.generation;
        let (mut full, mut unreadable) = (false, Vec::new());
        let mut together = Quads::default();
        for EvictPage { slot: bit, fate, .. } in done.pages.pages.iter().copied() {
            let tray = space.trays.get_mut(number);
            let address = tray.addresses[bit as usize];
            let still = valid && tray.live & 1 << bit != 0 || self.shared.faults.believe_late_workers;
            match fate {
                Stored::Object(object) if !still => self.shared.store.release(object),
                _ if !still => {}
                Stored::Object(object) => {
                    let word = space.table.get(address);
                    let word = word.stored(object.to_bits(), space.policy.evict(word));
                    space.counts.stored += 1;
                    space.table.set(address, word);
                    together.add(address);
                    space.trays.get_mut(number).live &= !(1 << bit);
                }
                Stored::Zero => self.evicted_as_zeros(space, number, bit),
                Stored::Full => full = true,
                Stored::Unreadable => during(Growth::Telling, || unreadable.push(address)),
            }
        }
        space.policy.note_staged(space.trays.leaving_pages());
        self.shared.counters.stored_in_quads.add(together.pages);
        self.shared.budget.note_stored(full);
        self.after_store(space, number, &unreadable);
    }

    fn after_store(&mut self, space: &mut Space<M>, number: u32, unreadable: &[u64]) {
        if !unreadable.is_empty() && space.memory.is_alive() && space.memory.is_served() {
            let pid = space.memory.process().unwrap_or(0);
            let count = unreadable.len();
            self.shared.notice(during(Growth::Telling, || {
                format!("{count} staged pages of process {pid} cannot be read now")
            }));
        }
        if space.trays.get(number).live == 0 {
            return self.drop_tray(space, number);
        }
        // The store is full, or the process is ending: the pages stay where they are and are tried
        // again.
        let charged = std::mem::take(&mut space.trays.get_mut(number).charged);
        self.under_way(space, -i64::from(charged));
        space.trays.get_mut(number).phase = Phase::Staged;
        space.trays.staged.push_back(number);
        self.retry_soon();
    }

    /// Orders the memory of a tray to be given back.
    fn drop_tray(&mut self, space: &mut Space<M>, number: u32) {
        if !space.memory.is_served() {
            let charged = space.trays.get(number).charged;
            self.under_way(space, -i64::from(charged));
            return space.trays.put_free_unclean(number);
        }
        let tray = space.trays.get_mut(number);
        tray.phase = Phase::Dropping;
        tray.pushed += 1;
        space.memory.order_drop(number, tray.inherited);
        space.trays.dropping.push(number);
    }

    fn finish_drop(&mut self, space: &mut Space<M>, number: u32) {
        let tray = space.trays.get_mut(number);
        let (filled, charged) = (tray.filled.count_ones(), tray.charged);
        tray.generation += 1;
        self.charge(space, -i64::from(filled));
        self.under_way(space, -i64::from(charged));
        self.shared.counters.pgsteal.add(u64::from(filled));
        space.trays.dropping.retain(|n| *n != number);
        space.trays.put_free(number);
    }
}

/// Counts pages that are stored together with the three others of their aligned 16 KiB. The pages
/// must be added in the order of their addresses.
#[derive(Default)]
struct Quads {
    next: u64,
    run: u64,
    pages: u64,
}

impl Quads {
    fn add(&mut self, address: u64) {
        let begins = address.is_multiple_of(4 * PAGE);
        self.run = if begins {
            1
        } else if address == self.next && self.run > 0 {
            self.run + 1
        } else {
            0
        };
        self.pages += if self.run == 4 { 4 } else { 0 };
        self.next = address + PAGE;
    }
}

/// Number of pages that are to lie staged; at most a quarter of the resident pages, so that others
/// are left to be staged. A process that waits for its turn touches no pages, so none are tested;
/// and not every policy tests the age of pages.
fn staging_target<M: AddressSpace>(space: &Space<M>) -> u64 {
    if space.record.is_held() {
        return 0;
    }
    let Some(target) = space.policy.staging_target(space.counts.resident) else { return 0 };
    let least = if space.expense.is_high() { 0 } else { MIN_STAGED };
    target.clamp(least, MAX_STAGED).min(space.counts.resident / 4)
}

/// Groups sorted pages into runs of neighbours, one slot after the other. Pages known to be shared
/// get runs of their own, and each page in `alone` a run of one.
fn group_runs(pages: &[u64], shared: &BTreeSet<u64>, alone: &BTreeSet<u64>, runs: &mut Vec<PageRun>) {
    runs.clear();
    let mut last_alone = false;
    for (slot, address) in pages.iter().enumerate() {
        let (unshare, single) = (shared.contains(address), alone.contains(address));
        match runs.last_mut() {
            Some(run)
                if run.address + u64::from(run.pages) * PAGE == *address
                    && run.unshare == unshare
                    && !single
                    && !last_alone =>
            {
                run.pages += 1;
            }
            _ => runs.push(PageRun { address: *address, pages: 1, slot: slot as u32, unshare }),
        }
        last_alone = single;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quads_are_aligned_and_whole() {
        let count = |pages: &[u64]| {
            let mut quads = Quads::default();
            pages.iter().for_each(|page| quads.add(page * PAGE));
            quads.pages
        };
        assert_eq!(count(&[4, 5, 6, 7, 8, 9, 10, 11, 12]), 8);
        assert_eq!(count(&[0, 1, 2, 3, 5, 6, 7, 8]), 4);
        assert_eq!(count(&[1, 2, 3, 4, 5, 6]), 0);
        assert_eq!(count(&[4, 6, 7, 8, 9, 11]), 0);
    }

    #[test]
    fn runs_cover_all_pages_once_and_in_slot_order() {
        let pages = [0x1000, 0x2000, 0x3000, 0x8000, 0x9000, 0xb000];
        let mut runs = Vec::new();
        group_runs(&pages, &[0x2000].into(), &[0x9000].into(), &mut runs);
        let covered: Vec<u64> =
            runs.iter().flat_map(|r| (0..r.pages).map(move |i| r.address + u64::from(i) * PAGE)).collect();
        assert_eq!(covered, pages);
        let slots = runs.iter().fold(0, |all, run| {
            assert_eq!(all & run.slots(), 0);
            all | run.slots()
        });
        assert_eq!(slots, 0b11_1111);
        assert!(runs.iter().any(|r| (r.address, r.pages) == (0x9000, 1)));
        assert_eq!(runs.iter().filter(|r| r.unshare).map(|r| r.address).collect::<Vec<_>>(), [0x2000]);
    }
}
