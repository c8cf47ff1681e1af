//! Memory without a kernel: a map of pages, for tests of the pager.
//!
//! A [`FakeProgram`] touches pages, unmaps, moves and forks. When a page is not available at once,
//! the program asks for it again later, like a thread that sleeps in a fault. Orders are executed
//! by [`FakeProgram::work`], as an agent would, when the test says so. Everything behaves as in the
//! kernel (userfaultfd(2)): while a change is unread nothing is installed and nothing moves; shared
//! pages are refused, unless the order says that they are to be copied first; a fork child has all
//! that its parent had, including the slots.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use uswap_core::PAGE;

use uswap_abi::layout::TRAY_PAGES;
use uswap_abi::ring::RunResult;
use uswap_core::{PAGE_SIZE, PageBuf};
use uswap_sys::io::events::{EventFd, Poller};
use uswap_sys::procfs::pagemap::PresentRun;
use uswap_sys::userfaultfd::Install;

use crate::address_space::{AddressSpace, Change, Filled, StagedReader};
use crate::context::{EngineContext, Mailbox};
use crate::event_loop::{Fault, Pager};
use crate::fault::served::Served;
use crate::reclaim::staging::PageRun;
use crate::runner::Runner;
use crate::space::Space;

/// Address of the first slot.
const SLOTS: u64 = 1 << 40;
/// A page of the mechanism's own.
pub const OWN: u64 = SLOTS - PAGE;
/// The number of a thread that is in a system call.
pub const IN_CALL: u32 = 77;
/// Refused orders in a row after which nothing is ordered.
const MAX_REFUSALS: u32 = 4;

/// The pages of a memory and the events that have not been read.
#[derive(Debug, Default)]
pub struct FakeState {
    /// The pages of the program.
    pub pages: BTreeMap<u64, Arc<PageBuf>>,
    /// Pages whose touch raises SIGBUS.
    pub poisoned: BTreeSet<u64>,
    /// Pages that are pinned: they do not move.
    pub pinned: BTreeSet<u64>,
    /// Pages whose writes raise a fault.
    pub protected: BTreeSet<u64>,
    slots: BTreeMap<u32, Arc<PageBuf>>,
    mapped: BTreeMap<u64, u64>,
    faults: VecDeque<Fault>,
    unread: VecDeque<Change<FakeMemory>>,
    orders: VecDeque<FakeOrder>,
    trays: BTreeMap<u32, FakeTray>,
    refusals: u32,
    gate_closed: bool,
    /// Number of further installations that are put off.
    pub again: u32,
    /// Fixed results for the next installations, instead of the real ones.
    pub answers: VecDeque<Install>,
    /// Whether every order is refused.
    pub refuses_all: bool,
    /// Whether an agent is inside the gate.
    pub is_inside: bool,
    /// Whether nothing executes orders any more.
    pub is_unserved: bool,
    /// Whether the memory is gone.
    pub is_gone: bool,
    /// Whether slots cannot be read.
    pub is_unreadable: bool,
    /// Addresses whose waiters were woken although nothing was installed.
    pub woken: Vec<u64>,
}

#[derive(Debug)]
enum FakeOrder {
    Fill { tray: u32, runs: Vec<PageRun> },
    Drop { tray: u32 },
}

#[derive(Debug, Default)]
struct FakeTray {
    orders: u32,
    filled: u64,
    cancelled: u64,
    results: Vec<RunResult>,
}

impl FakeState {
    fn is_mapped(&self, address: u64) -> bool {
        self.mapped.range(..=address).next_back().is_some_and(|(_, end)| *end > address)
    }

    fn unmap(&mut self, gone: &Range<u64>) {
        let touched: Vec<(u64, u64)> = self.mapped.range(..gone.end).map(|(start, end)| (*start, *end)).collect();
        for (start, end) in touched.into_iter().filter(|(_, end)| *end > gone.start) {
            self.mapped.remove(&start);
            if start < gone.start {
                self.mapped.insert(start, gone.start);
            }
            if end > gone.end {
                self.mapped.insert(gone.end, end);
            }
        }
        self.drop_pages(gone);
    }

    fn drop_pages(&mut self, gone: &Range<u64>) {
        self.pages.retain(|page, _| !gone.contains(page));
        self.poisoned.retain(|page| !gone.contains(page));
        self.protected.retain(|page| !gone.contains(page));
    }

    fn install(&mut self, address: u64, pages: u64, page: impl Fn(u64) -> Arc<PageBuf>) -> Install {
        if self.is_gone {
            return Install::Gone;
        }
        if let Some(answer) = self.answers.pop_front() {
            return answer;
        }
        if !self.unread.is_empty() || self.again > 0 {
            self.again = self.again.saturating_sub(1);
            return Install::Again(0);
        }
        for index in 0..pages {
            let target = address + index * PAGE;
            if !self.is_mapped(target) {
                return Install::NotRegistered(index * PAGE);
            }
            if self.pages.contains_key(&target) {
                return Install::Exists(index * PAGE);
            }
            self.pages.insert(target, page(index));
        }
        Install::Done
    }

    /// Moves one page into its slot.
    fn move_page(&mut self, address: u64, slot: u32, unshare: bool) -> RunResult {
        if !self.unread.is_empty() {
            return RunResult::Again;
        }
        let Some(page) = self.pages.get(&address) else { return RunResult::Refused };
        if self.pinned.contains(&address) || Arc::strong_count(page) > 1 && !unshare {
            return RunResult::Busy;
        }
        let page = self.pages.remove(&address).expect("looked at just now");
        self.protected.remove(&address);
        let own = if unshare { Arc::new(*page) } else { page };
        assert!(self.slots.insert(slot, own).is_none(), "slot {slot} holds a page already");
        RunResult::Moved
    }

    fn fill(&mut self, tray: u32, runs: &[PageRun]) {
        let (mut results, mut filled) = (Vec::new(), 0);
        let cancelled = self.trays.entry(tray).or_default().cancelled;
        for (index, run) in runs.iter().enumerate() {
            let mut result = RunResult::Moved;
            if cancelled & 1 << index != 0 {
                result = RunResult::Cancelled;
            } else if self.refuses_all {
                result = RunResult::Gone;
            }
            for page in 0..run.pages {
                if result != RunResult::Moved {
                    break;
                }
                let slot = run.slot + page;
                result = self.move_page(run.address + u64::from(page) * PAGE, tray * TRAY_PAGES + slot, run.unshare);
                filled |= u64::from(result == RunResult::Moved) << slot;
            }
            results.push(result);
        }
        let tray = self.trays.entry(tray).or_default();
        (tray.results, tray.filled) = (results, tray.filled | filled);
        tray.orders += 1;
    }

    fn execute(&mut self, order: FakeOrder) {
        match order {
            FakeOrder::Fill { tray, runs } => self.fill(tray, &runs),
            FakeOrder::Drop { tray: number } => {
                self.slots.retain(|slot, _| slot / TRAY_PAGES != number);
                self.trays.entry(number).or_default().orders += 1;
            }
        }
    }
}

/// The memory, as its pager sees it.
#[derive(Debug)]
pub struct FakeMemory {
    state: Arc<Mutex<FakeState>>,
    bell: Arc<EventFd>,
    process: u32,
    is_copy: bool,
    read: Vec<Change<FakeMemory>>,
}

/// The same memory, as its program sees it.
#[derive(Clone, Debug)]
pub struct FakeProgram {
    state: Arc<Mutex<FakeState>>,
    bell: Arc<EventFd>,
}

/// The outcome of a touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// The page's first bytes.
    Value(u64),
    /// The thread sleeps in a fault.
    Sleeps,
    /// SIGBUS.
    Lost,
    /// SIGSEGV.
    NotMapped,
}

impl FakeProgram {
    /// Looks at the state, or changes it.
    pub fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().expect("state")
    }

    /// Reads the page, or writes `value` into it.
    pub fn touch(&self, address: u64, value: Option<u64>) -> Touch {
        let mut state = self.state();
        if !state.is_mapped(address) {
            return Touch::NotMapped;
        }
        if state.poisoned.contains(&address) {
            return Touch::Lost;
        }
        let protected = value.is_some() && state.protected.contains(&address);
        if protected || !state.pages.contains_key(&address) {
            let fault = Fault { address, write: value.is_some(), protected, thread: 1 };
            state.faults.push_back(fault);
            self.bell.ring();
            return Touch::Sleeps;
        }
        let page = state.pages.get_mut(&address).expect("it is there");
        if let Some(value) = value {
            let bytes = Arc::make_mut(page);
            bytes[..8].copy_from_slice(&value.to_ne_bytes());
            // The page must not be of one repeated value, so that it is stored and not only
            // remembered.
            bytes[8..16].copy_from_slice(&(!value).to_ne_bytes());
        }
        Touch::Value(u64::from_ne_bytes(page[..8].try_into().expect("eight bytes")))
    }

    fn change(&self, change: Change<FakeMemory>) {
        self.state().unread.push_back(change);
        self.bell.ring();
    }

    /// munmap(2).
    pub fn unmap(&self, range: Range<u64>) {
        self.state().unmap(&range);
        self.change(Change::Unmap(range));
    }

    /// madvise(MADV_DONTNEED); the pages go when the pager has read the event.
    pub fn discard(&self, range: Range<u64>) {
        self.change(Change::Remove(range));
    }

    /// mremap(2) to a free place.
    pub fn remap(&self, from: u64, to: u64, length: u64) {
        let mut state = self.state();
        let source = from..from + length;
        let moved: Vec<_> = state.pages.range(source.clone()).map(|(page, bytes)| (*page, bytes.clone())).collect();
        state.unmap(&source);
        state.pages.extend(moved.into_iter().map(|(page, bytes)| (page - from + to, bytes)));
        state.mapped.insert(to, to + length);
        drop(state);
        self.change(Change::Remap { from, to, length, leaves: false });
    }

    /// fork(2): returns the child.
    pub fn fork(&self, process: u32) -> Self {
        let state = self.state();
        let copy = FakeState {
            pages: state.pages.clone(),
            slots: state.slots.clone(),
            mapped: state.mapped.clone(),
            poisoned: state.poisoned.clone(),
            protected: state.protected.clone(),
            ..FakeState::default()
        };
        drop(state);
        let memory = FakeMemory::of(copy, process, true);
        let child = memory.program();
        self.change(Change::Fork(Box::new(memory)));
        child
    }

    /// Executes the orders that wait, unless the gate is closed.
    pub fn work(&self) {
        let mut state = self.state();
        while !state.gate_closed
            && !state.is_unserved
            && let Some(order) = state.orders.pop_front()
        {
            state.execute(order);
        }
    }

    /// Pages in the program and in slots, as the kernel counts them.
    pub fn resident(&self) -> usize {
        let state = self.state();
        state.pages.len() + state.slots.len()
    }
}

impl FakeMemory {
    fn of(state: FakeState, process: u32, is_copy: bool) -> Self {
        let bell = Arc::new(EventFd::new().expect("an eventfd"));
        Self { state: Arc::new(Mutex::new(state)), bell, process, is_copy, read: Vec::new() }
    }

    /// Memory of this process, with this range mapped and managed.
    pub fn new(process: u32, mapped: Range<u64>) -> Self {
        Self::of(
            FakeState { mapped: BTreeMap::from([(mapped.start, mapped.end)]), ..FakeState::default() },
            process,
            false,
        )
    }

    /// The program's view of this memory.
    pub fn program(&self) -> FakeProgram {
        FakeProgram { state: self.state.clone(), bell: self.bell.clone() }
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().expect("state")
    }
}

/// Reads the slots of a fake memory.
#[derive(Debug)]
pub struct FakeReader(Arc<Mutex<FakeState>>);

impl StagedReader for FakeReader {
    fn read(&self, places: &[u64], bytes: &mut [u8], _trust: bool) -> bool {
        let state = self.0.lock().expect("state");
        let slot = |place: u64| ((place - SLOTS) / PAGE) as u32;
        !state.is_unreadable
            && places.iter().zip(bytes.chunks_exact_mut(PAGE_SIZE)).all(|(place, into)| {
                let page = state.slots.get(&slot(*place));
                page.inspect(|page| into.copy_from_slice(&page[..])).is_some()
            })
    }

    fn read_missing(&self) {}
}

impl AddressSpace for FakeMemory {
    type Shared = ();
    type PerOwner = ();
    type Message = ();
    type Reader = FakeReader;

    fn per_owner(_: &Arc<Mailbox<Self>>) {}
    fn begin(_: &mut Pager<Self>) {}
    fn receive(_: &mut Pager<Self>, (): ()) {}
    fn went_round(_: &mut Pager<Self>) {}
    fn retry(_: &mut Pager<Self>) {}
    fn sweep(_: &mut Pager<Self>) {}
    fn keep_place(_: &Pager<Self>) {}
    fn processor(_: &Pager<Self>) -> Option<u32> {
        None
    }
    fn is_in_system_call(thread: u32) -> bool {
        thread == IN_CALL
    }
    fn is_leaving(_: &EngineContext<Self>) -> bool {
        false
    }
    fn is_member(_: &EngineContext<Self>, _: u32) -> bool {
        true
    }
    fn share_memory(one: u32, other: u32) -> bool {
        one == other
    }

    fn label(&self) -> String {
        format!("a fake (process {})", self.process)
    }
    fn process(&self) -> Option<u32> {
        Some(self.process)
    }
    fn is_alive(&self) -> bool {
        !self.state().is_gone
    }
    fn is_gone(&self) -> bool {
        self.state().is_gone
    }
    fn is_copy(&self) -> bool {
        self.is_copy
    }
    fn own_start(&self) -> u64 {
        OWN
    }
    fn is_own(&self, address: u64) -> bool {
        address >= OWN
    }
    fn asks_to_fork(&self, address: u64) -> bool {
        address == OWN + PAGE
    }
    fn watch(&self, poller: &Poller, token: u64) -> io::Result<()> {
        poller.add(&*self.bell, token)
    }
    fn is_ready(_: &mut Pager<Self>, _: &mut Space<Self>, _: u64) {}
    fn look_after(_: &mut Pager<Self>, _: &mut Space<Self>) {}
    fn was_removed(pager: &mut Pager<Self>, space: &Space<Self>) {
        pager.poller.remove(&*space.memory.bell);
    }
    fn runner(&self) -> Runner {
        Runner { process: self.process, ..Runner::default() }
    }
    fn may_hold(&self, thread: u32) -> Option<u32> {
        (thread != 0).then_some(self.process)
    }

    fn read(_: &mut Pager<Self>, space: &mut Space<Self>, faults: &mut Vec<Fault>) -> bool {
        space.memory.bell.clear();
        let state = space.memory.state.clone();
        let mut state = state.lock().expect("state");
        faults.extend(state.faults.drain(..));
        while let Some(change) = state.unread.pop_front() {
            if let Change::Remove(range) = &change {
                state.drop_pages(range);
            }
            space.memory.read.push(change);
        }
        true
    }
    fn is_changing(&self) -> bool {
        !self.read.is_empty()
    }
    fn take_changes(_: &Pager<Self>, space: &mut Space<Self>) -> Vec<(Change<Self>, u64)> {
        std::mem::take(&mut space.memory.read).into_iter().map(|change| (change, 0)).collect()
    }
    fn comes_to(_: &mut Space<Self>, _: u64) {}
    fn was_applied(&mut self, _: &Change<Self>) {}
    fn excluded_from_fork(_: &mut Pager<Self>, _: &mut Space<Self>, _: bool) -> Vec<(u64, u64)> {
        Vec::new()
    }
    fn begin_copy(_: &Space<Self>, _: &mut Space<Self>) {}
    fn learn(space: &mut Space<Self>, address: u64, _: bool) {
        if space.memory.state().is_mapped(address) {
            space.coverage.registered.insert(address, address + PAGE);
        }
    }
    fn is_settled(_: &mut Pager<Self>, _: &mut Space<Self>) -> bool {
        true
    }

    fn copy(&self, address: u64, pages: &[u8]) -> Install {
        let page = |index: u64| Arc::new(pages[index as usize * PAGE_SIZE..][..PAGE_SIZE].try_into().expect("a page"));
        self.state().install(address, (pages.len() / PAGE_SIZE) as u64, page)
    }
    fn copy_quietly(&self, address: u64, pages: &[u8]) {
        self.copy(address, pages);
    }
    fn zero(&self, address: u64, length: u64) -> Install {
        self.state().install(address, length / PAGE, |_| Arc::new([0; PAGE_SIZE]))
    }
    fn poison(&self, address: u64, length: u64) -> Install {
        self.state().poisoned.extend((address..address + length).step_by(PAGE_SIZE));
        Install::Done
    }
    fn wake(&self, address: u64, _: u64) {
        self.state().woken.push(address);
    }
    fn protect(&self, address: u64, length: u64) -> io::Result<()> {
        let mut state = self.state();
        if !state.unread.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let there: Vec<u64> = state.pages.range(address..address + length).map(|(page, _)| *page).collect();
        state.protected.extend(there);
        Ok(())
    }
    fn unprotect(&self, address: u64, length: u64) -> io::Result<()> {
        let mut state = self.state();
        if !state.unread.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.protected.retain(|page| !(address..address + length).contains(page));
        Ok(())
    }
    fn never_protected(&self) -> Vec<u64> {
        Vec::new()
    }
    fn serve_own(pager: &mut Pager<Self>, space: &mut Space<Self>, address: u64) -> Served {
        let result = space.memory.zero(address, PAGE);
        pager.finish_install(space, address, PAGE, result)
    }

    fn is_present(&self, address: u64) -> Option<bool> {
        let slot = (address.wrapping_sub(SLOTS) / PAGE) as u32;
        let state = self.state();
        Some(if address >= SLOTS { state.slots.contains_key(&slot) } else { state.pages.contains_key(&address) })
    }
    fn present(&self, start: u64, end: u64, runs: &mut [PresentRun]) -> io::Result<(usize, u64)> {
        let state = self.state();
        let mut found = state.pages.range(start..end).map(|(page, _)| *page);
        let mut count = 0;
        for (run, page) in runs.iter_mut().zip(&mut found) {
            (run.start, run.end) = (page, page + PAGE);
            count += 1;
        }
        Ok((count, found.next().unwrap_or(end)))
    }
    fn pages_present(&self) -> Option<i64> {
        let state = self.state();
        Some((state.pages.len() + state.slots.len()) as i64)
    }
    fn is_registered(&self, address: u64) -> Option<bool> {
        Some(self.state().is_mapped(address))
    }
    fn knows_sharing(&self) -> bool {
        true
    }
    fn is_exclusive(&mut self, address: u64) -> bool {
        self.state().pages.get(&address).is_none_or(|page| Arc::strong_count(page) == 1)
    }

    fn can_stage(&self) -> bool {
        let state = self.state();
        !state.is_unserved && state.refusals < MAX_REFUSALS
    }
    fn is_served(&self) -> bool {
        !self.state().is_unserved
    }
    fn is_stopped(&self) -> bool {
        false
    }
    fn is_orphaned(&self) -> bool {
        self.state().is_unserved
    }
    fn close_gate(&mut self) -> bool {
        let mut state = self.state();
        state.gate_closed = true;
        !state.is_inside
    }
    fn is_gate_closed(&self) -> bool {
        self.state().gate_closed
    }
    fn open_gate(&mut self) {
        self.state().gate_closed = false;
    }
    fn order_fill(&self, tray: u32, runs: &[PageRun], drop_first: bool) -> u32 {
        let mut state = self.state();
        if drop_first {
            state.orders.push_back(FakeOrder::Drop { tray });
        }
        let known = state.trays.entry(tray).or_default();
        (known.filled, known.cancelled) = (0, 0);
        state.orders.push_back(FakeOrder::Fill { tray, runs: runs.to_vec() });
        1 + u32::from(drop_first)
    }
    fn order_drop(&self, tray: u32, _: bool) {
        self.state().orders.push_back(FakeOrder::Drop { tray });
    }
    fn completed(&self, tray: u32, orders: u32) -> (bool, u64) {
        self.state().trays.get(&tray).map_or((false, 0), |tray| (tray.orders >= orders, tray.filled))
    }
    fn found_unseen(&self, _: u32, _: u64) -> u64 {
        0
    }
    fn filled(&self, tray: u32) -> Option<Filled> {
        let mut filled = Filled { results: [RunResult::Pending; TRAY_PAGES as usize], errno: 1, stuck: 0, clean: 0 };
        let state = self.state();
        filled.results.iter_mut().zip(&state.trays.get(&tray)?.results).for_each(|(into, result)| *into = *result);
        Some(filled)
    }
    fn cancel(&self, tray: u32, run: u32) {
        self.state().trays.entry(tray).or_default().cancelled |= 1 << run;
    }
    fn count_refusal(&mut self, refused: bool, _: Instant) -> bool {
        let mut state = self.state();
        state.refusals = if refused { state.refusals + 1 } else { 0 };
        state.refusals == MAX_REFUSALS
    }
    fn is_opaque(&self) -> bool {
        false
    }
    fn is_slot_empty(&self, slot: u32) -> bool {
        !self.state().slots.contains_key(&slot)
    }
    fn place_of(&self, slot: u32, inherited: bool) -> Option<u64> {
        let is_there = !inherited || self.state().slots.contains_key(&slot);
        is_there.then(|| SLOTS + u64::from(slot) * PAGE)
    }
    fn can_read(_: &mut Pager<Self>, _: &mut Space<Self>) -> bool {
        true
    }
    fn reads_many(&self) -> bool {
        true
    }
    fn read_staged(&self, places: &[u64], bytes: &mut [u8], trust: bool) -> bool {
        FakeReader(self.state.clone()).read(places, bytes, trust)
    }
    fn reader(&self) -> Option<FakeReader> {
        (!self.state().is_unserved).then(|| FakeReader(self.state.clone()))
    }
}
