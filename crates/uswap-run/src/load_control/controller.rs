//! The controller's thread: measures the processes, asks the policy, and sets the flags.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use uswap_core::load_control::programs::Program;
use uswap_core::load_control::{Key, LoadControl, LoadMachine, LoadSample, works};
use uswap_sys::process;

use crate::load_control::servers::Looked;
use uswap_pager::load_control::{LoadRecord, LoadTold, Question};
use uswap_pager::runner::Runner;
use uswap_remote::{EngineContext, Message};
use uswap_sys::procfs::{self, Mode, Statm};

/// How often the controller looks: while load control is on, and otherwise.
const BUSY_TICK: Duration = Duration::from_millis(5);
/// A look at many processes takes half a millisecond. The controller spends at most 1/N of its time
/// on looks.
const TICK_COST: u32 = 40;
const MAX_BUSY_TICK: Duration = Duration::from_millis(20);
const IDLE_TICK: Duration = Duration::from_millis(50);
/// Maximum of looks in a row that the controller skips for a process that waits for its turn.
const MAX_SPARED: u32 = 4;
/// How often the controller reads the figures of pool and processors.
const FIGURES: Duration = Duration::from_millis(100);
/// Maximum of looks, a millisecond apart, at a thread that is about to sleep.
const LOOKS: u32 = 5;
/// How long an answer whether a process is stopped is valid while the process does not run.
const STOPPED_FOR: Duration = Duration::from_millis(50);

/// State of a process at the controller's last look.
#[derive(Debug)]
struct ControllerSeen {
    pid: u32,
    statm: Option<Statm>,
    /// Pages of its anonymous memory, registered or not.
    pages: u64,
    parent: Option<u32>,
    program: Program,
    looked: Looked,
    /// The last answer whether it is stopped, and the time of that answer.
    stopped: Option<(Instant, bool)>,
    processor: Duration,
    refaults: u64,
    distance: u64,
    waited: u64,
    /// Looks that were skipped since.
    spared: u32,
}

impl ControllerSeen {
    /// Whether a look can be skipped: the process waits for its turn, and the figures that are
    /// known without reading /proc have not changed.
    fn may_stay(&mut self, waits: bool, told: &LoadTold) -> bool {
        let same = self.refaults == told.refaults && self.waited == told.waited;
        let stays = waits && same && self.spared < MAX_SPARED;
        self.spared = if stays { self.spared + 1 } else { 0 };
        stays
    }
}

/// The controller's state.
pub struct Controller {
    shared: Arc<EngineContext>,
    questions: Receiver<Question>,
    open: Vec<(Question, u32)>,
    control: LoadControl,
    seen: HashMap<Key, ControllerSeen>,
    begun: Instant,
    ticked: Instant,
    tick_took: Duration,
    /// Faults of the run at the last look, and whether there were no new ones.
    faults: u64,
    quiet: bool,
    swap_in: f64,
    processors: u32,
    pool: Pool,
    /// Idle time of all processors at the last look at the pool, and the idle share of the time
    /// before that look.
    idle: (Duration, f64),
}

/// Figures of the pool.
#[derive(Clone, Copy, Debug)]
struct Pool {
    looked: Instant,
    /// Pages of memory for each stored page, and pages that the pool may still take.
    cost: f64,
    room: u64,
}

impl Controller {
    /// A controller that answers these questions.
    pub fn new(shared: Arc<EngineContext>, questions: Receiver<Question>) -> Self {
        let control = LoadControl::tuned(shared.faults.turns());
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
            processors: process::processors() as u32,
            pool: Pool { looked: now, cost: 0.5, room: 0 },
            idle: (Duration::ZERO, 1.0),
        }
    }

    /// Measures and answers until `stop` is set.
    pub fn run(&mut self, stop: &AtomicBool) {
        // Pager threads and programs wait for the decisions of this thread; a look takes
        // microseconds.
        process::run_first();
        while !stop.load(Relaxed) {
            let busy = (self.tick_took * TICK_COST).clamp(BUSY_TICK, MAX_BUSY_TICK);
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
                let (owner, space) = record.whose();
                self.shared.mailboxes[owner].post(Message::ServeAtOnce { space, address });
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
            // This is the first look after a quiet time: the policy's time counts from here on.
            return;
        }
        let machine = self.machine(&samples);
        self.control.tick(self.begun.elapsed(), machine, &samples);
        self.tell(&records, passed);
    }

    fn samples(&mut self, records: &[(Key, Arc<LoadRecord>)], passed: Duration) -> Vec<LoadSample> {
        let mut before = std::mem::take(&mut self.seen);
        let mut samples = Vec::with_capacity(records.len());
        for (key, record) in records {
            let told = record.told();
            let pid = told.runner.process;
            if pid == 0 || !told.is_active {
                continue;
            }
            let mut old = before.remove(key).filter(|old| old.pid == pid);
            let waits = self.control.is_held(*key) && told.is_blocked;
            let (mut now, old) = match old.take_if(|old| old.may_stay(waits, &told)) {
                Some(same) => (same, None),
                None => (observe(&told, old.as_mut()), old),
            };
            let mut sample = self.sample(*key, &told, &now, old.as_ref().unwrap_or(&now), passed);
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

    /// Whether a process that should run and does not is stopped.
    fn is_stopped(&self, key: Key, sample: &LoadSample, seen: &mut ControllerSeen) -> bool {
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

    fn sample(
        &mut self,
        key: Key,
        told: &LoadTold,
        now: &ControllerSeen,
        old: &ControllerSeen,
        passed: Duration,
    ) -> LoadSample {
        let refaults = now.refaults.wrapping_sub(old.refaults);
        let waited = Duration::from_nanos(now.waited.wrapping_sub(old.waited));
        if refaults > 16 {
            let cost = (waited.as_secs_f64() / refaults as f64).clamp(2e-6, 2e-3);
            self.swap_in += (cost - self.swap_in) / 16.0;
        }
        let ran = now.processor.saturating_sub(old.processor);
        let blocked = told.is_blocked;
        let moves = refaults > 0 || works(ran, passed) || told.is_pending;
        // A process without a turn that waits for a processor does not keep other processes
        // waiting.
        let asks = self.control.has_turn(key) && !blocked;
        let runnable = moves || asks && procfs::is_runnable(now.pid, told.runner.helper);
        LoadSample {
            key,
            parent: None,
            program: now.program,
            pages: now.pages,
            stored: told.stored,
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

    fn machine(&mut self, samples: &[LoadSample]) -> LoadMachine {
        let budget = &self.shared.budget;
        let pages: u64 = samples.iter().map(|sample| sample.pages).sum();
        let capacity = (pages as i64 + budget.high() - budget.usage()).max(1) as u64;
        if self.pool.looked.elapsed() > FIGURES {
            self.look_around();
        }
        let swap_in = Duration::from_secs_f64(self.swap_in);
        let Pool { cost, room, .. } = self.pool;
        LoadMachine {
            capacity,
            pool_cost: cost,
            pool_room: room,
            swap_in,
            processors: self.processors,
            idle: self.idle.1,
        }
    }

    /// Reads the figures that cost more to read and change slowly: those of pool and processors.
    fn look_around(&mut self) {
        let store = self.shared.store.stats();
        let cost = store.pool_bytes as f64 / 4096.0 / store.stored_pages.max(1) as f64;
        let passed = self.pool.looked.elapsed().as_secs_f64() * f64::from(self.processors);
        let room = store.pool_limit_bytes.saturating_sub(store.pool_bytes) >> 12;
        self.pool = Pool { looked: Instant::now(), cost: cost.min(1.0), room };
        let idle = procfs::idle_time().unwrap_or(Duration::MAX);
        self.idle = (idle, idle.saturating_sub(self.idle.0).as_secs_f64() / passed);
    }

    /// Sets the flags, and wakes the pager threads that own spaces with changed flags.
    fn tell(&self, records: &[(Key, Arc<LoadRecord>)], passed: Duration) {
        let mut changed = vec![false; self.shared.mailboxes.len()];
        let mut any = false;
        for (key, record) in records {
            let held = self.control.is_held(*key);
            any |= held;
            let (place, demand) = (self.control.place(*key), self.control.demand(*key));
            changed[record.whose().0] |= record.decide(held, place, demand, passed);
        }
        self.shared.load.announce(self.control.is_on(), any, self.control.turns(), self.control.spare());
        for (mailbox, _) in self.shared.mailboxes.iter().zip(changed).filter(|(_, changed)| *changed) {
            mailbox.post(Message::Balance);
        }
    }
}

/// Reads the processor time and memory that a process has used. The agent's work does not count as
/// the program's. The memory is read by the agent's id, since by the id of a main thread that has
/// ended none is shown.
fn observe(told: &LoadTold, mut old: Option<&mut ControllerSeen>) -> ControllerSeen {
    let Runner { process: pid, helper, within: is_within } = told.runner;
    let reader = if helper == 0 { pid } else { helper };
    let statm = old.as_mut().and_then(|old| old.statm.take()).or_else(|| Statm::open(reader).ok());
    let anonymous = statm.as_ref().and_then(|statm| statm.read().ok()).map_or(0, |memory| memory.anonymous);
    let own = process::processor_time(pid).unwrap_or_default();
    let within = is_within.then(|| process::processor_time_of_thread(helper).ok()).flatten();
    let agent = within.unwrap_or_default();
    ControllerSeen {
        pid,
        statm,
        pages: anonymous.max(0) as u64,
        parent: old.as_ref().map_or_else(|| procfs::parent(pid), |old| old.parent),
        looked: old.as_ref().map(|old| old.looked).unwrap_or_default(),
        stopped: old.as_ref().and_then(|old| old.stopped),
        program: old.map_or_else(|| procfs::program(pid), |old| old.program),
        processor: own.saturating_sub(agent),
        refaults: told.refaults,
        distance: told.distance,
        waited: told.waited,
        spared: 0,
    }
}
