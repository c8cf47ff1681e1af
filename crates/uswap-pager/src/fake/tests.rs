//! The pager on memory without a kernel: every state of a page, and every possible answer.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use uswap_core::PAGE;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use uswap_core::page::word::PageState;
use uswap_core::reclaim::PolicyKind;
use uswap_core::{PAGE_SIZE, PageHasher};
use uswap_device::RamDevice;
use uswap_store::{Concurrency, Store, StoreConfig, Tier, WritebackScratch};
use uswap_sys::io::events::EventFd;
use uswap_sys::userfaultfd::Install;

use crate::accounting::budget::Budget;
use crate::accounting::groups::Groups;
use crate::accounting::pool_share::PoolShare;
use crate::accounting::pool_size::ShareTold;
use crate::context::{EngineContext, Mailbox, TrayList};
use crate::event_loop::Pager;
use crate::fake::memory::{FakeMemory, FakeProgram, OWN, Touch};
use crate::fault_points::FaultPoints;
use crate::io::bounded_queue::Jobs;
use crate::io::reader::{self, Readers};
use crate::load_control::LoadControlState;
use crate::reclaim::evict::MAX_STORING;
use crate::reclaim::store_worker;
use crate::space::Space;
use crate::space::id::SpaceId;
use crate::space::parts::PageCounts;

/// First page of the programs' memory.
const START: u64 = 0x10_0000;
/// Pages of the budget; the reserves and marks need at least this many.
const BUDGET: u64 = 2048;
/// Time after which a wait fails; `SOON` applies where a rule is switched off and the failure is
/// expected.
const BOUND: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(3);

/// One pager, its store, and the parties that work for it. One thread does all their work in turn.
struct Rig {
    shared: Arc<EngineContext<FakeMemory>>,
    owner: Pager<FakeMemory>,
    programs: Vec<FakeProgram>,
    writeback: WritebackScratch,
    /// Orders are executed and trays are stored.
    is_working: bool,
    is_storing: bool,
    /// Intervals, in steps, at which orders are executed and trays are stored.
    pace: (u64, u64),
    steps: u64,
    bound: Duration,
}

fn shared(pool: u64, device: u32, faults: &str) -> Arc<EngineContext<FakeMemory>> {
    let faults = FaultPoints::parse(faults).expect("fault points");
    let hasher = PageHasher::new(7);
    let devices = (device > 0).then(|| (Box::new(RamDevice::new("ram", device)) as _, 0)).into_iter().collect();
    let config = StoreConfig {
        pool_limit_bytes: pool,
        pool_reserve_bytes: pool.max(1 << 20),
        hasher,
        devices,
        concurrency: Concurrency::default(),
        tier: Tier::default(),
    };
    let store = Store::new(config).expect("a store");
    store.tune(faults.tuning());
    faults.set_in(&store.faults);
    let mailboxes = vec![Arc::new(Mailbox::new().expect("a mailbox"))];
    let shared = EngineContext {
        of_memory: (),
        store,
        budget: Budget::new(BUDGET * PAGE, 2).with_slack(false),
        groups: Groups::new(2, mailboxes.iter().map(|mailbox| mailbox.lowered.clone()).collect()),
        load: LoadControlState::new(false, 1, sync_channel(8).0),
        counters: Default::default(),
        latencies: Default::default(),
        hasher,
        mailboxes,
        readers: Readers::new(faults.one_read),
        faults,
        page_callers: Default::default(),
        main_bell: EventFd::new().expect("an eventfd"),
        relatives: Default::default(),
        pool_share: ShareTold::new(PoolShare::Fixed(50.0)),
        managed: Default::default(),
        recorder: None,
        storing: crate::context::StoreQueue { jobs: Jobs::new(MAX_STORING), lists: TrayList::reserve(MAX_STORING + 4) },
        gauges: crate::context::PagerGauges {
            manageable: vec![Default::default()],
            idle: vec![Default::default()],
            zero_pages: Default::default(),
        },
        said: crate::context::Said { verdict: Default::default(), notices: Default::default() },
    };
    let shared = Arc::new(shared);
    for device in shared.store.device_numbers() {
        reader::threads::open(&shared, device).expect("a lane");
    }
    reader::threads::prepare(&shared).expect("readers");
    shared
}

impl Rig {
    /// A pager without spaces. `pool`: bytes; `device`: slots.
    fn new(pool: u64, device: u32, faults: &str) -> Self {
        let shared = shared(pool, device, faults);
        let owner = Pager::new(0, shared.clone()).expect("an owner");
        Self {
            shared,
            owner,
            programs: Vec::new(),
            writeback: WritebackScratch::new(),
            is_working: true,
            is_storing: true,
            pace: (1, 1),
            steps: 0,
            bound: BOUND,
        }
    }

    /// A program with this many pages mapped, and its space.
    fn program(&mut self, pages: u64) -> (FakeProgram, SpaceId) {
        let mapped = START..START + pages * PAGE;
        let memory = FakeMemory::new(100 + self.programs.len() as u32, mapped.clone());
        let program = memory.program();
        let mut space = Space::new(self.owner.new_id(), memory);
        space.lineage.copies.can_be_watched(true);
        (space.active, space.coverage.registered) = (true, [(mapped.start, mapped.end)].into());
        space.policy = self.shared.faults.policy.build();
        let id = space.id;
        assert!(self.owner.add_space(space));
        self.programs.push(program.clone());
        (program, id)
    }

    /// Forks a child of the program, and waits until the pager knows of it.
    fn fork(&mut self, program: &FakeProgram) -> (FakeProgram, SpaceId) {
        let known: Vec<SpaceId> = self.owner.spaces.keys().copied().collect();
        let child = program.fork(100 + self.programs.len() as u32);
        self.programs.push(child.clone());
        self.until(|rig| rig.owner.spaces.len() > known.len());
        let id = self.owner.spaces.keys().copied().find(|id| !known.contains(id)).expect("a new space");
        (child, id)
    }

    /// The program asks for leave to fork.
    fn ask_to_fork(&mut self, id: SpaceId) {
        self.owner.with_space(id, |owner, space| owner.serve_fault(space, OWN + PAGE, false, Instant::now()));
    }

    fn space(&self, id: SpaceId) -> &Space<FakeMemory> {
        &self.owner.spaces[&id]
    }

    fn state(&self, id: SpaceId, address: u64) -> PageState {
        self.space(id).table.get(address).state()
    }

    /// Lets every party do its work once.
    fn step(&mut self) {
        self.serve();
        self.help();
    }

    /// Measures as the governor does, and runs one round of the pager.
    fn serve(&mut self) {
        let begun = self.shared.budget.begin_measurement();
        let resident: usize = self.programs.iter().map(FakeProgram::resident).sum();
        self.shared.budget.set_pool(self.shared.store.pool_bytes());
        let pool = (self.shared.store.pool_bytes() / PAGE) as i64;
        self.shared.budget.end_measurement(begun, resident as i64 + pool);
        let mut ready = Vec::new();
        self.owner.poller.wait(0, &mut ready).expect("a poller");
        assert!(!self.owner.go_round(&ready));
    }

    /// Executes orders and stores trays, as far as the pace lets it.
    fn help(&mut self) {
        self.steps += 1;
        if self.is_working && self.steps.is_multiple_of(self.pace.0) {
            self.programs.iter().for_each(FakeProgram::work);
        }
        self.shared.mailboxes[0].bell.ring();
        if self.is_storing && self.steps.is_multiple_of(self.pace.1) {
            store_worker::store_waiting(&self.shared);
            if self.shared.store.needs_writeback() {
                self.shared.store.writeback(&mut self.writeback);
            }
        }
    }

    /// Steps until the condition holds.
    fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            self.step();
            assert!(begun.elapsed() < self.bound, "it never comes to pass");
        }
    }

    /// Touches the page until the touch succeeds. A thread that is woken runs before its page is
    /// taken again.
    fn touch(&mut self, program: &FakeProgram, address: u64, value: Option<u64>) -> Touch {
        let begun = Instant::now();
        loop {
            for turn in [Self::serve, Self::help] {
                match program.touch(address, value) {
                    Touch::Sleeps => turn(self),
                    touch => return touch,
                }
            }
            assert!(begun.elapsed() < self.bound, "a fault at {address:#x} is never served\n{}", self.account());
        }
    }

    fn write(&mut self, program: &FakeProgram, page: u64, value: u64) {
        assert_eq!(self.touch(program, START + page * PAGE, Some(value)), Touch::Value(value), "page {page}");
    }

    fn read(&mut self, program: &FakeProgram, page: u64) -> u64 {
        match self.touch(program, START + page * PAGE, None) {
            Touch::Value(value) => value,
            touch => panic!("page {page}: {touch:?}"),
        }
    }

    /// The state of the pager, for the message of a test that fails.
    fn account(&self) -> String {
        let budget = &self.shared.budget;
        let mut text = format!("usage {} of {}, {} under way\n", budget.usage(), budget.hard(), budget.under_way());
        for space in self.owner.spaces.values() {
            let PageCounts { resident, stored, .. } = space.counts;
            let (stalled, shared) = (space.waiting.stalled.len(), space.set_aside.shared_parked.len());
            let id = space.id;
            text += &format!("space {id}: {resident} resident ({shared} shared), {stored} stored, {stalled} stalled\n");
        }
        text + &self.notices()
    }

    /// Writes as `fill` does, with one step in between. Returns whether the write succeeded: the
    /// fault may wait.
    fn try_write(&mut self, program: &FakeProgram, page: u64) -> bool {
        program.touch(at(page), Some(page + 1));
        self.step();
        program.touch(at(page), Some(page + 1)) != Touch::Sleeps
    }

    fn fill(&mut self, program: &FakeProgram, pages: u64) {
        (0..pages).for_each(|page| self.write(program, page, page + 1));
    }

    fn check(&mut self, program: &FakeProgram, pages: u64) {
        (0..pages).for_each(|page| assert_eq!(self.read(program, page), page + 1, "page {page}"));
    }

    /// Checks the data of all spaces.
    fn audit(&mut self) {
        self.owner.for_each_id(|owner, id| owner.with_space(id, |owner, space| owner.audit(space)));
        assert_eq!(*self.shared.said.verdict.lock().expect("verdict"), None);
    }

    fn notices(&self) -> String {
        let notices = self.shared.said.notices.lock().expect("notices");
        notices.iter().map(|notice| notice.text.clone() + "\n").collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shared.store.device_numbers().into_iter().for_each(|device| self.shared.readers.close(device));
    }
}

fn at(page: u64) -> u64 {
    START + page * PAGE
}

#[test]
fn what_was_never_touched_is_zeros() {
    let mut rig = Rig::new(1 << 20, 0, "");
    let (program, id) = rig.program(64);
    assert_eq!(rig.state(id, at(3)), PageState::Untouched);
    assert_eq!(rig.read(&program, 3), 0);
    assert_eq!(rig.state(id, at(3)), PageState::Resident);
    assert_eq!(program.touch(at(64), None), Touch::NotMapped);
    rig.audit();
}

#[test]
fn more_than_fits_comes_back_from_slots_pool_and_device() {
    for (pool, device) in [(64 << 20, 0), (0, 16384), (128 << 10, 16384)] {
        let mut rig = Rig::new(pool, device, "");
        let (program, id) = rig.program(3 * BUDGET);
        rig.fill(&program, 3 * BUDGET);
        rig.check(&program, 3 * BUDGET);
        rig.check(&program, 3 * BUDGET);
        let counters = &rig.shared.counters;
        assert!(counters.pgsteal.get() > BUDGET && counters.pgmajfault.get() > 0, "pool of {pool}");
        assert_eq!(counters.pgmajfault_device.get() > 0, device > 0, "pool of {pool}");
        assert!(rig.space(id).counts.resident <= BUDGET);
        assert!(rig.shared.budget.peak() <= BUDGET as i64, "{} of {BUDGET}", rig.shared.budget.peak());
        rig.audit();
    }
}

/// Faults for each page of a program that walks down its memory without being a stream: it goes
/// from each four pages to the four below, and touches the four in another order each time.
fn faults_of_a_walk_down(pool: u64, device: u32, faults: &str) -> f64 {
    const ORDERS: [[u64; 4]; 3] = [[3, 1, 2, 0], [1, 3, 0, 2], [2, 0, 3, 1]];
    let mut rig = Rig::new(pool, device, faults);
    let (program, _) = rig.program(4 * BUDGET);
    rig.fill(&program, 4 * BUDGET);
    let counted = |rig: &Rig| rig.shared.counters.pgmajfault.get();
    let mut before = 0;
    for round in 0..3 {
        before = counted(&rig);
        for four in (0..BUDGET).rev() {
            for step in ORDERS[(four % 3) as usize] {
                let page = four * 4 + step;
                let value = page + 1 + round;
                assert_eq!(rig.read(&program, page), value, "page {page} in round {round}");
                rig.write(&program, page, value + 1);
            }
        }
    }
    rig.audit();
    (counted(&rig) - before) as f64 / (4 * BUDGET) as f64
}

#[test]
fn a_walk_down_brings_the_pages_below_with_each_page() {
    for (pool, device) in [(64 << 20, 0), (0, 65536), (128 << 10, 65536)] {
        let (with, without) =
            (faults_of_a_walk_down(pool, device, ""), faults_of_a_walk_down(pool, device, "no-prefetch"));
        assert!(with * 2.0 < without, "pool of {pool}: {with} faults a page, {without} where nothing comes along");
    }
}

#[test]
fn a_staged_page_comes_back_from_its_slot() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(2 * BUDGET);
    rig.is_storing = false;
    (0..BUDGET).for_each(|page| _ = rig.try_write(&program, page));
    rig.until(|rig| rig.space(id).trays.staged_pages() > 0);
    let staged = rig.space(id).table.iter().find(|(_, word)| matches!(word.state(), PageState::Staged(_)));
    let (address, _) = staged.expect("a staged page");
    let page = (address - START) / PAGE;
    rig.is_storing = true;
    assert_eq!(rig.read(&program, page), page + 1);
    assert!(rig.shared.counters.soft_faults.get() + rig.shared.counters.pgmajfault.get() > 0);
    rig.check(&program, BUDGET / 2);
    rig.audit();
}

/// The name of every policy is a fault point, which selects it for a program and its fork children.
#[test]
fn a_space_has_the_policy_that_was_asked_for() {
    for kind in PolicyKind::ALL {
        let mut rig = Rig::new(64 << 20, 0, kind.name());
        let (program, id) = rig.program(2 * BUDGET);
        rig.fill(&program, 8);
        let (_, child) = rig.fork(&program);
        let expected = std::mem::discriminant(&kind.build());
        for id in [id, child] {
            assert_eq!(std::mem::discriminant(&rig.space(id).policy), expected, "{kind:?}");
        }
    }
    let holds_any = |faults: &str| {
        let mut rig = Rig::new(64 << 20, 0, faults);
        let (program, id) = rig.program(2 * BUDGET);
        rig.fill(&program, 2 * BUDGET);
        rig.space(id).table.iter().any(|(_, word)| word.active())
    };
    assert!(holds_any("") && !holds_any("fifo"), "nothing is active without a policy");
}

#[test]
fn zeros_are_remembered_and_not_stored() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(3 * BUDGET);
    (0..2 * BUDGET).for_each(|page| assert_eq!(rig.read(&program, page), 0));
    rig.until(|rig| rig.space(id).counts.zeros > 0);
    assert_eq!(rig.shared.store.stats().stored_pages, 0);
    (0..2 * BUDGET).for_each(|page| assert_eq!(rig.read(&program, page), 0));
    assert!(rig.shared.counters.swpin_zero.get() > 0);
    rig.audit();
}

#[test]
fn what_the_kernel_puts_off_is_decided_anew() {
    let mut rig = Rig::new(1 << 20, 0, "");
    let (program, _) = rig.program(64);
    program.state().again = 5;
    assert_eq!(rig.read(&program, 0), 0);
    assert_eq!((rig.shared.counters.install_again.get(), program.state().again), (5, 0));
}

#[test]
fn a_page_that_is_there_wakes_its_waiter_and_stays_as_it_is() {
    let mut rig = Rig::new(1 << 20, 0, "");
    let (program, id) = rig.program(64);
    rig.write(&program, 0, 9);
    // The fault of a second thread, read after that of the first was served.
    let mut bytes = [0; PAGE_SIZE];
    bytes[0] = 5;
    assert_eq!(program.touch(at(40), None), Touch::Sleeps);
    program.state().pages.insert(at(40), Arc::new(bytes));
    rig.step();
    assert_eq!(program.touch(at(40), None), Touch::Value(5));
    assert_eq!(program.state().woken, [at(40)]);
    assert_eq!((rig.state(id, at(40)), rig.shared.counters.install_exists.get()), (PageState::Resident, 1));
    rig.audit();
}

#[test]
fn what_is_not_managed_any_more_wakes_its_waiter() {
    let mut rig = Rig::new(1 << 20, 0, "");
    let (program, _) = rig.program(64);
    for answer in [Install::NotRegistered(0), Install::Gone] {
        program.state().answers.extend([answer, answer]);
        assert_eq!(program.touch(at(0), None), Touch::Sleeps);
        rig.step();
        assert_eq!(program.state().woken, [at(0)]);
        program.state().woken.clear();
        program.state().answers.clear();
    }
    assert_eq!(rig.read(&program, 0), 0);
}

#[test]
fn without_memory_it_is_tried_again_and_what_nobody_foresaw_is_said() {
    let mut rig = Rig::new(1 << 20, 0, "");
    let (program, _) = rig.program(64);
    program.state().answers.extend([Install::NoMemory(0), Install::NoMemory(0), Install::Other(99, 0)]);
    assert_eq!(rig.read(&program, 0), 0);
    assert!(rig.notices().contains("errno 99"), "{}", rig.notices());
}

#[test]
fn the_mechanisms_own_pages_are_served_and_not_counted_among_the_programs() {
    let mut rig = Rig::new(1 << 20, 0, "");
    let (_, id) = rig.program(64);
    rig.owner.with_space(id, |owner, space| owner.serve_fault(space, OWN, false, Instant::now()));
    assert_eq!((rig.state(id, OWN), rig.space(id).counts.resident), (PageState::Untouched, 0));
}

/// Fills memory until pages are evicted, with orders under way that are not executed.
fn ordered(rig: &mut Rig, pages: u64) -> (FakeProgram, SpaceId) {
    let (program, id) = rig.program(2 * BUDGET);
    rig.is_working = false;
    (0..pages).for_each(|page| _ = rig.try_write(&program, page));
    rig.until(|rig| !rig.space(id).trays.filling.is_empty());
    (program, id)
}

#[test]
fn a_page_with_an_order_under_way_waits_for_the_outcome() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = ordered(&mut rig, BUDGET - 200);
    let in_flight = rig.space(id).table.iter().find(|(_, word)| word.in_flight()).expect("an ordered page").0;
    rig.is_working = true;
    let page = (in_flight - START) / PAGE;
    rig.until(|rig| !rig.space(id).table.get(in_flight).in_flight());
    assert_eq!(rig.read(&program, page), page + 1);
    rig.audit();
}

/// Counts the wrong pages that a child reads among those that were moved just before it was forked.
fn wrong_after_a_fork_beside_staging(faults: &str) -> usize {
    let mut rig = Rig::new(64 << 20, 0, faults);
    let (program, id) = ordered(&mut rig, BUDGET - 200);
    program.work();
    let moved: Vec<u64> = (0..BUDGET - 200).filter(|page| !program.state().pages.contains_key(&at(*page))).collect();
    assert!(moved.len() >= 64, "{} pages were moved", moved.len());
    let child = program.fork(200);
    rig.owner.with_space(id, |owner, space| owner.serve(space));
    // The parent ends: there is room for what the child reads.
    program.state().is_gone = true;
    rig.programs = vec![child.clone()];
    rig.is_working = true;
    moved.iter().take(64).filter(|page| rig.read(&child, **page) != **page + 1).count()
}

#[test]
fn what_was_just_staged_is_known_before_a_fork() {
    assert_eq!(wrong_after_a_fork_beside_staging(""), 0);
    assert!(wrong_after_a_fork_beside_staging("no-absorb") > 0, "the rule switched off is not noticed");
}

#[test]
fn an_order_for_what_was_unmapped_is_cancelled() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = ordered(&mut rig, BUDGET - 200);
    let ordered: Vec<u64> =
        rig.space(id).table.iter().filter(|(_, word)| word.in_flight()).map(|(address, _)| address).collect();
    let gone = ordered[ordered.len() / 2];
    program.unmap(gone..gone + 8 * PAGE);
    rig.until(|rig| !rig.space(id).is_registered(gone));
    assert!(rig.shared.counters.orders_cancelled.get() > 0);
    rig.is_working = true;
    for page in (0..BUDGET - 200).filter(|page| !(gone..gone + 8 * PAGE).contains(&at(*page))) {
        assert_eq!(rig.read(&program, page), page + 1);
    }
    assert_eq!(program.touch(gone, None), Touch::NotMapped);
    rig.audit();
}

#[test]
fn while_somebody_is_inside_the_gate_nothing_is_applied() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(64);
    rig.fill(&program, 8);
    program.state().is_inside = true;
    program.unmap(at(0)..at(4));
    (0..20).for_each(|_| rig.step());
    assert!(rig.space(id).is_registered(at(0)), "the gate was not waited for");
    assert!(rig.shared.counters.gate_deferred.get() > 0);
    program.state().is_inside = false;
    rig.until(|rig| !rig.space(id).is_registered(at(0)));
    (4..8).for_each(|page| assert_eq!(rig.read(&program, page), page + 1));
}

#[test]
fn a_pinned_page_is_set_aside_and_its_neighbours_go() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(2 * BUDGET);
    program.state().pinned.extend((BUDGET..BUDGET + 64).map(at));
    rig.fill(&program, 2 * BUDGET);
    rig.until(|rig| rig.shared.counters.move_busy.get() > 0);
    assert!((BUDGET..BUDGET + 64).all(|page| rig.state(id, at(page)) == PageState::Resident));
    rig.check(&program, 2 * BUDGET);
    rig.audit();
}

#[test]
fn who_refuses_everything_is_left_alone_and_that_is_said() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(2 * BUDGET);
    program.state().refuses_all = true;
    (0..BUDGET - 200).for_each(|page| _ = rig.try_write(&program, page));
    rig.until(|rig| !rig.space(id).can_evict());
    assert!(rig.notices().contains("its agent's system calls are refused"), "{}", rig.notices());
    // It exceeds its limit instead of waiting for ever: nothing is under way that would make room.
    rig.write(&program, BUDGET - 1, 77);
    rig.audit();
}

#[test]
fn what_relatives_share_is_copied_before_it_goes() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (parent, id) = rig.program(4 * BUDGET);
    rig.owner.with_space(id, |_, space| space.lineage.copies.can_be_watched(false));
    rig.fill(&parent, BUDGET / 2);
    let (child, child_id) = rig.fork(&parent);
    rig.write(&child, 3, 1003);
    (BUDGET / 2..3 * BUDGET).for_each(|page| rig.write(&parent, page, page + 1));
    rig.check(&parent, 3 * BUDGET);
    assert_eq!(rig.read(&child, 3), 1003);
    (4..BUDGET / 2).for_each(|page| assert_eq!(rig.read(&child, page), page + 1));
    assert!(rig.space(id).lineage.forks == 1 && rig.space(child_id).lineage.parent == Some(id));
    rig.audit();
}

#[test]
fn a_child_has_what_its_parent_had_evicted_and_neither_sees_the_others_writes() {
    for (pool, device) in [(64 << 20, 0), (0, 32768)] {
        let mut rig = Rig::new(pool, device, "");
        let (parent, _) = rig.program(4 * BUDGET);
        rig.fill(&parent, 2 * BUDGET);
        let (child, _) = rig.fork(&parent);
        (0..2 * BUDGET).step_by(2).for_each(|page| rig.write(&child, page, page + 5000));
        (0..2 * BUDGET).step_by(3).for_each(|page| rig.write(&parent, page, page + 9000));
        for page in 0..2 * BUDGET {
            let (own, its) = (if page % 3 == 0 { 9000 } else { 1 }, if page % 2 == 0 { 5000 } else { 1 });
            assert_eq!(rig.read(&parent, page), page + own, "parent's page {page}");
            assert_eq!(rig.read(&child, page), page + its, "child's page {page}");
        }
        rig.audit();
    }
}

#[test]
fn what_is_dropped_reads_as_zeros_in_every_state_and_its_neighbours_stay() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(3 * BUDGET);
    rig.fill(&program, 2 * BUDGET);
    let mut states = Vec::new();
    for page in (0..2 * BUDGET).step_by(16) {
        states.push(std::mem::discriminant(&rig.state(id, at(page))));
        program.discard(at(page)..at(page + 8));
        rig.step();
    }
    states.dedup();
    assert!(states.len() > 1, "pages of one kind only were dropped");
    for page in 0..2 * BUDGET {
        let expected = if page % 16 < 8 { 0 } else { page + 1 };
        assert_eq!(rig.read(&program, page), expected, "page {page}");
    }
    rig.audit();
}

#[test]
fn what_moves_keeps_its_bytes_in_every_state() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(2 * BUDGET);
    rig.fill(&program, 2 * BUDGET);
    let away = 8 * BUDGET;
    program.remap(at(0), at(away), 2 * BUDGET * PAGE);
    rig.until(|rig| rig.space(id).is_registered(at(away)));
    for page in 0..2 * BUDGET {
        assert_eq!(program.touch(at(page), None), Touch::NotMapped);
        assert_eq!(rig.read(&program, away + page), page + 1, "page {page}");
    }
    rig.audit();
}

#[test]
fn a_fault_waits_for_room_and_is_served_when_there_is_some() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(3 * BUDGET);
    rig.is_storing = false;
    let mut page = 0;
    while rig.space(id).waiting.stalled.is_empty() {
        page += u64::from(rig.try_write(&program, page));
        assert!(page < 2 * BUDGET, "nobody waits for room");
    }
    assert!(rig.shared.counters.throttled.get() > 0);
    rig.is_storing = true;
    rig.write(&program, page, page + 1);
    rig.check(&program, page);
    assert!(rig.shared.budget.peak() <= BUDGET as i64);
}

#[test]
fn a_store_that_takes_nothing_leaves_pages_where_they_are() {
    let mut rig = Rig::new(0, 0, "");
    let (program, _) = rig.program(2 * BUDGET);
    let mut written = 0;
    while !rig.shared.budget.exhausted.load(SeqCst) {
        written += u64::from(rig.try_write(&program, written));
        assert!(written < 2 * BUDGET);
    }
    rig.check(&program, written / 2);
    rig.audit();
}

#[test]
fn a_page_whose_bytes_are_damaged_is_lost_by_name_and_no_other() {
    let mut rig = Rig::new(64 << 20, 0, "flip-pool=200");
    let (program, _) = rig.program(3 * BUDGET);
    rig.fill(&program, 3 * BUDGET);
    let mut lost = 0;
    for page in 0..3 * BUDGET {
        match rig.touch(&program, at(page), None) {
            Touch::Value(value) => assert_eq!(value, page + 1, "page {page}"),
            Touch::Lost => lost += 1,
            touch => panic!("page {page}: {touch:?}"),
        }
    }
    assert!(lost > 0 && lost == rig.shared.counters.poisoned_pages.get(), "{lost}");
    assert!(rig.notices().contains("of a fake (process 100) is lost"), "{}", rig.notices());
}

#[test]
fn without_anybody_who_executes_orders_what_lies_in_slots_can_be_read() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(2 * BUDGET);
    rig.is_storing = false;
    (0..BUDGET).for_each(|page| _ = rig.try_write(&program, page));
    rig.until(|rig| rig.space(id).trays.staged_pages() > 0);
    program.state().is_unserved = true;
    rig.owner.with_space(id, |owner, space| {
        owner.absorb(space);
        owner.settle_orphans(space);
    });
    assert!(rig.space(id).trays.filling.is_empty() && !rig.space(id).can_evict());
    rig.is_storing = true;
    rig.check(&program, BUDGET / 2);
}

#[test]
fn a_space_whose_memory_is_gone_is_buried_with_all_that_it_held() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(2 * BUDGET);
    rig.fill(&program, 2 * BUDGET);
    assert!(rig.shared.store.stats().stored_pages > 0);
    program.state().is_gone = true;
    rig.until(|rig| !rig.owner.spaces.contains_key(&id));
    assert_eq!(rig.shared.store.stats().stored_pages, 0, "objects have leaked");
    assert_eq!(rig.shared.budget.under_way(), 0);
}

#[test]
fn writes_after_a_fork_wait_for_room_where_their_copies_may_not_fit() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (parent, _) = rig.program(4 * BUDGET);
    rig.fill(&parent, BUDGET / 2);
    let (child, _) = rig.fork(&parent);
    let (other, _) = rig.fork(&parent);
    // Pages are given up from below.
    for page in (0..BUDGET / 2).rev() {
        rig.write(&child, page, page + 5000);
        rig.write(&other, page, page + 7000);
        rig.write(&parent, page, page + 9000);
    }
    for (program, own) in [(&child, 5000), (&other, 7000), (&parent, 9000)] {
        (0..BUDGET / 2).for_each(|page| assert_eq!(rig.read(program, page), page + own));
    }
    let counters = &rig.shared.counters;
    assert!(counters.copy_faults.get() > 0 && counters.pages_copied.get() > 0);
    rig.audit();
}

/// Parent and child share `pages` pages, which both have set aside: the child in the other order.
fn sharing(rig: &mut Rig, pages: u64) -> [SpaceId; 2] {
    let (parent, id) = rig.program(4 * BUDGET);
    rig.fill(&parent, pages);
    let (_, child) = rig.fork(&parent);
    for (id, is_reversed) in [(id, false), (child, true)] {
        rig.owner.with_space(id, |_, space| {
            space.park_shared();
            let parked = std::mem::take(&mut space.set_aside.shared_parked);
            let nth = |number| at(if is_reversed { pages - 1 - number } else { number });
            let others = parked.iter().filter(|page| *page >= at(pages));
            (0..pages).map(nth).chain(others).for_each(|page| space.set_aside.shared_parked.push_back(page));
        });
    }
    [id, child]
}

fn ordered_pages(rig: &Rig, id: SpaceId, pages: u64) -> Vec<u64> {
    (0..pages).filter(|page| rig.space(id).table.get(at(*page)).in_flight()).collect()
}

/// A page that two share frees memory only when both have given it up.
#[test]
fn relatives_give_up_the_same_pages() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let spaces = sharing(&mut rig, 100);
    rig.owner.press(|_| true, 8);
    let chosen = spaces.map(|id| ordered_pages(&rig, id, 100));
    assert_eq!((chosen[0].len(), &chosen[0]), (8, &chosen[1]));
    assert!(!rig.owner.has_round_to_join());
    // Another pager has relatives too, and has chosen these.
    let theirs = [40, 41, 42, 60];
    rig.shared.relatives.rounds.publish(&theirs.map(at));
    assert!(rig.owner.has_round_to_join());
    rig.until(|rig| spaces.iter().all(|id| !rig.space(*id).is_filling()));
    rig.owner.press(|_| true, 8);
    for id in spaces {
        assert_eq!(ordered_pages(&rig, id, 100), theirs);
    }
    assert!(!rig.owner.has_round_to_join());
    rig.audit();
}

/// Pages that were set aside as shared and are gone since do not keep a process from being asked
/// for those that it has, and they are forgotten when pages are taken from it.
#[test]
fn shared_pages_that_are_gone_are_forgotten() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (parent, id) = rig.program(4 * BUDGET);
    rig.fill(&parent, 100);
    let (_child, _) = rig.fork(&parent);
    rig.owner.with_space(id, |_, space| {
        let gone = (BUDGET..BUDGET + 500).map(at);
        gone.for_each(|page| space.set_aside.shared_parked.push_back(page));
        assert!(space.weight() > 0, "{} pages", space.counts.resident);
        space.take_unshared();
        assert!(space.set_aside.shared_parked.iter().all(|page| page < at(BUDGET)));
    });
    rig.audit();
}

/// A shared page is copied before it goes, and its drop frees the copy: each counts.
#[test]
fn copies_that_are_evicted_are_not_taken_for_room() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let spaces = sharing(&mut rig, 100);
    let before = rig.shared.budget.usage();
    rig.owner.press(|_| true, 8);
    assert_eq!(rig.shared.budget.usage(), before + 2 * 8);
    let is_whole = |rig: &Rig, id: SpaceId| ordered_pages(rig, id, 100).is_empty() && !rig.space(id).is_filling();
    rig.until(|rig| spaces.iter().all(|id| is_whole(rig, *id)));
    rig.audit();
}

/// While relatives have pages that they can give up nobody passes the limit, although nothing is
/// under way at that moment.
#[test]
fn who_has_pages_that_relatives_share_is_not_helpless() {
    for (pages, is_helpless) in [(100, false), (0, true)] {
        let mut rig = Rig::new(64 << 20, 0, "");
        sharing(&mut rig, pages);
        let begun = rig.shared.budget.begin_measurement();
        rig.shared.budget.end_measurement(begun, 2 * BUDGET as i64);
        // The other pager's evictions keep this one from pressing.
        rig.shared.budget.pipeline(1);
        assert!(!rig.owner.go_round(&[]));
        rig.shared.budget.pipeline(-1);
        let known: Vec<&SpaceId> = rig.owner.spaces.keys().collect();
        let (id, space) = (*known[0], rig.space(*known[0]));
        assert_eq!(rig.owner.is_helpless(space), is_helpless, "space {id} with {pages} pages");
    }
}

/// A fork takes memory of which no event tells: it waits until there is room, which is reserved.
#[test]
fn a_fork_waits_for_room_for_its_page_tables() {
    let ask = OWN + PAGE;
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(2 * BUDGET);
    rig.fill(&program, BUDGET / 2);
    let serve = |rig: &mut Rig| {
        rig.ask_to_fork(id);
        rig.space(id).waiting.stalled.iter().any(|(page, ..)| *page == ask)
    };
    let before = rig.shared.budget.usage();
    assert!(!serve(&mut rig), "there is room");
    let reserved = rig.shared.budget.usage() - before;
    assert!(reserved > 16, "{reserved} pages are reserved");
    assert!(!serve(&mut rig) && rig.shared.budget.usage() - before == reserved, "once for all forks of a while");
    // Other memory takes all there is, and leaves again. Orders are under way meanwhile.
    let taken = rig.shared.budget.limit();
    rig.shared.budget.arriving(taken);
    rig.shared.budget.pipeline(1);
    assert!(serve(&mut rig), "there is no room");
    rig.shared.budget.pipeline(-1);
    rig.shared.budget.arriving(-taken);
    rig.until(|rig| rig.space(id).waiting.stalled.is_empty());
    rig.until(|rig| rig.shared.budget.usage() <= before);
    rig.audit();
}

/// A program that asks before its fork is protected by then, and hands this on. Pages that it
/// writes in between are missed; where these are many, both are protected after the fork.
#[test]
fn a_program_is_protected_before_it_forks() {
    for (written, is_renewed) in [(1, false), (100, true)] {
        let mut rig = Rig::new(64 << 20, 0, "");
        let (parent, id) = rig.program(4 * BUDGET);
        rig.fill(&parent, BUDGET / 2);
        rig.ask_to_fork(id);
        let unprotected = |program: &FakeProgram| {
            let state = program.state();
            (state.pages.len() - state.protected.len()) as u64
        };
        assert_eq!(unprotected(&parent), 0, "before the fork");
        // Pages are given up from below.
        let last = || BUDGET / 2 - written..BUDGET / 2;
        last().for_each(|page| rig.write(&parent, page, page + 5000));
        assert_eq!(unprotected(&parent), written, "one page for each write");
        let (child, _) = rig.fork(&parent);
        let left = if is_renewed { 0 } else { written };
        assert_eq!((unprotected(&parent), unprotected(&child)), (left, left), "{written} written");
        for page in (0..BUDGET / 2).rev() {
            rig.write(&child, page, page + 7000);
        }
        (0..BUDGET / 2).for_each(|page| assert_eq!(rig.read(&child, page), page + 7000));
        last().for_each(|page| assert_eq!(rig.read(&parent, page), page + 5000));
        rig.audit();
    }
}

/// A fork that does not come after it was asked for costs its protection only.
#[test]
fn a_fork_that_never_comes_is_forgotten() {
    let mut rig = Rig::new(64 << 20, 0, "");
    let (program, id) = rig.program(4 * BUDGET);
    rig.fill(&program, BUDGET / 2);
    rig.ask_to_fork(id);
    assert!(!program.state().protected.is_empty());
    std::thread::sleep(Duration::from_millis(110));
    rig.write(&program, 1, 5000);
    assert!(program.state().protected.is_empty() && rig.read(&program, 1) == 5000);
    rig.audit();
}

/// The acts of a program, on pages of a range that is larger than the budget.
#[derive(Clone, Debug)]
enum Act {
    Write {
        first: u64,
        pages: u64,
        value: u64,
    },
    Read {
        first: u64,
        pages: u64,
    },
    Discard {
        first: u64,
        pages: u64,
    },
    Unmap {
        first: u64,
        pages: u64,
    },
    Remap {
        first: u64,
        pages: u64,
    },
    Fork,
    /// This many installations are put off.
    Again(u32),
    /// Intervals, in steps, at which orders are executed and at which trays are stored.
    Pace(u64, u64),
}

const PAGES: u64 = 2 * BUDGET;

fn act() -> impl Strategy<Value = Act> {
    let run = || (0..PAGES - 256, 1..256u64);
    prop_oneof![
        8 => (run(), 1..1_000_000u64).prop_map(|((first, pages), value)| Act::Write { first, pages, value }),
        4 => run().prop_map(|(first, pages)| Act::Read { first, pages }),
        2 => run().prop_map(|(first, pages)| Act::Discard { first, pages }),
        1 => run().prop_map(|(first, pages)| Act::Unmap { first, pages: pages / 4 + 1 }),
        1 => run().prop_map(|(first, pages)| Act::Remap { first, pages }),
        1 => Just(Act::Fork),
        1 => (1..20u32).prop_map(Act::Again),
        2 => (1..9u64, 1..9u64).prop_map(|(orders, trays)| Act::Pace(orders, trays)),
    ]
}

/// A program and the expected contents of its pages; `None`: not mapped.
struct Twin {
    program: FakeProgram,
    pages: Vec<Option<u64>>,
}

impl Twin {
    fn expected(&self, page: u64) -> Touch {
        self.pages[page as usize].map_or(Touch::NotMapped, Touch::Value)
    }

    fn touch(&mut self, rig: &mut Rig, page: u64, value: Option<u64>) {
        if let (Some(value), Some(known)) = (value, self.pages[page as usize].as_mut()) {
            *known = value;
        }
        assert_eq!(rig.touch(&self.program, at(page), value), self.expected(page), "page {page}");
    }

    fn play(&mut self, rig: &mut Rig, act: &Act) {
        let end = |first: u64, pages: u64| (first + pages).min(PAGES);
        match *act {
            Act::Write { first, pages, value } => {
                (first..end(first, pages)).for_each(|page| self.touch(rig, page, Some(value + page)));
            }
            Act::Read { first, pages } => (first..end(first, pages)).for_each(|page| self.touch(rig, page, None)),
            Act::Discard { first, pages } => {
                self.program.discard(at(first)..at(first + pages));
                let known = &mut self.pages[first as usize..(first + pages) as usize];
                known.iter_mut().flatten().for_each(|value| *value = 0);
                rig.step();
            }
            Act::Unmap { first, pages } => {
                self.program.unmap(at(first)..at(first + pages));
                self.pages[first as usize..(first + pages) as usize].fill(None);
            }
            Act::Remap { first, pages } => self.remap(rig, first, pages),
            Act::Again(times) => self.program.state().again = times,
            Act::Fork | Act::Pace(..) => {}
        }
    }

    /// Moves pages to the end of what is mapped and back: their old place is empty in between.
    fn remap(&mut self, rig: &mut Rig, first: u64, pages: u64) {
        if self.pages[first as usize..(first + pages) as usize].iter().any(Option::is_none) {
            return;
        }
        self.program.remap(at(first), at(2 * PAGES), pages * PAGE);
        for page in 0..pages {
            let there = rig.touch(&self.program, at(2 * PAGES + page), None);
            assert_eq!(there, self.expected(first + page), "page {} where it was moved to", first + page);
        }
        self.program.remap(at(2 * PAGES), at(first), pages * PAGE);
    }
}

/// A story: the acts of the programs, with a pool of this many bytes.
type Story = (Vec<(Act, usize)>, u64);

fn story() -> impl Strategy<Value = Story> {
    let pool = prop_oneof![Just(0u64), Just(256 << 10), Just(64 << 20)];
    (prop::collection::vec((act(), 0..3usize), 10..60), pool)
}

/// Plays the story with these fault points, or under the policy of this name.
fn play((acts, pool): Story, faults: &str) {
    let mut rig = Rig::new(pool, 65536, faults);
    if PolicyKind::named(faults).is_none() {
        rig.bound = SOON;
    }
    let (program, _) = rig.program(PAGES);
    let mut twins = vec![Twin { program, pages: vec![Some(0); PAGES as usize] }];
    for (act, who) in acts {
        let who = who % twins.len();
        match act {
            Act::Fork if twins.len() < 3 => {
                let (program, _) = rig.fork(&twins[who].program.clone());
                let pages = twins[who].pages.clone();
                twins.push(Twin { program, pages });
            }
            Act::Pace(orders, trays) => rig.pace = (orders, trays),
            act => twins[who].play(&mut rig, &act),
        }
        rig.audit();
    }
    for twin in &mut twins {
        (0..PAGES).for_each(|page| twin.touch(&mut rig, page, None));
    }
    rig.audit();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// In whatever order programs act, and however slow the other parties are, every page holds the
    /// value that was written last, under the engine's own policy and under every other.
    #[test]
    fn no_page_is_lost_stale_or_anothers(story in story()) {
        for policy in PolicyKind::ALL {
            play(story.clone(), policy.name());
        }
    }
}

/// The same stories detect each of these rules when it is switched off.
#[test]
fn without_its_rules_pages_are_lost() {
    for rule in ["ignore-remove", "ignore-remap", "no-fork-clone", "believe-late-workers", "trust-copy"] {
        let config =
            ProptestConfig { cases: 100, max_shrink_iters: 0, failure_persistence: None, ..Default::default() };
        FaultPoints::parse(rule).expect("a fault point");
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let found = TestRunner::new_with_rng(config, rng).run(&story(), |story| {
            play(story, rule);
            Ok(())
        });
        assert!(found.is_err(), "{rule}: nothing is noticed");
    }
}
