//! The governor: measures the memory that the tree uses, and wakes the pager threads when pages
//! must be evicted.
//!
//! Growth of unregistered memory sends no event, so it is polled: rarely while there is room, every
//! millisecond near the activation mark. Pages that a fork left shared would be counted in parent
//! and child; for such processes the proportional share is read too, which costs more and is done
//! more rarely.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uswap_core::util::size::human;
use uswap_device::SwapSpec;

use crate::config::{Ram, RunConfig};
use crate::measure::census_state::CensusState;
use crate::measure::cgroup::{Balance, Cgroup};
use crate::measure::cow_accounting::{CopiesAsked, ForkShares};
use crate::measure::cow_plausibility::ToldShares;
use crate::measure::idle_sampling::SampleSkipper;
use crate::measure::outgrown::Outgrown;
use crate::measure::shared_memory::SharedMemory;
use crate::measure::unmanaged::UnmanagedScan;
use crate::shared::RunShared;
use uswap_pager::accounting::group::Account;
use uswap_pager::accounting::pool_size::{PoolFigures, PoolSizer};
use uswap_pager::context::ManagedProcess;
use uswap_pager::fault::swap_in::NEAR;
use uswap_pager::latency::LatencyTier;
use uswap_pager::space::fork_family::ForkFamilySeen;
use uswap_remote::agent::image::Shortage;
use uswap_remote::agent::processes;
use uswap_remote::agent::unreachable::Callers;
use uswap_remote::inject::{AttachCandidates, AttacherHandle};
use uswap_remote::sched::boost::PriorityBoost;
use uswap_remote::shared::RemoteMessage;
use uswap_remote::{EngineContext, Message};
use uswap_sys::procfs::{self, MemoryFigures, Statm};

/// Processes with less anonymous memory stay unmanaged: 4 MiB, or less where many processes share a
/// small budget (512 KiB at least), so that all unmanaged memory together is at most a quarter of
/// the budget. In pages.
const MIN_MANAGED: (i64, i64) = (128, 1024);
/// How often the tree is scanned for processes without an agent.
const CENSUS: Duration = Duration::from_millis(100);
/// The same while memory may soon be short: programs that have to be attached to grow fast.
const CENSUS_SOON: Duration = Duration::from_millis(25);
/// A scan of many processes takes milliseconds. Then scans are rarer, so that they take 1/N of the
/// time.
const CENSUS_COST: u32 = 50;
/// How often the shared pages of a process are asked for while they matter, and for how many
/// processes at a time.
const SHARES: Duration = Duration::from_millis(20);
const MAX_SHARES: usize = 8;
/// The mappings of a managed process are scanned again at least this often while memory is short.
const RESCAN: Duration = Duration::from_millis(50);
/// The same for a process whose memory and address space are as large as at the last look.
const RESCAN_STILL: Duration = Duration::from_millis(200);
/// How long freed memory of a process may take to be free in the kernel: exit and exec become
/// visible before the memory is given back.
const LEAVING: Duration = Duration::from_millis(50);
/// Least amount of such memory that is remembered, in pages.
const MIN_LEAVING: i64 = 256;
/// Least time between two scans of a process.
const MIN_RESCAN: Duration = Duration::from_millis(2);

/// The first look waits this long, so that the command can start: this thread has priority over
/// every other. Memory that is managed by then has been charged by its faults.
const START: Duration = Duration::from_millis(2);

/// The longest time that a thread waits for a pager thread of lowered priority.
const LOWERED: Duration = Duration::from_millis(2);

/// Least change of the pool's limit that is applied, in pages.
const MIN_POOL_STEP: i64 = 64;
/// Anonymous memory (pages: 8 MiB) from which on an agent is injected into a program that has none.
const WORTH_AN_AGENT: i64 = 2048;

struct Watched {
    /// A thread that lives as long as the process's memory, and the statm file of that thread.
    reader: u32,
    statm: Statm,
    memory: MemoryFigures,
    scanned: MemoryFigures,
    scanned_at: Option<Instant>,
    stillness: SampleSkipper,
    /// Pages shared with relatives, and when they were asked for.
    shared: i64,
    shares_asked: Option<Instant>,
    /// Pages that its writes had copied when the question of the last answer was sent.
    copied: u64,
    /// Its parent, if it was needed.
    parent: Option<Option<u32>>,
    /// Its account, once there are groups, and the charge of the account when the measurement
    /// began.
    account: Option<Arc<Account>>,
    begun: i64,
}

/// Whether a process holds about as much as its managed parent: then it was forked just now, and
/// the event of the fork is not read yet.
fn looks_forked(pid: u32, statm: &Statm, managed: &BTreeMap<u32, ManagedProcess>) -> bool {
    let parent = procfs::parent(pid).and_then(|parent| managed.get(&parent));
    let held = |statm: &Statm| statm.read().map_or(0, |memory| memory.anonymous);
    let parents = parent.and_then(|parent| Statm::open(parent.reader).ok()).map_or(i64::MAX, |statm| held(&statm));
    held(statm) >= parents / 2
}

/// Pages that the writes of a process have copied so far, as far as the engine has seen them.
fn copied_pages(process: Option<&ManagedProcess>) -> u64 {
    process.map_or(0, |process| process.copied.pages())
}

impl Watched {
    /// Pages that it shares with relatives, without those that its writes have copied since.
    /// Negative if it was not read since its fork: pages that it has copied stay with its
    /// relatives.
    fn shares(&self, process: Option<&ManagedProcess>) -> i64 {
        let copied = copied_pages(process).saturating_sub(self.copied);
        self.shared.clamp(0, self.memory.anonymous) - copied as i64
    }

    /// Pages that its end, or its next program, gives back: `now` is what it has since. Its address
    /// space is smaller by as much; pages that were evicted are free already. Pages that relatives
    /// share are not free when one of them has gone.
    fn leaves(&self, now: &MemoryFigures) -> i64 {
        let gone = (self.memory.anonymous - now.anonymous).min(self.own_pages());
        gone.min(self.memory.size - now.size)
    }

    /// Pages that it shares with nobody, by the last answer: these are free when it is gone.
    fn own_pages(&self) -> i64 {
        self.memory.anonymous - self.shared.clamp(0, self.memory.anonymous)
    }
}

/// State of the governor's thread.
pub struct Governor {
    shared: Arc<EngineContext>,
    engine: Statm,
    watched: HashMap<u32, Watched>,
    shares: ForkShares,
    told_shares: ToldShares,
    shared_pages: i64,
    automatic: Option<Balance>,
    attacher: Option<AttacherHandle>,
    /// Pages that processes have freed, and when.
    leaving: Vec<(Instant, i64)>,
    share: PoolSizer,
    /// Names of the devices of the run's start whose pages lie in memory of the engine.
    swap_in_ram: BTreeSet<String>,
    /// Set if shared pages are known; otherwise they count as none.
    shares_known: bool,
    /// The last limit of the pool, in pages.
    pool_limit: i64,
    /// The flag by which new programs see that memory is short.
    shortage: Shortage,
    hurry: PriorityBoost,
    shared_memory: SharedMemory,
    outgrown: Outgrown,
    /// State of the scans for unmanaged programs.
    scan: CensusState,
}

impl Governor {
    /// A governor; with `--ram auto` it steers the limit by the cgroup that the programs are in.
    ///
    /// # Errors
    /// /proc is not there.
    pub fn new(
        shared: Arc<EngineContext>,
        config: &RunConfig,
        shortage: Shortage,
        attacher: Option<AttacherHandle>,
        hurry: PriorityBoost,
    ) -> std::io::Result<Self> {
        let engine = Statm::open(std::process::id())?;
        let long_ago = Instant::now() - Duration::from_secs(1);
        let watched = HashMap::new();
        let cgroup = Cgroup::of_process(shared.of_memory.tree.first());
        let automatic = cgroup.clone().filter(|_| matches!(config.ram, Ram::Auto)).map(Balance::new);
        let in_ram = config.swap.iter().flat_map(SwapSpec::places).filter(|place| place.is_memory());
        let swap_in_ram = in_ram.map(ToString::to_string).collect();
        let shared_memory = SharedMemory::new(cgroup);
        Ok(Self {
            shared,
            engine,
            watched,
            shares: ForkShares::default(),
            told_shares: ToldShares::default(),
            shared_pages: 0,
            automatic,
            scan: CensusState {
                last: long_ago,
                took: Duration::ZERO,
                found: UnmanagedScan::default(),
                callers: Callers::default(),
            },
            attacher,
            leaving: Vec::new(),
            share: PoolSizer::new(config.pool_share),
            swap_in_ram,
            shares_known: false,
            pool_limit: 0,
            shortage,
            hurry,
            shared_memory,
            outgrown: Outgrown::default(),
        })
    }

    /// Measures until `stop` is set.
    pub fn run(governor: &Mutex<Self>, stop: &AtomicBool) {
        // Growth while this thread waits for a processor is seen too late. Where real-time priority
        // is not permitted, short time slices and the priority boost are used instead.
        uswap_sys::process::run_first();
        std::thread::sleep(START);
        loop {
            // The lock is free while this thread sleeps: the main thread would wait for it at the
            // end of a run.
            let interval = Self::lock(governor).look(stop);
            let Some(interval) = interval else { return };
            std::thread::sleep(interval);
        }
    }

    fn lock(governor: &Mutex<Self>) -> MutexGuard<'_, Self> {
        governor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One look. Returns the time until the next one, or `None` once `stop` is set.
    fn look(&mut self, stop: &AtomicBool) -> Option<Duration> {
        if stop.load(SeqCst) {
            return None;
        }
        // This comes before anything that takes a lock.
        let lowered = self.raise_owners();
        self.measure();
        self.wake_owners();
        let interval = self.shared.quiet();
        Some(if lowered { interval.min(LOWERED) } else { interval })
    }

    /// Measures the memory in use when a run has ended. The last look may have been while the
    /// program lived, and with `stop` set there is no other.
    pub fn measure_at_the_end(governor: &Mutex<Self>) {
        let governor = Self::lock(governor);
        let begun = governor.shared.budget.begin_measurement();
        let watched = governor.watched.values();
        let left: i64 = watched.filter_map(|watched| Some(watched.statm.read().ok()?.anonymous)).sum();
        let engine = governor.engine_pages();
        let shared = governor.shared_pages.min(left);
        governor.shared.budget.end_measurement(begun, engine + left - shared);
    }

    /// Pages of the engine that are charged. Swap in RAM is an experiment: its pages are not
    /// charged, or nothing could ever be swapped to it.
    fn engine_pages(&self) -> i64 {
        let swapped_in_ram: u64 = self.swap_in_ram.iter().map(|name| self.shared.store.device_pages(name)).sum();
        (self.engine.read().unwrap_or_default().anonymous - swapped_in_ram as i64).max(0)
    }

    /// Raises the priority of all pager threads. Returns whether one was lowered.
    fn raise_owners(&self) -> bool {
        let lowered = self.shared.mailboxes.iter().filter(|mailbox| mailbox.lowered.raise());
        lowered.count() > 0
    }

    fn measure(&mut self) {
        let managed = self.shared.managed.all();
        self.take_census(&managed);
        let shared = self.shared.clone();
        let round = shared.groups.in_use().then(|| {
            self.meet_newcomers();
            shared.groups.begin_round()
        });
        let mut begun = self.shared.budget.begin_measurement();
        let before = self.watched.len();
        let leaving = &mut self.leaving;
        let groups = &self.shared.groups;
        let patience = shared.patience();
        self.watched.retain(|pid, watched| {
            if watched.stillness.may_wait(patience, managed.get(pid).map(|process| &process.moves)) {
                return true;
            }
            watched.begun = watched.account.as_ref().map_or(0, |account| account.used());
            let memory = watched.statm.read().ok().filter(|memory| memory.size > 0).unwrap_or_default();
            // Pages that were dropped just before the reading are not in it: they must not be taken
            // off once more.
            watched.begun = watched.account.as_ref().map_or(0, |account| account.used().min(watched.begun));
            let gone = watched.leaves(&memory);
            if gone > MIN_LEAVING {
                leaving.push((Instant::now(), gone));
            }
            watched.stillness.was_read(memory == watched.memory);
            watched.memory = memory;
            if watched.shared == i64::MAX && memory.anonymous > 0 {
                watched.shared = memory.anonymous;
            }
            if memory.size <= 0
                && let Some(account) = &watched.account
            {
                groups.measure(account, watched.begun, 0);
            }
            memory.size > 0
        });
        self.shared.budget.has_read(&mut begun);
        if self.watched.len() < before {
            // Pages that were shared with ended processes may be shared no more.
            self.watched.values_mut().for_each(|watched| watched.shares_asked = None);
        }
        let engine = self.engine_pages();
        let tree: i64 = self.watched.values().map(|watched| watched.memory.anonymous).sum();
        self.measure_shares(&managed, engine + tree);
        if round.is_some() {
            self.measure_groups(&managed);
        }
        let pages = engine + tree - self.shared_pages;
        self.shared.budget.set_processes(self.watched.len());
        self.shared.budget.end_measurement(begun, pages);
        self.leaving.retain(|(at, _)| at.elapsed() < LEAVING);
        let leaving: i64 = self.leaving.iter().map(|(_, pages)| pages).sum();
        if let Some(balance) = RunShared::of(&self.shared).orders.balance.lock().expect("balance").take() {
            self.automatic = Some(balance);
        }
        // A budget that was ordered replaces the balance, until the next order.
        if RunShared::of(&self.shared).orders.limit.load(SeqCst) == 0
            && let Some(balance) = &mut self.automatic
            && let Some(limit) = balance.steer(
                pages + leaving,
                self.shared.counters.pgmajfault.get(),
                !self.shared.budget.crowd_grows_unseen(),
            )
        {
            self.shared.budget.set_limit(limit);
        }
        self.hurry.follow(&self.shared, &managed);
        let fixed = self.fixed(pages);
        self.judge_fixed(fixed);
        self.limit_pool(pages, fixed);
        self.expect_work();
        self.scan_grown(&managed);
    }

    /// Gives the pool sizer the figures by which it decides.
    fn judge_share(&mut self) {
        let shared = &self.shared;
        let (store, faults) = (shared.store.stats(), shared.counters.pgmajfault.get());
        let from_devices = shared.counters.pgmajfault_device.get();
        let whole = shared.counters.pgmajfault_incompressible.get();
        let slots: u64 = store.devices.iter().map(|device| device.slots_used).sum();
        self.share.judge(PoolFigures {
            faults: [faults.saturating_sub(from_devices), from_devices.saturating_sub(whole), whole],
            pages: [
                store.stored_pages,
                slots.saturating_sub(store.stored_incompressible_pages),
                store.stored_incompressible_pages,
            ],
            costs: [LatencyTier::Pool, LatencyTier::Device].map(|tier| shared.latencies.median_ns(tier)),
            near: shared.counters.pgnear_incompressible.get(),
            beyond: (shared.budget.usage() - (store.pool_bytes >> 12) as i64).max(0) as u64 / NEAR,
            pool_memory: store.pool_bytes >> 12,
            budget: shared.budget.limit(),
            spare: shared.load.spare(),
        });
    }

    /// Pages in use that can be neither evicted nor dropped.
    fn fixed(&self, used: i64) -> i64 {
        let pool = (self.shared.store.pool_bytes() >> 12) as i64;
        let manageable: i64 = self.shared.gauges.manageable.iter().map(|pages| pages.load(SeqCst)).sum();
        (used - pool - manageable).max(0)
    }

    /// Checks whether the budget can be kept at all.
    fn judge_fixed(&mut self, fixed: i64) {
        let budget = &self.shared.budget;
        let outgrown = self.outgrown.look(fixed, budget.limit(), Instant::now());
        budget.outgrown.store(outgrown, SeqCst);
        if outgrown && self.outgrown.is_news() {
            let limit = human((budget.limit() as u64) << 12);
            self.shared.notice(format!(
                "{} of the programs' memory cannot be evicted (mappings below 64 KiB, stacks, locked memory, programs \
                 without an agent), more than the budget of {limit}: the budget is passed, and faults are not held up for it; \
                 with a larger --ram it need not be",
                human((fixed as u64) << 12)
            ));
        }
    }

    /// Sets the limit of the pool. The pool's share refers to the memory that is left for the pool
    /// and evictable pages: memory that cannot be managed is subtracted first.
    fn limit_pool(&mut self, used: i64, fixed: i64) {
        if used <= self.shared.budget.activation() {
            return;
        }
        if self.share.is_due() {
            self.judge_share();
        }
        let budget = &self.shared.budget;
        self.shared.pool_share.tell(self.share.percent());
        let percent = self.share.percent_beside(fixed as f64 / budget.limit().max(1) as f64);
        let share = (budget.limit() - fixed).max(0) as f64 * percent / 100.0;
        // Setting the limit takes the pool's lock, so small changes are skipped: this thread would
        // wait while the holder of the lock waits for a processor.
        if (share as i64 - self.pool_limit).abs() > MIN_POOL_STEP {
            self.pool_limit = share as i64;
            self.shared.store.set_pool_limit((share as u64) << 12);
        }
    }

    fn take_census(&mut self, managed: &BTreeMap<u32, ManagedProcess>) {
        let mut pids: Vec<(u32, u32)> = managed.iter().map(|(pid, process)| (*pid, process.reader)).collect();
        let budget = &self.shared.budget;
        let near = self.attacher.is_some() && budget.usage() > budget.activation() / 2;
        let soon = (self.scan.took * CENSUS_COST).clamp(CENSUS_SOON, CENSUS);
        if self.scan.last.elapsed() >= if near { soon } else { CENSUS } {
            self.scan.last = Instant::now();
            let tree = self.watched.iter().map(|(pid, watched)| (*pid, watched.memory.anonymous));
            self.scan.found.look(&self.shared, managed, tree);
            let agents = processes::of(managed);
            let mut tree = self.shared.of_memory.tree.members();
            tree.retain(|pid| !agents.contains(pid));
            processes::look_for_execs(&self.shared, managed);
            if self.shared.groups.in_use() {
                let watched = &self.watched;
                let is_alive = |pid| watched.contains_key(&pid) || managed.contains_key(&pid) || tree.contains(&pid);
                self.shared.groups.dismiss_all_but(is_alive);
            }
            self.scan.callers.look(&self.shared, managed, &tree);
            self.shared_memory.look(&self.shared, &tree);
            // Skips new processes without memory of their own: agents, and children that have their
            // parent's memory until they execute a program.
            tree.retain(|pid| {
                self.watched.contains_key(pid) || managed.contains_key(pid) || !processes::has_anothers_memory(*pid)
            });
            self.tell_attacher(managed, &tree);
            self.scan.took = self.scan.last.elapsed();
            pids.extend(tree.into_iter().map(|pid| (pid, pid)));
        }
        for (pid, reader) in pids {
            self.forget_former_image(pid, reader);
            if let std::collections::hash_map::Entry::Vacant(entry) = self.watched.entry(pid)
                && let Ok(statm) = Statm::open(reader)
            {
                let memory = MemoryFigures::default();
                // A process whose agent has not sent a greeting may be a fork child. If its pages
                // were counted twice, as many pages of other processes would be evicted.
                let forks = self.shared.counters.fork_events.get() > 0;
                let forked = managed
                    .get(&pid)
                    .map_or_else(|| forks || looks_forked(pid, &statm, managed), ManagedProcess::may_be_forked);
                let shared = if forked { i64::MAX } else { 0 };
                let (scanned, scanned_at, shares_asked, account, begun) = (memory, None, None, None, 0);
                entry.insert(Watched {
                    reader,
                    statm,
                    memory,
                    scanned,
                    scanned_at,
                    stillness: SampleSkipper::default(),
                    shared,
                    shares_asked,
                    copied: 0,
                    parent: None,
                    account,
                    begun,
                });
            }
        }
    }

    /// Stops reading the former image of a process. After an exec the figures are those of the
    /// former memory as long as its agent lives, while the new image grows. A process that was read
    /// by its own id has no former image: it has got its agent. The pages that it shares stay
    /// known, since its relatives count the other parts.
    fn forget_former_image(&mut self, pid: u32, reader: u32) {
        let is_former = |watched: &&mut Watched| watched.reader != reader && reader != pid;
        let Some(watched) = self.watched.get_mut(&pid).filter(is_former) else { return };
        if watched.reader == pid
            && let Ok(statm) = Statm::open(reader)
        {
            (watched.reader, watched.statm) = (reader, statm);
            return;
        }
        self.leaving.push((Instant::now(), watched.own_pages()));
        self.watched.remove(&pid);
    }

    /// Sends the processes without an agent to the attacher.
    fn tell_attacher(&mut self, managed: &BTreeMap<u32, ManagedProcess>, tree: &[u32]) {
        if self.attacher.is_none() {
            return;
        }
        let silent = |pid: &u32| !managed.get(pid).is_some_and(|process| process.agent);
        let anonymous = |pid: u32| self.watched.get(&pid).map_or(0, |watched| watched.memory.anonymous);
        let is_large = |pid: &u32| self.shared.of_memory.tree.is_root(*pid) || anonymous(*pid) >= WORTH_AN_AGENT;
        let (large, mut small): (Vec<u32>, Vec<u32>) = tree.iter().copied().filter(silent).partition(is_large);
        if self.shared.counters.attached.get() == 0 {
            small.clear();
        }
        let told = AttachCandidates { large, small, tree: tree.to_vec() };
        if let Some(Err(error)) = self.attacher.as_mut().map(|attacher| attacher.tell(told)) {
            self.shared
                .notice(format!("programs without an agent stay unmanaged: a thread cannot be started: {error}"));
            self.attacher = None;
        }
    }

    /// Pages of memory from which on a process is managed. While there is no room left even smaller
    /// ones are.
    fn least_managed(&self) -> i64 {
        if !self.shared.budget.has_room(0) {
            return MIN_MANAGED.0 / 2;
        }
        let share = self.shared.budget.limit() / 4 / self.watched.len().max(1) as i64;
        share.clamp(MIN_MANAGED.0, MIN_MANAGED.1)
    }

    /// Pages that are counted more than once because a fork left them shared, by the last answers.
    /// A process that was never read is assumed to share everything with its parent.
    fn measure_shares(&mut self, managed: &BTreeMap<u32, ManagedProcess>, counted: i64) {
        self.shares.answers().for_each(|answers| self.told_shares.hear(&answers));
        let watched = &self.watched;
        let known = |pid: u32| watched.get(&pid).map_or(0, |watched| watched.shares(managed.get(&pid)));
        for (asked, pages) in self.told_shares.believed(managed, known) {
            if let Some(watched) = self.watched.get_mut(&asked.pid) {
                // Pages that were copied between question and reading are counted twice.
                (watched.shared, watched.copied) = (pages, asked.copied);
            }
        }
        let fork_events = self.shared.counters.fork_events.get() > 0;
        // A fork of memory that was not managed yet sends no event.
        let unseen = || managed.values().any(ManagedProcess::may_be_forked);
        let forks = fork_events || self.watched.len() > managed.len() || unseen();
        let near = counted > self.shared.budget.activation() || self.is_group_near();
        self.shares_known = forks && near;
        if !self.shares_known {
            self.shared_pages = 0;
            return;
        }
        self.ask_for_shares(managed);
        self.shared_pages = self.watched.iter().map(|(pid, watched)| watched.shares(managed.get(pid))).sum();
    }

    /// Parents of the processes whose fork family is not known: a parent shares the same pages as
    /// such a child.
    fn doubtful_parents(&mut self, managed: &BTreeMap<u32, ManagedProcess>) -> HashSet<u32> {
        let is_doubtful = |pid: &u32| managed.get(pid).is_none_or(|process| process.kin.is_uncertain);
        let doubtful = self.watched.iter_mut().filter(|(pid, _)| is_doubtful(pid));
        let parents: HashSet<u32> =
            doubtful.filter_map(|(pid, watched)| *watched.parent.get_or_insert_with(|| procfs::parent(*pid))).collect();
        let managed_ones = parents.iter().filter_map(|pid| managed.get(pid));
        managed_ones.for_each(|process| process.kin.doubt_children());
        parents
    }

    /// Asks for shared pages, first of the processes with the oldest question. Small processes are
    /// left out, and so are those without relatives, which share nothing.
    fn ask_for_shares(&mut self, managed: &BTreeMap<u32, ManagedProcess>) {
        let least = self.least_managed();
        let parents = self.doubtful_parents(managed);
        let may_share = |pid| managed.get(pid).is_none_or(|process| process.kin.may_share()) || parents.contains(pid);
        let mut due = Vec::new();
        for (pid, watched) in &mut self.watched {
            if watched.memory.anonymous < least || !may_share(pid) {
                (watched.shared, watched.copied) = (0, copied_pages(managed.get(pid)));
            } else if watched.shares_asked.is_none_or(|at| at.elapsed() >= SHARES) {
                due.push((watched.shares_asked, *pid));
            }
        }
        // This is the usual case: the governor looks each millisecond, and asks for a process
        // each 20.
        if due.is_empty() {
            return;
        }
        due.sort_unstable();
        let due: Vec<u32> = due.into_iter().take(MAX_SHARES).map(|(_, pid)| pid).collect();
        let asked = self.with_relatives(&due, managed);
        let (count, pids) = (asked.len(), asked.iter().map(|asked| asked.pid).collect::<Vec<_>>());
        if self.shares.ask(asked) {
            self.shared.counters.shares_asked.add(count as u64);
            // Processes of a family that cannot be asked for yet count as asked too, or they would
            // keep others from being asked for.
            for pid in pids.into_iter().chain(due) {
                self.watched.entry(pid).and_modify(|watched| watched.shares_asked = Some(Instant::now()));
            }
        }
    }

    /// Completes families: relatives are asked for together, since a part of a shared page that one
    /// loses moves to the others. A family with a member that is not known yet is left out.
    fn with_relatives(&self, due: &[u32], managed: &BTreeMap<u32, ManagedProcess>) -> Vec<CopiesAsked> {
        let asked = |pid: u32, watched: &Watched| {
            // A child that is not known yet belongs to its parent's family.
            let parent = || watched.parent.flatten().and_then(|parent| managed.get(&parent));
            let kin = managed.get(&pid).or_else(parent).map(|process| &process.kin);
            let (family, births) = kin.map_or((pid as usize, 0), |kin| (kin.image(), kin.births()));
            let copied = copied_pages(managed.get(&pid));
            (CopiesAsked { pid, thread: watched.reader, family, births, copied }, kin.map_or(1, ForkFamilySeen::living))
        };
        let mut families: HashMap<usize, (u32, Vec<CopiesAsked>)> = HashMap::new();
        for (pid, watched) in &self.watched {
            let (asked, living) = asked(*pid, watched);
            let (all, members) = families.entry(asked.family).or_default();
            *all = living;
            members.push(asked);
        }
        let is_whole = |(living, members): &(u32, Vec<CopiesAsked>)| members.len() >= *living as usize;
        let is_due = |members: &[CopiesAsked]| members.iter().any(|asked| due.contains(&asked.pid));
        let asked = families.into_values().filter(|family| is_whole(family) && is_due(&family.1));
        asked.flat_map(|(_, members)| members).collect()
    }

    /// Gives new processes an account in their parent's group.
    fn meet_newcomers(&mut self) {
        let engine = std::process::id();
        for (pid, watched) in &mut self.watched {
            if watched.account.as_ref().is_none_or(|account| account.has_ended()) {
                watched.account = Some(self.shared.groups.meet(*pid, || procfs::kin(*pid, engine)));
            }
        }
    }

    /// Charges each process with its measured pages, without those that it shares with relatives.
    fn measure_groups(&self, managed: &BTreeMap<u32, ManagedProcess>) {
        for (pid, watched) in &self.watched {
            let Some(account) = &watched.account else { continue };
            let shared = if self.shares_known { watched.shares(managed.get(pid)) } else { 0 };
            self.shared.groups.measure(account, watched.begun, watched.memory.anonymous - shared);
        }
        self.shared.groups.end_round();
    }

    fn is_group_near(&self) -> bool {
        self.shared.groups.in_use() && self.shared.groups.is_any_near()
    }

    /// Starts the later threads when memory may have to be managed soon.
    fn expect_work(&self) {
        if RunShared::of(&self.shared).is_expecting.load(SeqCst) {
            return;
        }
        let budget = &self.shared.budget;
        if budget.usage() > budget.activation() / 2 || self.is_group_near() || self.shared.faults.crowd {
            RunShared::of(&self.shared).is_expecting.store(true, SeqCst);
            self.shared.main_bell.ring();
        }
    }

    /// Has the mappings of processes scanned that have grown without an event.
    fn scan_grown(&mut self, managed: &BTreeMap<u32, ManagedProcess>) {
        let is_run_near = self.shared.budget.usage() > self.shared.budget.activation();
        if !is_run_near && !self.is_group_near() {
            return;
        }
        let groups = &self.shared.groups;
        let least_of_run = self.least_managed();
        for (pid, process) in managed {
            let Some(watched) = self.watched.get_mut(pid) else { continue };
            let share = watched.account.as_ref().and_then(|account| groups.near(account));
            let least = match share.map(|share| (share / 4).clamp(MIN_MANAGED.0, MIN_MANAGED.1)) {
                Some(least) => least.min(least_of_run),
                None if is_run_near => least_of_run,
                None => continue,
            };
            let age = watched.scanned_at.map(|at| at.elapsed());
            let grown = watched.memory.size != watched.scanned.size;
            let rescan = if watched.memory == watched.scanned { RESCAN_STILL } else { RESCAN };
            let due = match age {
                None => watched.memory.anonymous >= least,
                Some(age) => age >= rescan || (grown && age >= MIN_RESCAN),
            };
            if due {
                (watched.scanned, watched.scanned_at) = (watched.memory, Some(Instant::now()));
                self.shared.mailboxes[process.owner].post(Message::OfMemory(RemoteMessage::Scan(process.space)));
            }
        }
    }

    fn wake_owners(&mut self) {
        let soon = self.shared.budget.may_be_crowded() || self.is_group_near();
        self.shortage.tell(soon && !self.shared.faults.hasty_programs);
        self.shared.budget.set_pool(self.shared.store.pool_bytes());
        let groups = &self.shared.groups;
        if self.shared.budget.wanted() > 0 || groups.in_use() && !groups.short().is_empty() {
            for mailbox in &self.shared.mailboxes {
                mailbox.post(Message::Balance);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(anonymous: i64, size: i64, shared: i64) -> Watched {
        let pid = std::process::id();
        Watched {
            reader: pid,
            statm: Statm::open(pid).expect("statm"),
            memory: MemoryFigures { anonymous, size },
            scanned: MemoryFigures::default(),
            scanned_at: None,
            stillness: SampleSkipper::default(),
            shared,
            shares_asked: None,
            copied: 0,
            parent: None,
            account: None,
            begun: 0,
        }
    }

    /// Evicted memory is free at once: counted as memory that is about to be free it would raise an
    /// automatic limit.
    #[test]
    fn an_end_leaves_memory_behind_and_an_eviction_does_not() {
        let before = watched(1000, 5000, 300);
        assert_eq!(before.leaves(&MemoryFigures::default()), 700, "at its end, without what relatives share");
        assert_eq!(before.leaves(&MemoryFigures { anonymous: 50, size: 900 }), 700, "another program");
        assert_eq!(before.leaves(&MemoryFigures { anonymous: 400, size: 5000 }), 0, "evicted");
        assert_eq!(before.leaves(&MemoryFigures { anonymous: 400, size: 4900 }), 100, "evicted and unmapped");
        assert!(before.leaves(&MemoryFigures { anonymous: 1400, size: 5500 }) <= 0, "grown");
    }
}
