//! The governor: measures what the tree uses and wakes the owners when it matters.
//!
//! Growth of unregistered memory sends no event, so it is polled: rarely while there is room, every
//! millisecond near the activation mark. Pages that a fork left shared would be counted in parent
//! and child; then the proportional share is read, which costs more and is done more rarely.

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

/// Processes with less anonymous memory stay unmanaged: 4 MiB, or less where many share a small
/// budget (512 KiB at least), so that all that stays unmanaged is a quarter of it. In pages.
const MIN_MANAGED: (i64, i64) = (128, 1024);
/// How often the tree is walked for processes that no agent has announced.
const CENSUS: Duration = Duration::from_millis(100);
/// The same while memory may soon be short: programs that have to be attached to grow fast.
const CENSUS_SOON: Duration = Duration::from_millis(25);
/// Of many processes a census takes milliseconds: then it is taken less often, so that it costs one
/// part in so many of the time.
const CENSUS_COST: u32 = 50;
/// How often what a process shares is asked for while it matters, and for how many at a time.
const SHARES: Duration = Duration::from_millis(20);
const MAX_SHARES: usize = 8;
/// A process that is managed is looked at again at least this often while memory is short.
const RESCAN: Duration = Duration::from_millis(50);
/// One that holds as much as it did at the last look, and in as large an address space.
const RESCAN_STILL: Duration = Duration::from_millis(200);
/// How long memory that a process has let go of may take to be free: exit and exec give it back
/// after they are seen.
const LEAVING: Duration = Duration::from_millis(50);
/// What is worth remembering of that, in pages.
const MIN_LEAVING: i64 = 256;
/// And at most this often.
const MIN_RESCAN: Duration = Duration::from_millis(2);

/// The first look waits for so long: the command starts meanwhile, and this thread goes before
/// every other. What memory is managed by then has been charged by its faults.
const START: Duration = Duration::from_millis(2);

/// Nobody waits longer than this for an owner that was lowered.
const LOWERED: Duration = Duration::from_millis(2);

/// The pool's limit follows in steps of this, in pages.
const MIN_POOL_STEP: i64 = 64;
/// Anonymous memory (pages: 8 MiB) from which on an agent is brought to a program that has none.
const WORTH_AN_AGENT: i64 = 2048;

struct Watched {
    /// A thread of it that is there as long as it is, and what that tells.
    reader: u32,
    statm: Statm,
    memory: MemoryFigures,
    scanned: MemoryFigures,
    scanned_at: Option<Instant>,
    stillness: SampleSkipper,
    /// Pages shared with relatives, and when that was asked for.
    shared: i64,
    shares_asked: Option<Instant>,
    /// How many pages its writes had copied when that was asked for which was told last.
    copied: u64,
    /// Its parent, if that had to be known.
    parent: Option<Option<u32>>,
    /// What it is charged with, once there are groups, and how much that was when it was measured.
    account: Option<Arc<Account>>,
    begun: i64,
}

/// Whether a process holds about as much as its parent, which is managed: it was forked just now,
/// and nobody has read of it yet.
fn looks_forked(pid: u32, statm: &Statm, managed: &BTreeMap<u32, ManagedProcess>) -> bool {
    let parent = procfs::parent(pid).and_then(|parent| managed.get(&parent));
    let held = |statm: &Statm| statm.read().map_or(0, |memory| memory.anonymous);
    let parents = parent.and_then(|parent| Statm::open(parent.reader).ok()).map_or(i64::MAX, |statm| held(&statm));
    held(statm) >= parents / 2
}

/// Pages that the writes of a process have copied so far, as far as they were seen.
fn copied_pages(process: Option<&ManagedProcess>) -> u64 {
    process.map_or(0, |process| process.copied.pages())
}

impl Watched {
    /// Pages that it shares with relatives, as far as its writes have not copied them since. Less
    /// than none where it was not read since it was forked: what it has copied stays in the hands
    /// of the others.
    fn shares(&self, process: Option<&ManagedProcess>) -> i64 {
        let copied = copied_pages(process).saturating_sub(self.copied);
        self.shared.clamp(0, self.memory.anonymous) - copied as i64
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
    /// Pages that processes have let go of, and when.
    leaving: Vec<(Instant, i64)>,
    share: PoolSizer,
    /// Names of the devices whose pages lie in memory of the engine, as the run began.
    swap_in_ram: BTreeSet<String>,
    /// Shared pages are known, or taken to be none.
    shares_known: bool,
    /// What the pool was limited to last, in pages.
    pool_limit: i64,
    /// What new programs look at.
    shortage: Shortage,
    hurry: PriorityBoost,
    shared_memory: SharedMemory,
    outgrown: Outgrown,
    /// When unmanaged programs were looked for.
    pub scan: CensusState,
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

    /// Measures until told to stop.
    pub fn run(governor: &Mutex<Self>, stop: &AtomicBool) {
        // What grows while this thread waits for a processor is seen too late. Where it is not
        // allowed short turns and hurry must do.
        uswap_sys::process::run_first();
        std::thread::sleep(START);
        loop {
            // Nobody has it while it sleeps: whoever ends the run would wait.
            let interval = Self::lock(governor).look(stop);
            let Some(interval) = interval else { return };
            std::thread::sleep(interval);
        }
    }

    fn lock(governor: &Mutex<Self>) -> MutexGuard<'_, Self> {
        governor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One look; returns how long nobody need look again. Nothing once told to stop.
    fn look(&mut self, stop: &AtomicBool) -> Option<Duration> {
        if stop.load(SeqCst) {
            return None;
        }
        // Before anything that takes a lock.
        let lowered = self.raise_owners();
        self.measure();
        self.wake_owners();
        let interval = self.shared.quiet();
        Some(if lowered { interval.min(LOWERED) } else { interval })
    }

    /// What is in use when a run has ended. Its last look may have been while the program lived,
    /// and with `stop` set there is no other.
    pub fn measure_at_the_end(governor: &Mutex<Self>) {
        let governor = Self::lock(governor);
        let begun = governor.shared.budget.begin_measurement();
        let watched = governor.watched.values();
        let left: i64 = watched.filter_map(|watched| Some(watched.statm.read().ok()?.anonymous)).sum();
        let engine = governor.engine_pages();
        let shared = governor.shared_pages.min(left);
        governor.shared.budget.end_measurement(begun, engine + left - shared);
    }

    /// Swap in RAM is an experiment: what lies there is not charged, or nothing could ever be
    /// swapped to it.
    fn engine_pages(&self) -> i64 {
        let swapped_in_ram: u64 = self.swap_in_ram.iter().map(|name| self.shared.store.device_pages(name)).sum();
        (self.engine.read().unwrap_or_default().anonymous - swapped_in_ram as i64).max(0)
    }

    /// Raises all owners; says whether one was lowered.
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
        let begun = self.shared.budget.begin_measurement();
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
            let gone = watched.memory.anonymous - memory.anonymous;
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
        if self.watched.len() < before {
            // What was shared with those that ended may be shared no more.
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
        // An order takes the place of the balance, until the next one.
        if RunShared::of(&self.shared).orders.limit.load(SeqCst) == 0
            && let Some(balance) = &mut self.automatic
            && let Some(limit) = balance.steer(pages + leaving, self.shared.counters.pgmajfault.get())
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

    /// Gives the share what it judges by.
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

    /// Whether the budget can be kept at all.
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

    /// The pool's share is of what it shares with pages we can evict: memory that cannot be managed
    /// comes off first.
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
        // That takes the pool's lock, for which this thread would wait while its holder waits for a
        // processor.
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
            // Who speaks for nobody yet, or has its parent's memory until it executes something.
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
                // Whoever has not said hello may be a fork child; counted twice, its pages would be
                // taken from others.
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

    /// What is read of a process that has executed another image is the memory of the former one
    /// while its agent is still there; the new one grows meanwhile.
    fn forget_former_image(&mut self, pid: u32, reader: u32) {
        let is_former = |watched: &&Watched| watched.reader != reader && reader != pid;
        if let Some(watched) = self.watched.get(&pid).filter(is_former) {
            self.leaving.push((Instant::now(), watched.memory.anonymous));
            self.watched.remove(&pid);
        }
    }

    /// Tells who has no agent.
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

    /// From how much memory on a process is managed. Where there is no room left none is too small.
    fn least_managed(&self) -> i64 {
        if !self.shared.budget.has_room(0) {
            return MIN_MANAGED.0 / 2;
        }
        let share = self.shared.budget.limit() / 4 / self.watched.len().max(1) as i64;
        share.clamp(MIN_MANAGED.0, MIN_MANAGED.1)
    }

    /// Pages counted more than once because a fork left them shared, by what was told last. A
    /// process that was never read is taken to share everything with its parent.
    fn measure_shares(&mut self, managed: &BTreeMap<u32, ManagedProcess>, counted: i64) {
        self.shares.answers().for_each(|answers| self.told_shares.hear(&answers));
        let watched = &self.watched;
        let known = |pid: u32| watched.get(&pid).map_or(0, |watched| watched.shares(managed.get(&pid)));
        for (asked, pages) in self.told_shares.believed(managed, known) {
            if let Some(watched) = self.watched.get_mut(&asked.pid) {
                // What was copied until it was read is counted twice.
                (watched.shared, watched.copied) = (pages, asked.copied);
            }
        }
        let fork_events = self.shared.counters.fork_events.get() > 0;
        // No event tells of a fork of what was not managed yet.
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

    /// Parents of those whose kin is not known: a parent shares what such a child shares.
    fn doubtful_parents(&mut self, managed: &BTreeMap<u32, ManagedProcess>) -> HashSet<u32> {
        let is_doubtful = |pid: &u32| managed.get(pid).is_none_or(|process| process.kin.is_uncertain);
        let doubtful = self.watched.iter_mut().filter(|(pid, _)| is_doubtful(pid));
        let parents: HashSet<u32> =
            doubtful.filter_map(|(pid, watched)| *watched.parent.get_or_insert_with(|| procfs::parent(*pid))).collect();
        let managed_ones = parents.iter().filter_map(|pid| managed.get(pid));
        managed_ones.for_each(|process| process.kin.doubt_children());
        parents
    }

    /// Those first that were asked for longest ago; small ones are not worth it, and who has no kin
    /// shares nothing.
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
        // Mostly: this is looked at each millisecond, and a process is asked for each 20.
        if due.is_empty() {
            return;
        }
        due.sort_unstable();
        let due: Vec<u32> = due.into_iter().take(MAX_SHARES).map(|(_, pid)| pid).collect();
        let asked = self.with_relatives(&due, managed);
        let (count, pids) = (asked.len(), asked.iter().map(|asked| asked.pid).collect::<Vec<_>>());
        if self.shares.ask(asked) {
            self.shared.counters.shares_asked.add(count as u64);
            // Who is of a family that cannot be asked yet must not keep others from being asked.
            for pid in pids.into_iter().chain(due) {
                self.watched.entry(pid).and_modify(|watched| watched.shares_asked = Some(Instant::now()));
            }
        }
    }

    /// Relatives are asked together: what one has less of a page that all share the others have
    /// more. A family of which one is not known yet is not asked.
    fn with_relatives(&self, due: &[u32], managed: &BTreeMap<u32, ManagedProcess>) -> Vec<CopiesAsked> {
        let asked = |pid: u32, watched: &Watched| {
            // A child that nobody has heard of yet is of its parent's.
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

    /// Whoever is seen for the first time is in its parent's group.
    fn meet_newcomers(&mut self) {
        let engine = std::process::id();
        for (pid, watched) in &mut self.watched {
            if watched.account.as_ref().is_none_or(|account| account.has_ended()) {
                watched.account = Some(self.shared.groups.meet(*pid, || procfs::kin(*pid, engine)));
            }
        }
    }

    /// Charges each process with what it was found to hold, without what it shares with relatives.
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

    /// Memory may have to be managed soon.
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

    /// Has the mappings of processes looked at that grew in a way no event tells.
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
