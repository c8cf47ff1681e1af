//! The life of an eviction: from the victim's choice (`working_set.rs` of the core) to the dropped staging slot.
//!
//! Staging is the test of a page's age: it leaves the program but stays in RAM, and comes back for the price of one
//! fault if it was in use. The oldest staged trays are stored when memory is wanted, as long as enough younger ones
//! remain to make the test worth something.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::mpsc::TrySendError;
use std::time::{Duration, Instant};

use uswap_abi::layout::TRAY_PAGES;
use uswap_abi::ring::{Operation, RunResult};
use uswap_core::word::State;
use uswap_core::working_set::WorkingSet;
use uswap_store::ObjectId;

use crate::owner::Owner;
use crate::shared::{EvictDone, EvictJob, EvictPage, Stored};
use crate::space::{MOST_REFUSALS, Space};
use crate::tray::{PageRun, Phase, bits};

const PAGE: u64 = 4096;
/// Most trays being filled at a time in a space.
const MOST_FILLING: usize = 32;
/// How long a page that cannot be moved is left alone.
const PARKING: Duration = Duration::from_secs(1);
/// Most trays being stored at a time over all spaces (the workers' queue).
pub const MOST_STORING: usize = 64;

impl Owner {
    /// Sets evictions under way so that `wanted` pages get free.
    pub fn reclaim(&mut self, space: &mut Space, wanted: u64) {
        if space.refaults > 0 {
            let pressed = self.press_shared(space, space.refaults.min(wanted) as usize) as u64;
            space.refaults = if space.shared_parked.is_empty() { 0 } else { space.refaults - pressed };
        }
        let keep = staging_target(space);
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
        let filling = space.trays.filling.len() as u64 * u64::from(TRAY_PAGES);
        let short = (wanted - stored.min(wanted)) + keep;
        let trays = short.saturating_sub(staged + filling).div_ceil(u64::from(TRAY_PAGES));
        for _ in 0..trays.min(8) {
            if space.trays.filling.len() >= MOST_FILLING || !self.fill_tray(space) {
                break;
            }
        }
    }

    /// Orders the next pages of the inactive list into a free tray.
    fn fill_tray(&mut self, space: &mut Space) -> bool {
        if !space.is_settled() && !self.shared.faults.trust_fresh {
            return false;
        }
        let candidates = self.candidates(space);
        if candidates.is_empty() {
            return false;
        }
        let Some(number) = space.trays.take_free() else {
            for address in candidates {
                let word = space.table.get(address);
                space.working_set.rejoin(&mut space.table, address, word);
            }
            return false;
        };
        self.shared.counters.pgscan.add(candidates.len() as u64);
        let runs = group_runs(&candidates, &space.shared_pages, &space.alone);
        let tray = space.trays.get_mut(number);
        (tray.live, tray.filled, tray.ordered) = (0, 0, 0);
        for run in &runs {
            tray.ordered |= run.slots();
            for index in 0..run.pages {
                let address = run.address + u64::from(index) * PAGE;
                tray.addresses[(run.slot + index) as usize] = address;
                let word = space.table.get(address);
                space.table.set(address, word.set_in_flight(true).set_queued(false));
                space.shared_pages.remove(&address);
                space.alone.remove(&address);
            }
        }
        tray.runs = runs;
        tray.phase = Phase::Filling;
        space.trays.filling.push(number);
        self.push_fill(space, number);
        true
    }

    fn push_fill(&mut self, space: &mut Space, number: u32) {
        let Some(agent) = &space.agent else { return };
        let tray = space.trays.get_mut(number);
        let shared = &agent.ring.trays[number as usize];
        let mut doorbell = false;
        if tray.inherited {
            doorbell |= agent.ring.push(Operation::DropInherited, number);
            tray.pushed += 1;
            tray.inherited = false;
        }
        for (run, target) in tray.runs.iter().zip(&shared.runs) {
            target.what.store(run.packed(), Relaxed);
            target.slot.store(run.slot, Relaxed);
            target.result.store(RunResult::Pending as u32, Relaxed);
        }
        shared.runs_done.store(0, Relaxed);
        shared.hand_over.reset();
        shared.stuck.store(0, Relaxed);
        shared.run_count.store(tray.runs.len() as u32, Release);
        doorbell |= agent.ring.push(Operation::Fill, number);
        tray.pushed += 1;
        if doorbell {
            agent.ring_doorbell();
        }
    }

    /// Up to a tray of pages that are next to go, sorted.
    fn candidates(&mut self, space: &mut Space) -> Vec<u64> {
        self.unpark(space);
        let mut pages = Vec::with_capacity(TRAY_PAGES as usize);
        let mut looked = 0;
        while pages.len() < TRAY_PAGES as usize && looked < 8192 {
            looked += 1;
            let Some(address) = space.working_set.next_victim(&mut space.table) else { break };
            if !space.shared_pages.contains(&address) && space.is_shared(address) {
                space.shared_parked.push_back(address);
            } else {
                self.shared.counters.pgdeactivate.add(u64::from(space.table.get(address).active()));
                pages.push(address);
            }
        }
        pages.sort_unstable();
        pages
    }

    /// Once a second the parked pages are tried again.
    fn unpark(&mut self, space: &mut Space) {
        let none = space.parked.is_empty() && space.shared_parked.is_empty();
        if none || space.unparked.elapsed() < PARKING {
            return;
        }
        space.unparked = Instant::now();
        let shared = std::mem::take(&mut space.shared_parked);
        for address in std::mem::take(&mut space.parked).into_iter().chain(shared) {
            let word = space.table.get(address);
            if word.state() == State::Resident && !word.queued() && !word.in_flight() {
                space.working_set.join(&mut space.table, address, word.set_active(false));
            }
        }
    }

    /// Takes pages that relatives share, those first that were found first, at most `most`. Returns how many.
    pub fn press_shared(&mut self, space: &mut Space, most: usize) -> usize {
        let mut pressed = 0;
        while pressed < most {
            let Some(address) = space.shared_parked.pop_front() else { break };
            let word = space.table.get(address);
            if word.state() == State::Resident && !word.queued() && !word.in_flight() {
                space.shared_pages.insert(address);
                space.working_set.rejoin(&mut space.table, address, word);
                pressed += 1;
            }
        }
        pressed
    }

    /// Takes over what the agent has published. Under the gate, or when no event matters yet to come.
    pub fn absorb(&mut self, space: &mut Space) {
        let numbers = space.trays.filling.clone();
        for number in numbers {
            let (completed, filled) = self.look(space, number);
            self.absorb_filled(space, number, filled);
            if completed {
                self.finish_fill(space, number);
            }
        }
        let dropping = space.trays.dropping.clone();
        for number in dropping {
            if self.look(space, number).0 {
                self.finish_drop(space, number);
            }
        }
    }

    /// Whether the tray's orders are completed, and the slots that hold a page.
    fn look(&self, space: &Space, number: u32) -> (bool, u64) {
        let pushed = space.trays.get(number).pushed;
        space.agent.as_ref().map_or((false, 0), |agent| agent.ring.trays[number as usize].hand_over.look(pushed))
    }

    /// Pages that arrived in the tray are staged from now on.
    fn absorb_filled(&mut self, space: &mut Space, number: u32, filled: u64) {
        let tray = space.trays.get_mut(number);
        // A drop of leftovers may come first: until the fill itself runs, nothing is filled (push_fill cleared it).
        let new = filled & tray.ordered;
        tray.filled |= filled;
        tray.ordered &= !new;
        let addresses = tray.addresses;
        let mut live = 0;
        for bit in bits(new) {
            let address = addresses[bit as usize];
            let word = space.table.get(address);
            if word.state() == State::Resident && word.in_flight() {
                space.table.set(address, word.staged((number * TRAY_PAGES + bit) as u16));
                space.resident = space.resident.saturating_sub(1);
                live |= 1 << bit;
            }
        }
        space.trays.get_mut(number).live |= live;
    }

    /// All runs of the tray were tried: what did not move goes back to the lists.
    fn finish_fill(&mut self, space: &mut Space, number: u32) {
        let Some(agent) = &space.agent else { return };
        let shared = &agent.ring.trays[number as usize];
        let results: Vec<RunResult> =
            shared.runs.iter().map(|run| RunResult::from_bits(run.result.load(Relaxed))).collect();
        let stuck = shared.stuck.load(SeqCst);
        let tray = space.trays.get_mut(number);
        let left = std::mem::take(&mut tray.ordered);
        tray.inherited = stuck & tray.filled != 0;
        tray.phase = Phase::Staged;
        let runs = std::mem::take(&mut tray.runs);
        let addresses = tray.addresses;
        let refused =
            tray.filled == 0 && !results.is_empty() && results[..runs.len()].iter().all(|r| *r == RunResult::Gone);
        self.count_refusal(space, refused);
        for (run, result) in runs.iter().zip(results) {
            for bit in bits(run.slots() & left) {
                self.put_back(space, addresses[bit as usize], result, run);
            }
        }
        space.trays.filling.retain(|n| *n != number);
        space.trays.staged.push_back(number);
        if space.trays.get(number).filled == 0 {
            space.trays.staged.retain(|n| *n != number);
            space.trays.put_free(number);
        }
    }

    /// An agent whose calls are all refused (a seccomp filter over all threads) will not do better the next time.
    fn count_refusal(&mut self, space: &mut Space, refused: bool) {
        space.refusals = if refused { space.refusals + 1 } else { 0 };
        if space.refusals == MOST_REFUSALS && space.is_alive() {
            let (name, pid) = (&space.process_name, space.pid.unwrap_or(0));
            let text = format!(
                "{name} (process {pid}) refuses its agent's system calls (a seccomp filter?): its memory stays"
            );
            self.shared.notice(text);
        }
    }

    /// A page that could not be moved.
    fn put_back(&mut self, space: &mut Space, address: u64, result: RunResult, run: &PageRun) {
        let word = space.table.get(address);
        if word.state() != State::Resident || !word.in_flight() {
            return;
        }
        let counters = &self.shared.counters;
        let park = match result {
            RunResult::Busy => {
                counters.move_busy.add(1);
                space.suspect_sharing();
                if space.is_shared(address) {
                    space.table.set(address, word.set_in_flight(false).set_active(false).set_queued(false));
                    return space.shared_parked.push_back(address);
                }
                run.unshare || !space.shared_pages.insert(address)
            }
            RunResult::ThreadPage | RunResult::Refused => {
                let counter =
                    if result == RunResult::Refused { &counters.move_refused } else { &counters.thread_pages };
                counter.add(1);
                run.pages == 1 || !space.alone.insert(address)
            }
            _ => {
                let word = word.set_in_flight(false).set_active(false);
                return space.working_set.join(&mut space.table, address, word);
            }
        };
        if park {
            space.table.set(address, word.set_in_flight(false).set_active(false).set_queued(false));
            space.parked.push(address);
        } else {
            space.working_set.rejoin(&mut space.table, address, word.set_in_flight(false));
        }
    }

    /// Hands a staged tray to the workers; `false` when they have enough to do.
    fn store_tray(&mut self, space: &mut Space, number: u32) -> bool {
        let tray = space.trays.get(number);
        if tray.live == 0 {
            self.drop_tray(space, number);
            return true;
        }
        let Some(job) = self.evict_job(space, number) else {
            space.trays.staged.push_back(number);
            return false;
        };
        let pages = job.pages.len() as u32;
        if let Err(error) = self.shared.evictions.try_send(job) {
            let (TrySendError::Full(job) | TrySendError::Disconnected(job)) = error;
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

    fn evict_job(&mut self, space: &mut Space, number: u32) -> Option<EvictJob> {
        let inherited = space.trays.get(number).inherited;
        let (pid, agent) = (space.reader, space.agent.as_ref()?);
        let nonce = agent.nonce;
        let tray = space.trays.get(number);
        let mut pages = Vec::with_capacity(TRAY_PAGES as usize);
        for bit in bits(tray.live) {
            let slot = number * TRAY_PAGES + bit;
            let address = space.place_of(slot, inherited)?;
            let word = space.table.get(tray.addresses[bit as usize]);
            pages.push(EvictPage { slot: bit, address, kept: word.kept_copy().map(ObjectId::from_bits) });
        }
        let generation = tray.generation;
        let (space_id, owner, nonce_page) = (space.id, self.number, space.nonce_page());
        // From here on the worker decides about the kept copies.
        for page in pages.iter().filter(|page| page.kept.is_some()) {
            let address = space.trays.get(number).addresses[page.slot as usize];
            let word = space.table.get(address);
            space.table.set(address, word.without_copy());
        }
        let forked = space.identity != 0 || space.forks > 0;
        Some(EvictJob { space: space_id, owner, tray: number, generation, pid, nonce_page, nonce, forked, pages })
    }

    /// A worker's answer for a space that may be gone: its objects must not leak.
    pub fn with_space_or_release(&mut self, done: EvictDone) {
        let known = self.spaces.contains_key(&done.space);
        if known {
            self.with_space(done.space, |owner, space| owner.stored(space, done));
            return;
        }
        for (_, fate) in done.pages {
            if let Stored::Object(object) = fate {
                self.shared.store.release(object);
            }
        }
    }

    /// A worker has stored a tray: pages that are still staged there are stored now.
    fn stored(&mut self, space: &mut Space, done: EvictDone) {
        let number = done.tray;
        let valid = space.trays.get(number).generation == done.generation;
        let (mut full, mut unreadable) = (false, Vec::new());
        for (bit, fate) in done.pages {
            let tray = space.trays.get_mut(number);
            let address = tray.addresses[bit as usize];
            let still = valid && tray.live & 1 << bit != 0;
            match fate {
                Stored::Object(object) if !still => self.shared.store.release(object),
                _ if !still => {}
                Stored::Object(object) => {
                    let word = space.table.get(address);
                    let word = word.stored(object.to_bits(), space.working_set.evict(word));
                    space.stored += 1;
                    space.table.set(address, word);
                    space.trays.get_mut(number).live &= !(1 << bit);
                }
                Stored::Zero => {
                    let word = space.table.get(address);
                    space.table.set(address, word.zero(space.working_set.evict(word)));
                    space.trays.get_mut(number).live &= !(1 << bit);
                }
                Stored::Full => full = true,
                Stored::Unreadable => unreadable.push(address),
            }
        }
        self.shared.budget.exhausted.store(full, Relaxed);
        self.after_store(space, number, &unreadable);
    }

    fn after_store(&mut self, space: &mut Space, number: u32, unreadable: &[u64]) {
        if !unreadable.is_empty() && space.is_alive() && space.agent.is_some() {
            let pid = space.pid.unwrap_or(0);
            self.shared.notice(format!("{} staged pages of process {pid} cannot be read now", unreadable.len()));
        }
        if space.trays.get(number).live == 0 {
            return self.drop_tray(space, number);
        }
        // The store is full, or the process is ending: the pages stay where they are, to be tried again.
        let charged = std::mem::take(&mut space.trays.get_mut(number).charged);
        self.under_way(space, -i64::from(charged));
        space.trays.get_mut(number).phase = Phase::Staged;
        space.trays.staged.push_back(number);
        self.retry_soon();
    }

    /// Has the agent give a tray's memory back.
    fn drop_tray(&mut self, space: &mut Space, number: u32) {
        let Some(agent) = &space.agent else {
            let charged = space.trays.get(number).charged;
            self.under_way(space, -i64::from(charged));
            return space.trays.put_free(number);
        };
        let tray = space.trays.get_mut(number);
        let operation = if tray.inherited { Operation::DropInherited } else { Operation::Drop };
        tray.phase = Phase::Dropping;
        tray.pushed += 1;
        let doorbell = agent.ring.push(operation, number);
        if doorbell {
            agent.ring_doorbell();
        }
        space.trays.dropping.push(number);
    }

    fn finish_drop(&mut self, space: &mut Space, number: u32) {
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

/// Pages that shall lie staged; of a space with few pages not so many that none are left to go.
fn staging_target(space: &Space) -> u64 {
    WorkingSet::staging_target(space.resident).clamp(128, 8192).min(space.resident / 4)
}

/// Groups sorted pages into runs of neighbours, one slot after the other. Pages known to be shared go in runs of
/// their own, and those in `alone` one by one.
fn group_runs(pages: &[u64], shared: &BTreeSet<u64>, alone: &BTreeSet<u64>) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
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
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_all_pages_once_and_in_slot_order() {
        let pages = [0x1000, 0x2000, 0x3000, 0x8000, 0x9000, 0xb000];
        let runs = group_runs(&pages, &[0x2000].into(), &[0x9000].into());
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
