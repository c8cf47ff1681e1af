//! Load control in the engine: what the policy (`load_control.rs` of the core) sees, and how a process is held.
//!
//! The controller's thread looks at all processes each few milliseconds while load control is on, and 20 times a second
//! otherwise, at counters that the owners keep and at the processor time of the processes. What it decides are flags, one for
//! each space. The owner of a space whose flag is set puts its faults aside and evicts its pages before those of others.
//!
//! A fault that is put aside is served when the process is let in, when it turns out not to be held rightly, or when it
//! was held for [`MOST_HOLD`]. Only faults in user mode are held: a system call that waits for a page may hold locks of the kernel that
//! others need. `/proc/PID/task/TID/syscall` begins with -1 for a thread that is in no system call. The owner never reads
//! it, since reading it waits until the thread has gone to sleep: the controller does, and tells the owner whom to serve at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use uswap_core::growth::{Growth, during};
use uswap_core::load_control::{Key, LoadControl, MOST_HOLD, Machine, Sample, works};
use uswap_core::programs::Program;
use uswap_sys::process;

use crate::owner::Owner;
use crate::procfs::{self, Mode, Statm};
use crate::servers::Looked;
use crate::shared::{Message, Shared};
use crate::space::{Space, SpaceId};

/// How often the controller looks while load control is on, and otherwise.
const BUSY_TICK: Duration = Duration::from_millis(5);
/// A look at many processes takes half a millisecond: it costs one part in so many of the time at most.
const TICK_COST: u32 = 40;
/// Who waits for its turn is looked at every so many looks.
const MOST_SPARED: u32 = 4;
const MOST_BUSY_TICK: Duration = Duration::from_millis(20);
const IDLE_TICK: Duration = Duration::from_millis(50);
/// How often pool and processors are asked for their figures.
const FIGURES: Duration = Duration::from_millis(100);
/// Faults of a space that are put aside at a time, at most: others are served at once.
const MOST_HELD: usize = 256;
/// Questions to the controller under way, at most.
pub const MOST_QUESTIONS: usize = 1024;
/// How often, a millisecond apart, a thread is looked at that is still on its way to sleep.
const LOOKS: u32 = 5;
/// An answer whether a process is stopped is good for so long while it does not run.
const STOPPED_FOR: Duration = Duration::from_millis(50);
/// How often owners tell what they have while it looks.
const TOLD: Duration = Duration::from_millis(1);
/// What a fault costs beside the owner's work: the message and the wake-up.
const WAKE_UP: Duration = Duration::from_micros(20);
/// Pages of a held space that are worth being evicted before those of others.
const LEAST_SUSPENDED: u64 = 32;
/// A turn where a test forces load control.
const FORCED_TURN: Duration = Duration::from_millis(200);

/// A fault that was put aside.
#[derive(Clone, Copy, Debug)]
pub struct HeldFault {
    /// Its page.
    pub address: u64,
    /// The access was a write.
    pub write: bool,
    /// Served at the latest by then.
    until: Instant,
}

/// What an owner tells of a space, and the controller decides about it. Each counter has one writer.
#[derive(Debug, Default)]
pub struct Record {
    owner: usize,
    space: SpaceId,
    pid: AtomicU32,
    agent: AtomicU32,
    active: AtomicBool,
    pages: AtomicU64,
    stored: AtomicU64,
    /// Pages that came back, and the sum of their refault distances.
    refaults: AtomicU64,
    distance: AtomicU64,
    /// Nanoseconds that faults waited for pages.
    waited: AtomicU64,
    /// Faults for which something is under way, and faults that were put aside.
    pending: AtomicU64,
    blocked: AtomicU64,
    held: AtomicBool,
    /// Its place in line, and the estimate of its working set.
    place: AtomicU64,
    demand: AtomicU64,
    /// Milliseconds that it had faults put aside: since when it has without a break, and before that.
    waiting: AtomicU64,
    waited_before: AtomicU64,
}

/// Grows a counter that nobody else writes.
fn grow(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

impl Record {
    /// Of a space of this owner.
    pub fn new(owner: usize, space: SpaceId) -> Self {
        Self { owner, space, ..Self::default() }
    }

    /// Whether its faults are put aside.
    pub fn is_held(&self) -> bool {
        self.held.load(Relaxed)
    }

    /// Pages of its working set, as load control estimates it.
    pub fn demand(&self) -> u64 {
        self.demand.load(Relaxed)
    }

    /// A page came back that would have needed `distance` more pages of room to stay.
    pub fn refaulted(&self, distance: u64) {
        grow(&self.refaults, 1);
        grow(&self.distance, distance);
    }

    /// A fault that was read at `since` was served.
    pub fn waited(&self, since: Instant) {
        grow(&self.waited, (since.elapsed() + WAKE_UP).as_nanos() as u64);
    }

    /// How long it has waited for its turn without a break, and in all.
    fn waiting_ms(&self) -> (u64, u64) {
        let now = self.waiting.load(Relaxed);
        (now, self.waited_before.load(Relaxed) + now)
    }

    fn count_wait(&self, passed: Duration) {
        if self.is_held() && self.blocked.load(Relaxed) > 0 {
            grow(&self.waiting, passed.as_millis() as u64);
        } else if !self.is_held() {
            grow(&self.waited_before, self.waiting.swap(0, Relaxed));
        }
    }
}

/// Whether a thread that faulted may be held.
#[derive(Debug)]
pub struct Question {
    record: Arc<Record>,
    pid: u32,
    thread: u32,
    address: u64,
}

/// What owners and controller share.
#[derive(Debug)]
pub struct Load {
    enabled: bool,
    /// Owners tell of their spaces at each turn.
    watching: AtomicBool,
    /// Somebody is held.
    holding: AtomicBool,
    records: Mutex<BTreeMap<Key, Arc<Record>>>,
    questions: SyncSender<Question>,
    /// By owner: pages of held spaces that can be evicted.
    suspended: Vec<AtomicI64>,
    /// Pages that are left beside those who are in.
    spare: AtomicI64,
    turns: AtomicU64,
    ended_ms: AtomicU64,
}

impl Load {
    /// For so many owners; the controller gets the other end of `questions`.
    pub fn new(enabled: bool, owners: usize, questions: SyncSender<Question>) -> Self {
        Self {
            enabled,
            watching: AtomicBool::new(false),
            holding: AtomicBool::new(false),
            records: Mutex::default(),
            questions,
            suspended: (0..owners).map(|_| AtomicI64::new(0)).collect(),
            spare: AtomicI64::new(0),
            turns: AtomicU64::new(0),
            ended_ms: AtomicU64::new(0),
        }
    }

    /// Whether anybody is held: all that the fault path asks while nobody is.
    pub fn is_holding(&self) -> bool {
        self.holding.load(Relaxed)
    }

    /// While processes take turns: pages that are left beside those who are in, or that they lack.
    pub fn spare(&self) -> Option<i64> {
        self.is_holding().then(|| self.spare.load(Relaxed))
    }

    fn is_watching(&self) -> bool {
        self.watching.load(Relaxed)
    }

    /// A space has begun.
    pub fn begin(&self, record: &Arc<Record>) {
        self.records.lock().expect("records").insert(key(record), record.clone());
    }

    /// A space has ended.
    pub fn end(&self, record: &Record) {
        if self.records.lock().expect("records").remove(&key(record)).is_some() {
            self.ended_ms.fetch_add(record.waiting_ms().1, Relaxed);
        }
    }

    /// Pages that held spaces of other owners than this could give.
    fn suspended_elsewhere(&self, owner: usize) -> i64 {
        let others = self.suspended.iter().enumerate().filter(|(number, _)| *number != owner);
        others.map(|(_, pages)| pages.load(Relaxed)).sum()
    }

    fn all(&self) -> Vec<(Key, Arc<Record>)> {
        self.records.lock().expect("records").iter().map(|(key, record)| (*key, record.clone())).collect()
    }

    /// What the summary says, if anybody had to wait.
    pub fn in_words(&self) -> Option<String> {
        let figures = self.figures();
        let (turns, waited) = (figures["turns"].as_u64()?, figures["waited_ms"].as_u64()?);
        (waited > 0).then(|| format!("processes took {turns} turns and waited {:.1} s for them", waited as f64 / 1e3))
    }

    /// What is told of load control as a whole.
    pub fn figures(&self) -> serde_json::Value {
        let all = self.all();
        let held = all.iter().filter(|(_, record)| record.is_held()).count();
        let waited: u64 = all.iter().map(|(_, record)| record.waiting_ms().1).sum();
        let state = match (self.enabled, self.is_watching()) {
            (false, _) => "off",
            (_, false) => "idle",
            _ => "active",
        };
        let waited = waited + self.ended_ms.load(Relaxed);
        serde_json::json!({ "state": state, "held": held, "turns": self.turns.load(Relaxed), "waited_ms": waited })
    }

    /// Of a process: whether it waits for its turn, for how long without a break, and in all.
    pub fn figures_of(&self, owner: usize, space: SpaceId) -> (bool, u64, u64) {
        let records = self.records.lock().expect("records");
        let record = records.get(&(key_of(owner, space)));
        record.map_or((false, 0, 0), |record| {
            let (now, all) = record.waiting_ms();
            (record.is_held() && now > 0, now, all)
        })
    }
}

fn key_of(owner: usize, space: SpaceId) -> Key {
    (owner as u64) << 32 | u64::from(space)
}

fn key(record: &Record) -> Key {
    key_of(record.owner, record.space)
}

impl Owner {
    /// Puts a fault aside if its process is held; `false`: it is to be served. Never one of the agent, whose orders
    /// others wait for, nor one whose thread nobody can look at.
    pub fn put_aside(&mut self, space: &mut Space, address: u64, write: bool, thread: u32) -> bool {
        let Some(pid) = space.pid.filter(|_| space.record.is_held() && !space.in_area(address)) else { return false };
        if thread == space.reader || thread == 0 || space.held.len() >= MOST_HELD {
            return false;
        }
        let question = Question { record: space.record.clone(), pid, thread, address };
        if self.shared.load.questions.try_send(question).is_err() {
            return false;
        }
        let until = Instant::now() + MOST_HOLD;
        if !space.held.iter().any(|held| held.address == address) {
            self.shared.counters.held_faults.add(1);
            during(Growth::AddressSpaces, || space.held.push(HeldFault { address, write, until }));
        }
        space.record.blocked.store(space.held.len() as u64, Relaxed);
        self.retry_by(until);
        true
    }

    /// Serves the faults of a space that were put aside: all, once it is not held any more, and those that were held for
    /// long enough.
    pub fn serve_held(&mut self, space: &mut Space) {
        let held = space.record.is_held() && self.shared.load.is_holding();
        let now = Instant::now();
        let is_due = |fault: &mut HeldFault| !held || fault.until <= now;
        let due: Vec<HeldFault> = during(Growth::AddressSpaces, || space.held.extract_if(.., is_due).collect());
        for fault in &due {
            self.shared.counters.held_to_the_end.add(u64::from(held));
            self.serve_fault(space, fault.address, fault.write, now);
        }
        space.record.blocked.store(space.held.len() as u64, Relaxed);
        if let Some(next) = space.held.iter().map(|fault| fault.until).min() {
            self.retry_by(next);
        }
    }

    /// A thread that was put aside is in a system call, or cannot be looked at.
    pub fn serve_at_once(&mut self, space: &mut Space, address: u64) {
        if let Some(place) = space.held.iter().position(|fault| fault.address == address) {
            let fault = space.held.swap_remove(place);
            self.shared.counters.held_in_calls.add(1);
            space.record.blocked.store(space.held.len() as u64, Relaxed);
            self.serve_fault(space, address, fault.write, Instant::now());
        }
    }

    /// Tells the controller of all spaces: often while it watches, and now and then.
    pub fn tell_load(&mut self, now_and_then: bool) {
        if now_and_then || self.shared.load.is_watching() && self.told_load.elapsed() >= TOLD {
            self.told_load = Instant::now();
            let groups = &self.shared.groups;
            let in_use = groups.in_use();
            let is_limited = |space: &Space| space.account.as_ref().is_some_and(|account| groups.is_limited(account));
            self.spaces.values().for_each(|space| space.tell_load(in_use && is_limited(space)));
        }
    }

    /// Spaces whose pages go first: those of held processes, and of these the ones that have longest to wait for their turn,
    /// as many as it takes to have `wanted` pages twice over; and the pages that all of them have here.
    pub fn suspended(&self, wanted: u64) -> (Vec<SpaceId>, u64) {
        if !self.shared.load.is_holding() {
            return (Vec::new(), 0);
        }
        let can_give = |space: &Space| space.record.is_held() && space.can_evict() && space.weight() > LEAST_SUSPENDED;
        let suspended = self.spaces.values().filter(|space| can_give(space));
        let place = |space: &Space| (space.record.place.load(Relaxed), space.id, space.weight());
        let mut found: Vec<(u64, SpaceId, u64)> =
            during(Growth::AddressSpaces, || suspended.map(|space| place(space)).collect());
        let pages: u64 = found.iter().map(|(.., weight)| weight).sum();
        self.shared.load.suspended[self.number].store(pages as i64, Relaxed);
        found.sort_unstable_by_key(|(place, ..)| std::cmp::Reverse(*place));
        let mut ahead = 0;
        let enough = found.into_iter().take_while(|(.., weight)| {
            ahead += weight;
            ahead - weight < 2 * wanted
        });
        (during(Growth::AddressSpaces, || enough.map(|(_, id, _)| id).collect()), pages)
    }

    /// Whether another owner's held spaces give so many pages, and are about to.
    pub fn others_give(&self, wanted: u64) -> bool {
        let load = &self.shared.load;
        let other_owners = || self.shared.idle.iter().enumerate().filter(|(number, _)| *number != self.number);
        load.is_holding()
            && load.suspended_elsewhere(self.number) >= wanted as i64
            && self.shared.budget.has_room(0)
            && (self.shared.budget.under_way() > 0 || other_owners().any(|(_, idle)| !idle.load(Relaxed)))
    }
}

impl Space {
    /// Who has a group's limit to keep to does not take turns for the run's.
    fn tell_load(&self, limited: bool) {
        let record = &self.record;
        record.pid.store(self.pid.unwrap_or(0), Relaxed);
        record.agent.store(self.reader, Relaxed);
        record.active.store(self.active && self.can_evict() && !limited, Relaxed);
        record.pages.store(self.resident + self.trays.staged_pages(), Relaxed);
        record.stored.store(self.stored, Relaxed);
        record.pending.store((self.waiters.len() + self.stalled.len()) as u64, Relaxed);
    }
}

/// What the controller saw of a process at its last look.
#[derive(Debug)]
struct Seen {
    pid: u32,
    statm: Option<Statm>,
    /// Its anonymous memory, also what is not registered yet.
    pages: u64,
    parent: Option<u32>,
    program: Program,
    looked: Looked,
    /// Whether it was stopped when it was looked at last.
    stopped: Option<(Instant, bool)>,
    processor: Duration,
    refaults: u64,
    distance: u64,
    waited: u64,
    /// Looks since that were spared.
    spared: u32,
}

impl Seen {
    /// Whether a look can be spared: it waits for its turn, and nothing that costs nothing to know has changed.
    fn may_stay(&mut self, waits: bool, record: &Record) -> bool {
        let same = self.refaults == record.refaults.load(Relaxed) && self.waited == record.waited.load(Relaxed);
        let stays = waits && same && self.spared < MOST_SPARED;
        self.spared = if stays { self.spared + 1 } else { 0 };
        stays
    }
}

/// The controller's state.
pub struct Controller {
    shared: Arc<Shared>,
    questions: Receiver<Question>,
    open: Vec<(Question, u32)>,
    control: LoadControl,
    seen: HashMap<Key, Seen>,
    begun: Instant,
    ticked: Instant,
    tick_took: Duration,
    /// Faults of the run at the last look, and whether there were none.
    faults: u64,
    quiet: bool,
    swap_in: f64,
    processors: u32,
    pool: Pool,
    /// Idle time of all processors at the last look at the pool, and its share before that.
    idle: (Duration, f64),
}

/// What is known of the pool.
#[derive(Clone, Copy, Debug)]
struct Pool {
    looked: Instant,
    /// Pages of memory for each page that is stored, and pages that it may still take.
    cost: f64,
    room: u64,
}

impl Controller {
    /// A controller that answers these questions.
    pub fn new(shared: Arc<Shared>, questions: Receiver<Question>) -> Self {
        let forced = shared.faults.crowd;
        let control = if forced { LoadControl::forced(FORCED_TURN) } else { LoadControl::default() };
        let now = Instant::now();
        Self {
            shared,
            questions,
            open: Vec::new(),
            control,
            seen: HashMap::new(),
            begun: now,
            ticked: now,
            tick_took: Duration::ZERO,
            faults: 0,
            quiet: true,
            swap_in: 10e-6,
            processors: std::thread::available_parallelism().map_or(1, |number| number.get() as u32),
            pool: Pool { looked: now, cost: 0.5, room: 0 },
            idle: (Duration::ZERO, 1.0),
        }
    }

    /// Looks and answers until told to stop.
    pub fn run(&mut self, stop: &AtomicBool) {
        // Owners and programs wait for what is decided here; a look takes microseconds.
        process::run_first();
        while !stop.load(Relaxed) {
            let busy = (self.tick_took * TICK_COST).clamp(BUSY_TICK, MOST_BUSY_TICK);
            let tick = if self.control.is_on() { busy } else { IDLE_TICK };
            let left = tick.saturating_sub(self.ticked.elapsed());
            let wait = if self.open.is_empty() { left } else { left.min(Duration::from_millis(1)) };
            match self.questions.recv_timeout(wait) {
                Ok(question) => self.look(question, 0),
                Err(RecvTimeoutError::Timeout) => self.look_again(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.ticked.elapsed() >= tick {
                self.look_again();
                self.tick();
                self.tick_took = self.ticked.elapsed();
            }
        }
    }

    fn look(&mut self, question: Question, looks: u32) {
        match procfs::mode(question.pid, question.thread) {
            Some(Mode::User) => {}
            Some(_) if self.shared.faults.hold_in_calls => {}
            Some(Mode::Running) if looks < LOOKS => self.open.push((question, looks + 1)),
            _ => {
                let Question { record, address, .. } = question;
                let message = Message::ServeAtOnce { space: record.space, address };
                self.shared.mailboxes[record.owner].post(message);
            }
        }
    }

    fn look_again(&mut self) {
        for (question, looks) in std::mem::take(&mut self.open) {
            self.look(question, looks);
        }
    }

    fn tick(&mut self) {
        let passed = self.ticked.elapsed();
        self.ticked = Instant::now();
        let counters = &self.shared.counters;
        let faults = counters.pgmajfault.get() + counters.throttled.get();
        let fills = self.shared.budget.usage() > self.shared.budget.activation();
        let quiet = faults == self.faults && !fills && !self.control.is_on();
        self.faults = faults;
        if quiet {
            self.quiet = true;
            return;
        }
        let records = self.shared.load.all();
        let samples = self.samples(&records, passed);
        if std::mem::take(&mut self.quiet) {
            // Only now it is known from when on time counts.
            return;
        }
        let machine = self.machine(&samples);
        self.control.tick(self.begun.elapsed(), machine, &samples);
        self.tell(&records, passed);
    }

    fn samples(&mut self, records: &[(Key, Arc<Record>)], passed: Duration) -> Vec<Sample> {
        let mut before = std::mem::take(&mut self.seen);
        let mut samples = Vec::with_capacity(records.len());
        for (key, record) in records {
            let pid = record.pid.load(Relaxed);
            if pid == 0 || !record.active.load(Relaxed) {
                continue;
            }
            let mut old = before.remove(key).filter(|old| old.pid == pid);
            let waits = self.control.is_held(*key) && record.blocked.load(Relaxed) > 0;
            let (mut now, old) = match old.take_if(|old| old.may_stay(waits, record)) {
                Some(same) => (same, None),
                None => (observe(record, pid, old.as_mut()), old),
            };
            let mut sample = self.sample(*key, record, &now, old.as_ref().unwrap_or(&now), passed);
            sample.stopped = self.is_stopped(*key, &sample, &mut now);
            sample.serves = (sample.refaults > 0 || self.control.is_on()) && now.looked.answers(pid);
            samples.push(sample);
            self.seen.insert(*key, now);
        }
        let keys: HashMap<u32, Key> = self.seen.iter().map(|(key, seen)| (seen.pid, *key)).collect();
        for sample in &mut samples {
            sample.parent = self.seen[&sample.key].parent.and_then(|parent| keys.get(&parent).copied());
        }
        samples
    }

    /// Whether a process is stopped that should run and does not.
    fn is_stopped(&self, key: Key, sample: &Sample, seen: &mut Seen) -> bool {
        if !self.control.is_on() || !sample.ran.is_zero() {
            seen.stopped = None;
            return false;
        }
        if seen.stopped.is_none_or(|(looked, _)| looked.elapsed() >= STOPPED_FOR) {
            let asks = seen.stopped.is_some() || sample.runnable || sample.blocked || self.control.has_turn(key);
            seen.stopped = asks.then(|| (Instant::now(), procfs::is_stopped(seen.pid)));
        }
        seen.stopped.is_some_and(|(_, stopped)| stopped)
    }

    fn sample(&mut self, key: Key, record: &Record, now: &Seen, old: &Seen, passed: Duration) -> Sample {
        let refaults = now.refaults.wrapping_sub(old.refaults);
        let waited = Duration::from_nanos(now.waited.wrapping_sub(old.waited));
        if refaults > 16 {
            let cost = (waited.as_secs_f64() / refaults as f64).clamp(2e-6, 2e-3);
            self.swap_in += (cost - self.swap_in) / 16.0;
        }
        let ran = now.processor.saturating_sub(old.processor);
        let blocked = record.blocked.load(Relaxed) > 0;
        let moves = refaults > 0 || works(ran, passed) || record.pending.load(Relaxed) > 0;
        // Whoever has no turn and waits for a processor keeps nobody out.
        let asks = self.control.has_turn(key) && !blocked;
        let runnable = moves || asks && procfs::is_runnable(now.pid, record.agent.load(Relaxed));
        Sample {
            key,
            parent: None,
            program: now.program,
            pages: now.pages,
            stored: record.stored.load(Relaxed),
            refaults,
            distance: now.distance.wrapping_sub(old.distance) / refaults.max(1),
            waited,
            ran,
            runnable,
            blocked,
            serves: false,
            stopped: false,
        }
    }

    fn machine(&mut self, samples: &[Sample]) -> Machine {
        let budget = &self.shared.budget;
        let pages: u64 = samples.iter().map(|sample| sample.pages).sum();
        let capacity = (pages as i64 + budget.high() - budget.usage()).max(1) as u64;
        if self.pool.looked.elapsed() > FIGURES {
            self.look_around();
        }
        let swap_in = Duration::from_secs_f64(self.swap_in);
        let Pool { cost, room, .. } = self.pool;
        Machine { capacity, pool_cost: cost, pool_room: room, swap_in, processors: self.processors, idle: self.idle.1 }
    }

    /// What costs more to know, and changes slowly: pool and processors.
    fn look_around(&mut self) {
        let store = self.shared.store.stats();
        let cost = store.pool_bytes as f64 / 4096.0 / store.stored_pages.max(1) as f64;
        let passed = self.pool.looked.elapsed().as_secs_f64() * f64::from(self.processors);
        let room = store.pool_limit_bytes.saturating_sub(store.pool_bytes) >> 12;
        self.pool = Pool { looked: Instant::now(), cost: cost.min(1.0), room };
        let idle = procfs::idle_time().unwrap_or(Duration::MAX);
        self.idle = (idle, idle.saturating_sub(self.idle.0).as_secs_f64() / passed);
    }

    /// Sets the flags, and wakes the owners whose spaces' flags have changed.
    fn tell(&self, records: &[(Key, Arc<Record>)], passed: Duration) {
        let mut changed = vec![false; self.shared.mailboxes.len()];
        let mut any = false;
        for (key, record) in records {
            record.count_wait(passed);
            let held = self.control.is_held(*key);
            any |= held;
            record.place.store(self.control.place(*key), Relaxed);
            record.demand.store(self.control.demand(*key), Relaxed);
            changed[record.owner] |= record.held.swap(held, Relaxed) != held;
        }
        let load = &self.shared.load;
        load.watching.store(self.control.is_on(), Relaxed);
        load.holding.store(any, Relaxed);
        load.turns.store(self.control.turns(), Relaxed);
        load.spare.store(self.control.spare(), Relaxed);
        for (mailbox, _) in self.shared.mailboxes.iter().zip(changed).filter(|(_, changed)| *changed) {
            mailbox.post(Message::Balance);
        }
    }
}

/// Reads what a process has used. The agent's work is ours. Its memory is asked for by the agent's number: a main thread that
/// has ended has none.
fn observe(record: &Record, pid: u32, mut old: Option<&mut Seen>) -> Seen {
    let reader = Some(record.agent.load(Relaxed)).filter(|agent| *agent != 0).unwrap_or(pid);
    let statm = old.as_mut().and_then(|old| old.statm.take()).or_else(|| Statm::open(reader).ok());
    let anonymous = statm.as_ref().and_then(|statm| statm.read().ok()).map_or(0, |memory| memory.anonymous);
    let own = process::processor_time(pid).unwrap_or_default();
    let agent = process::processor_time_of_thread(record.agent.load(Relaxed)).unwrap_or_default();
    Seen {
        pid,
        statm,
        pages: anonymous.max(0) as u64,
        parent: old.as_ref().map_or_else(|| procfs::parent(pid), |old| old.parent),
        looked: old.as_ref().map(|old| old.looked).unwrap_or_default(),
        stopped: old.as_ref().and_then(|old| old.stopped),
        program: old.map_or_else(|| procfs::program(pid), |old| old.program),
        processor: own.saturating_sub(agent),
        refaults: record.refaults.load(Relaxed),
        distance: record.distance.load(Relaxed),
        waited: record.waited.load(Relaxed),
        spared: 0,
    }
}
