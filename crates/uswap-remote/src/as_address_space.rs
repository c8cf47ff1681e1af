//! [`AddressSpace`] for another process's memory, by a userfaultfd, an agent and /proc.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

use uswap_abi::layout::{CONTROL_BLOCK, NONCE, PAGE, SB, TRAY_PAGES, TRAYS};
use uswap_abi::ring::{Operation, RunResult, errno_of};
use uswap_core::util::growth::{Growth, during};
use uswap_sys::io::events::Poller;
use uswap_sys::process::trace;
use uswap_sys::procfs::memory::Memory;
use uswap_sys::procfs::pagemap::PresentRun;
use uswap_sys::procfs::vmread::{self, RemoteRange};
use uswap_sys::procfs::{self, Statm};
use uswap_sys::userfaultfd::{Event, Install};

use crate::address_space::Remote;
use crate::agent::absence::AbsencePager;
use crate::agent::absence::SOCKET;
use crate::agent::admission::admit::AdmissionPager;
use crate::agent::handshake::HandshakePager;
use crate::agent::handshake_child::HandshakeChildPager;
use crate::agent::processes::watch::ProcessesPager;
use crate::agent::processes::{self, robust_lists};
use crate::detach::bring_back::DetachPager;
use crate::events::hook_notes::HookNotesPager;
use crate::events::reading::ReadingPager;
use crate::events::reorder::Held;
use crate::identity::area_faults::AreaFaultsPager;
use crate::scan::ScanPager;
use crate::scan::ScanSpace;
use crate::sched::affinity::AffinityPolicy;
use crate::settle::SettlePager;
use crate::shared::{RemoteMessage, RemoteOwner, RemoteShared};
use crate::{EngineContext, Mailbox, Pager, Space};
use uswap_pager::address_space::{AddressSpace, Change, Filled, StagedReader};
use uswap_pager::event_loop::Fault;
use uswap_pager::fault::served::Served;
use uswap_pager::reclaim::staging::{PageRun, bits};
use uswap_pager::runner::Runner;

/// Maximum of orders in a row that an agent may fail to execute; after that its process gets none
/// for a while.
const MAX_REFUSALS: u32 = 16;
/// How long such a process gets no orders.
const SULK: Duration = Duration::from_secs(1);
/// How often the pager thread spins for the agent to leave the gate before it goes on with other
/// work.
const GATE_SPINS: u32 = 2000;

impl AddressSpace for Remote {
    type Shared = RemoteShared;
    type PerOwner = RemoteOwner;
    type Message = RemoteMessage;
    type Reader = RemoteReader;

    fn per_owner(mailbox: &Arc<Mailbox>) -> RemoteOwner {
        RemoteOwner {
            events: Vec::with_capacity(256),
            placement: AffinityPolicy::of_this_thread(false, mailbox.clone()),
            lobby: Default::default(),
            late_children: Vec::new(),
        }
    }

    fn begin(pager: &mut Pager) {
        let mailbox = pager.shared.mailboxes[pager.number].clone();
        pager.of_memory.placement = AffinityPolicy::of_this_thread(!pager.shared.faults.no_placement, mailbox);
    }

    fn receive(pager: &mut Pager, message: RemoteMessage) {
        match message {
            RemoteMessage::Hello(greeting) => pager.receive_hello(greeting),
            RemoteMessage::Matched { space, found } => {
                pager.with_space(space, |owner, space| owner.matched(space, found));
            }
            RemoteMessage::Scan(id) => pager.with_space(id, Pager::scan),
            RemoteMessage::Dismiss { space, agent } => pager.with_space(space, |owner, space| {
                if space.memory.reader == agent {
                    owner.dismiss(space);
                }
            }),
        }
    }

    fn went_round(pager: &mut Pager) {
        pager.leave();
    }

    fn retry(pager: &mut Pager) {
        pager.open_lobby();
        pager.greet_late_children();
    }

    fn sweep(pager: &mut Pager) {
        pager.of_memory.placement.sweep();
    }

    fn keep_place(pager: &Pager) {
        pager.of_memory.placement.keep();
    }

    fn processor(pager: &Pager) -> Option<u32> {
        pager.of_memory.placement.processor()
    }

    fn is_in_system_call(thread: u32) -> bool {
        procfs::is_in_system_call(thread)
    }

    fn is_leaving(shared: &EngineContext) -> bool {
        shared.of_memory.leaving.is_under_way()
    }

    fn is_member(shared: &EngineContext, pid: u32) -> bool {
        shared.of_memory.tree.members().contains(&pid)
    }

    fn share_memory(one: u32, other: u32) -> bool {
        trace::share_memory(one, other).unwrap_or(false)
    }

    fn label(&self) -> String {
        format!("{} (process {})", self.process_name, self.pid.unwrap_or(0))
    }

    fn process(&self) -> Option<u32> {
        self.pid
    }

    /// The kernel is asked about the first guard page of the area, which is never registered.
    fn is_alive(&self) -> bool {
        self.events.is_alive(self.area)
    }

    fn is_gone(&self) -> bool {
        self.agent.is_none() && !self.is_alive()
    }

    fn is_copy(&self) -> bool {
        self.identity != 0
    }

    fn own_start(&self) -> u64 {
        self.area
    }

    fn is_own(&self, address: u64) -> bool {
        self.area != 0 && self.in_area(address)
    }

    fn asks_to_fork(&self, address: u64) -> bool {
        self.area != 0 && address == self.notice_page()
    }

    fn watch(&self, poller: &Poller, token: u64) -> io::Result<()> {
        poller.add(&self.events, token)
    }

    fn is_ready(pager: &mut Pager, space: &mut Space, source: u64) {
        if source == SOCKET { pager.agent_hung_up(space) } else { pager.dismiss(space) }
    }

    fn look_after(pager: &mut Pager, space: &mut Space) {
        pager.see_off(space);
        pager.look_whether_stopped(space);
        if space.memory.agent_state.orphaned.is_some() {
            pager.find_process(space, None);
        }
        pager.publish_again(space);
    }

    fn was_removed(pager: &mut Pager, space: &Space) {
        pager.poller.remove(&space.memory.events);
        if let Some(agent) = &space.memory.agent {
            pager.unwatch(agent);
        }
        pager.unwatch_program(space);
        if let Some(pid) = space.memory.pid {
            pager.shared.managed.remove(pid, space.id, pager.number);
        }
    }

    fn runner(&self) -> Runner {
        Runner { process: self.pid.unwrap_or(0), helper: self.reader, within: !self.has_agent_apart() }
    }

    fn may_hold(&self, thread: u32) -> Option<u32> {
        self.pid.filter(|_| thread != self.reader && thread != 0)
    }

    fn read(pager: &mut Pager, space: &mut Space, faults: &mut Vec<Fault>) -> bool {
        pager.read_changes(space, faults)
    }

    fn is_changing(&self) -> bool {
        !self.changes.window.is_empty()
    }

    fn take_changes(pager: &Pager, space: &mut Space) -> Vec<(Change<Self>, u64)> {
        let changes = if pager.shared.faults.order_as_read {
            space.memory.changes.window.take_as_read()
        } else {
            let (changes, misordered) = space.memory.changes_in_order(&space.coverage.registered);
            pager.shared.counters.misordered_events.add(misordered);
            changes
        };
        let told = |held| change_of(held, &space.memory, pager.number);
        changes.into_iter().filter_map(told).collect()
    }

    fn comes_to(space: &mut Space, moment: u64) {
        space.memory.changes.notes.apply_until(moment, &space.coverage.registered);
    }

    fn was_applied(&mut self, change: &Change<Self>) {
        match *change {
            Change::Unmap(ref range) => self.changes.notes.unmap(range.start, range.end),
            Change::Remap { from, to, length, leaves } => self.changes.notes.remap(from, to, length, leaves),
            Change::Remove(_) | Change::Fork(_) => return,
        }
        self.scans.are_needed = true;
    }

    fn excluded_from_fork(pager: &mut Pager, space: &mut Space, last: bool) -> Vec<(u64, u64)> {
        pager.excluded_from_fork(space, last)
    }

    fn begin_copy(parent: &Space, copy: &mut Space) {
        copy.memory.changes.notes = parent.memory.changes.notes.inherited();
        // If this fails it is tried again when the agent touches the page.
        let _ = copy.memory.install_identity();
    }

    fn learn(space: &mut Space, address: u64, page_alone: bool) {
        if page_alone { space.learn_page(address) } else { space.learn_registered(address) }
    }

    fn is_settled(pager: &mut Pager, space: &mut Space) -> bool {
        pager.is_settled(space)
    }

    fn copy(&self, address: u64, pages: &[u8]) -> Install {
        self.unless_changing(|| self.events.copy(address, pages))
    }

    fn copy_quietly(&self, address: u64, pages: &[u8]) {
        self.events.copy_quietly(address, pages);
    }

    fn zero(&self, address: u64, length: u64) -> Install {
        self.unless_changing(|| self.events.zero(address, length))
    }

    fn poison(&self, address: u64, length: u64) -> Install {
        self.unless_changing(|| self.events.poison(address, length))
    }

    fn wake(&self, address: u64, length: u64) {
        self.events.wake(address, length);
    }

    fn protect(&self, address: u64, length: u64) -> io::Result<()> {
        self.events.protect(address, length)
    }

    fn unprotect(&self, address: u64, length: u64) -> io::Result<()> {
        self.events.unprotect(address, length)
    }

    fn never_protected(&self) -> Vec<u64> {
        self.pid.map_or_else(Vec::new, control_blocks)
    }

    fn serve_own(pager: &mut Pager, space: &mut Space, address: u64) -> Served {
        pager.serve_area(space, address)
    }

    fn is_present(&self, address: u64) -> Option<bool> {
        self.proc.pagemap.as_ref()?.is_present(address).ok()
    }

    fn present(&self, start: u64, end: u64, runs: &mut [PresentRun]) -> io::Result<(usize, u64)> {
        let pagemap = self.proc.pagemap.as_ref().ok_or(io::ErrorKind::NotFound)?;
        pagemap.present(start, end, runs)
    }

    fn pages_present(&self) -> Option<i64> {
        let statm = during(Growth::AddressSpaces, || Statm::open(self.reader)).ok()?;
        Some(statm.read().ok()?.anonymous)
    }

    fn is_registered(&self, address: u64) -> Option<bool> {
        self.events.is_registered(address)
    }

    fn knows_sharing(&self) -> bool {
        self.proc.pagemap.is_some()
    }

    fn is_exclusive(&mut self, address: u64) -> bool {
        let seen = &mut self.sharing_seen;
        self.proc.pagemap.as_ref().is_none_or(|pagemap| seen.is_exclusive(pagemap, address))
    }

    fn can_stage(&self) -> bool {
        let willing = self.agent_state.refusals < MAX_REFUSALS || self.agent_state.refused.elapsed() >= SULK;
        self.agent.is_some() && self.pid.is_some() && !self.agent_state.stopped && willing
    }

    fn is_served(&self) -> bool {
        self.agent.is_some()
    }

    fn is_stopped(&self) -> bool {
        self.agent_state.stopped
    }

    fn is_orphaned(&self) -> bool {
        self.agent_state.orphaned.is_some()
    }

    fn close_gate(&mut self) -> bool {
        let Some(agent) = &self.agent else { return true };
        if !self.agent_state.gate_pending {
            agent.ring.gate.close();
            self.agent_state.gate_pending = true;
        }
        for _ in 0..GATE_SPINS {
            if agent.ring.gate.is_quiet() {
                return true;
            }
            std::hint::spin_loop();
        }
        for _ in 0..16 {
            std::thread::yield_now();
            if agent.ring.gate.is_quiet() {
                return true;
            }
        }
        false
    }

    fn is_gate_closed(&self) -> bool {
        self.agent_state.gate_pending
    }

    fn open_gate(&mut self) {
        if let Some(agent) = &self.agent
            && self.agent_state.gate_pending
        {
            agent.ring.gate.open();
        }
        self.agent_state.gate_pending = false;
    }

    fn order_fill(&self, number: u32, runs: &[PageRun], drop_first: bool) -> u32 {
        let Some(agent) = &self.agent else { return 0 };
        if agent.ring.threads.is_wanted()
            && let Some(pid) = self.pid
        {
            processes::tell_of_threads(pid, &agent.ring.threads);
        }
        let mut doorbell = drop_first && agent.ring.push(Operation::DropInherited, number);
        let shared = &agent.ring.trays[number as usize];
        for (run, target) in runs.iter().zip(&shared.runs) {
            target.what.store(run.packed(), Relaxed);
            target.slot.store(run.slot, Relaxed);
            target.result.store(RunResult::Pending as u32, Relaxed);
        }
        shared.runs_done.store(0, Relaxed);
        shared.hand_over.reset();
        shared.stuck.store(0, Relaxed);
        shared.unseen.store(0, Relaxed);
        shared.clean.store(0, Relaxed);
        shared.run_count.store(runs.len() as u32, Release);
        doorbell |= agent.ring.push(Operation::Fill, number);
        if doorbell {
            agent.ring_doorbell();
        }
        1 + u32::from(drop_first)
    }

    fn order_drop(&self, number: u32, both: bool) {
        let Some(agent) = &self.agent else { return };
        let operation = if both { Operation::DropInherited } else { Operation::Drop };
        if agent.ring.push(operation, number) {
            agent.ring_doorbell();
        }
    }

    fn completed(&self, tray: u32, orders: u32) -> (bool, u64) {
        self.agent.as_ref().map_or((false, 0), |agent| agent.ring.trays[tray as usize].hand_over.look(orders))
    }

    /// The agent may not be able to check these places any more, so the pager does.
    fn found_unseen(&self, tray: u32, ordered: u64) -> u64 {
        let Some(agent) = &self.agent else { return 0 };
        let unseen = agent.ring.trays[tray as usize].unseen.load(SeqCst) & ordered;
        let found = bits(unseen).filter(|bit| self.place_of(tray * TRAY_PAGES + bit, true).is_some());
        found.fold(0, |slots, bit| slots | 1 << bit)
    }

    fn filled(&self, tray: u32) -> Option<Filled> {
        let shared = &self.agent.as_ref()?.ring.trays[tray as usize];
        let mut results = [RunResult::Pending; TRAY_PAGES as usize];
        let told = shared.runs.iter().map(|run| RunResult::from_bits(run.result.load(Relaxed)));
        results.iter_mut().zip(told).for_each(|(result, told)| *result = told);
        let errno = errno_of(shared.runs[0].result.load(Relaxed));
        Some(Filled { results, errno, stuck: shared.stuck.load(SeqCst), clean: shared.clean.load(SeqCst) })
    }

    fn cancel(&self, tray: u32, run: u32) {
        if let Some(agent) = &self.agent {
            agent.ring.trays[tray as usize].hand_over.cancel(run);
        }
    }

    fn count_refusal(&mut self, refused: bool, now: Instant) -> bool {
        self.agent_state.refusals = if refused { self.agent_state.refusals.saturating_add(1) } else { 0 };
        if self.agent_state.refusals >= MAX_REFUSALS {
            self.agent_state.refused = now;
        }
        self.agent_state.refusals == MAX_REFUSALS
    }

    fn is_opaque(&self) -> bool {
        self.attached.is_some()
    }

    fn is_slot_empty(&self, slot: u32) -> bool {
        [self.sb(slot), self.sa(slot)].into_iter().all(|address| self.is_present(address) == Some(false))
    }

    fn place_of(&self, slot: u32, inherited: bool) -> Option<u64> {
        if !inherited {
            return Some(self.sb(slot));
        }
        [self.sb(slot), self.sa(slot)].into_iter().find(|address| self.is_present(*address) == Some(true))
    }

    fn can_read(pager: &mut Pager, space: &mut Space) -> bool {
        if space.memory.pid.is_none() {
            during(Growth::AddressSpaces, || pager.find_process(space, None));
            return false;
        }
        true
    }

    fn reads_many(&self) -> bool {
        self.nonce.is_some()
    }

    /// A fork child whose agent has not connected yet has no nonce: it is read through the memory
    /// file that `bind` opened.
    fn read_staged(&self, places: &[u64], bytes: &mut [u8], trust: bool) -> bool {
        let Some(nonce) = self.nonce else {
            let read = |memory: &Memory| places.len() == 1 && memory.read(places[0], bytes).is_ok();
            return self.proc.memory.as_ref().is_some_and(read);
        };
        RemoteReader { process: self.reader, nonce_page: self.nonce_page(), nonce }.read(places, bytes, trust)
    }

    fn reader(&self) -> Option<RemoteReader> {
        let nonce = self.agent.as_ref()?.nonce;
        Some(RemoteReader { process: self.reader, nonce_page: self.nonce_page(), nonce })
    }
}

/// Reads staged pages of one image of a process.
#[derive(Clone, Copy, Debug)]
pub struct RemoteReader {
    /// Id of the thread or process through which the memory is read.
    process: u32,
    /// Address of the nonce page.
    nonce_page: u64,
    /// The nonce that the page must hold.
    nonce: [u64; 2],
}

impl StagedReader for RemoteReader {
    /// Reads nonce and pages in one call, so that all come from the same image, and compares the
    /// nonce.
    fn read(&self, places: &[u64], bytes: &mut [u8], trust: bool) -> bool {
        let mut found = [0u8; 16];
        let mut ranges = [RemoteRange { start: self.nonce_page, length: 16 }; TRAY_PAGES as usize + 1];
        let mut count = 1;
        for start in places.iter().copied() {
            let last = &mut ranges[count - 1];
            if count > 1 && last.start + last.length == start {
                last.length += PAGE;
            } else {
                ranges[count] = RemoteRange { start, length: PAGE };
                count += 1;
            }
        }
        let length = found.len() + bytes.len();
        let complete = vmread::read_after(self.process, &ranges[..count], &mut found, bytes).is_ok_and(|n| n == length);
        let nonce = [&found[..8], &found[8..]].map(|half| u64::from_ne_bytes(half.try_into().expect("eight bytes")));
        complete && (nonce == self.nonce || trust)
    }

    fn read_missing(&self) {
        let slots = u64::from(TRAYS * TRAY_PAGES);
        let missing = self.nonce_page - NONCE + SB + (slots - 1) * PAGE;
        let range = RemoteRange { start: missing, length: PAGE };
        let read = vmread::read(self.process, &[range], &mut [0; PAGE as usize]);
        assert!(read.is_err(), "a slot without a page was read");
    }
}

/// The change of the address space that an event of the kernel stands for; `None` for a fault.
fn change_of(held: Held, parent: &Remote, owner: usize) -> Option<(Change<Remote>, u64)> {
    let change = match held.event {
        Event::Fault { .. } => return None,
        Event::Unmap { start, end } => Change::Unmap(start..end),
        Event::Remove { start, end } => Change::Remove(start..end),
        Event::Remap { from, to, length } => Change::Remap { from, to, length, leaves: held.leaves },
        Event::Fork(child) => Change::Fork(Box::new(Remote::forked(parent, child, owner))),
    };
    Some((change, held.notes))
}

/// The pages in which the control blocks of a process's threads lie.
fn control_blocks(pid: u32) -> Vec<u64> {
    let mut pages: Vec<u64> = robust_lists(pid)
        .flat_map(|head| [head.saturating_sub(CONTROL_BLOCK.0), head, head + CONTROL_BLOCK.1])
        .collect();
    pages.iter_mut().for_each(|page| *page &= !(PAGE - 1));
    pages.sort_unstable();
    pages.dedup();
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_seen_in_a_system_call() {
        // This thread is in a system call while it reads the file that says so.
        assert!(Remote::is_in_system_call(uswap_sys::process::this_thread()));
    }

    #[test]
    fn control_blocks_are_found() {
        let pages = control_blocks(std::process::id());
        assert!(!pages.is_empty() && pages.is_sorted() && pages.iter().all(|page| page % PAGE == 0), "{pages:x?}");
    }
}
