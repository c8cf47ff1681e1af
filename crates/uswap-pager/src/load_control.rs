//! Load control in the engine: the figures that the policy (`load_control/mod.rs` of the core)
//! sees, and how a process is held.
//!
//! The controller's thread looks at all processes every few milliseconds while load control is on,
//! and 20 times a second otherwise: at counters that the pagers keep and at the processor time of
//! the processes. Its decisions are flags, one for each space. The pager of a space whose flag is
//! set puts the faults of the space aside and evicts its pages before those of others.
//!
//! A fault that is put aside is served when the turn of the process begins, when it turns out that
//! its thread must not be held, or when it was held for [`MAX_HOLD`]. Only faults in user mode are
//! held: a system call that waits for a page may hold locks of the kernel that others need.
//! `/proc/PID/task/TID/syscall` begins with -1 for a thread that is in no system call. The pager
//! never reads this file, since reading it waits until the thread has gone to sleep: the controller
//! (`controller.rs`) does, and tells the pager which faults to serve at once.

pub mod hold;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use uswap_core::load_control::{Key, MAX_HOLD};

use crate::runner::Runner;
use crate::space::id::SpaceId;

/// Maximum number of faults of a space that are put aside at a time: further ones are served at
/// once.
const MAX_HELD: usize = 256;
/// Maximum number of questions to the controller under way.
pub const MAX_QUESTIONS: usize = 1024;
/// Interval at which pagers report to the controller while it watches.
const TOLD: Duration = Duration::from_millis(1);
/// The cost of a fault beside the pager's work: the message and the wake-up.
const WAKE_UP: Duration = Duration::from_micros(20);
/// Pages that a held space must have for its pages to be evicted before those of others.
const MIN_SUSPENDED: u64 = 32;

/// A hold that is practically unbounded, for a test that switches the bound off.
const LONG_HOLD: Duration = Duration::from_secs(10);

/// Whether load control is at work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadState {
    /// Load control is switched off.
    #[default]
    Off,
    /// Memory is not short.
    Idle,
    /// Load control watches all processes.
    Active,
}

/// Figures of load control as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadFigures {
    /// Whether load control is at work.
    pub state: LoadState,
    /// Gauge: processes that wait for their turn.
    pub held: u64,
    /// Turns that processes took.
    pub turns: u64,
    /// Milliseconds that processes waited for turns.
    pub waited_ms: u64,
    /// The longest time in milliseconds for which a fault was put aside.
    pub longest_hold_ms: u64,
}

/// A fault that was put aside.
#[derive(Clone, Copy, Debug)]
pub struct HeldFault {
    /// The page.
    pub address: u64,
    /// Whether the access was a write.
    pub write: bool,
    since: Instant,
    /// The latest time at which it is served.
    until: Instant,
}

/// Data of a space that its pager publishes, and the decisions of the controller about it. Each
/// counter has one writer.
#[derive(Debug, Default)]
pub struct LoadRecord {
    owner: usize,
    space: SpaceId,
    pid: AtomicU32,
    agent: AtomicU32,
    /// Whether the agent is a thread of the process, whose work does not count as the program's.
    within: AtomicBool,
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
    /// Its place in the order of turns, and the estimate of its working set.
    place: AtomicU64,
    demand: AtomicU64,
    /// Milliseconds that the process had faults put aside: in the current unbroken wait, and in the
    /// waits before.
    waiting: AtomicU64,
    waited_before: AtomicU64,
}

/// Grows a counter that has no other writer.
fn grow(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

/// The published data of a space, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct LoadTold {
    /// The threads that run in the space.
    pub runner: Runner,
    /// Whether pages can be evicted from the space, and no group limits it.
    pub is_active: bool,
    /// Pages in the pool and on devices.
    pub stored: u64,
    /// Pages that came back, and the sum of their refault distances in pages.
    pub refaults: u64,
    /// See `refaults`.
    pub distance: u64,
    /// Nanoseconds that faults waited for pages.
    pub waited: u64,
    /// Whether something is under way for faults.
    pub is_pending: bool,
    /// Whether faults were put aside.
    pub is_blocked: bool,
}

impl LoadRecord {
    /// All that the pager has published.
    pub fn told(&self) -> LoadTold {
        LoadTold {
            runner: Runner {
                process: self.pid.load(Relaxed),
                helper: self.agent.load(Relaxed),
                within: self.within.load(Relaxed),
            },
            is_active: self.active.load(Relaxed),
            stored: self.stored.load(Relaxed),
            refaults: self.refaults.load(Relaxed),
            distance: self.distance.load(Relaxed),
            waited: self.waited.load(Relaxed),
            is_pending: self.pending.load(Relaxed) > 0,
            is_blocked: self.blocked.load(Relaxed) > 0,
        }
    }

    /// The number of the pager, and the space.
    pub fn whose(&self) -> (usize, SpaceId) {
        (self.owner, self.space)
    }

    /// Notes the controller's decision, `passed` after the last one. Returns whether the space is
    /// now held and was not before, or the other way round.
    pub fn decide(&self, held: bool, place: u64, demand: u64, passed: Duration) -> bool {
        self.count_wait(passed);
        self.place.store(place, Relaxed);
        self.demand.store(demand, Relaxed);
        self.held.swap(held, Relaxed) != held
    }

    /// A record for a space of this pager.
    pub fn new(owner: usize, space: SpaceId) -> Self {
        Self { owner, space, ..Self::default() }
    }

    /// Whether the faults of the space are put aside.
    pub fn is_held(&self) -> bool {
        self.held.load(Relaxed)
    }

    /// Number of pages of the working set, as load control estimates it.
    pub fn demand(&self) -> u64 {
        self.demand.load(Relaxed)
    }

    /// Counts a page that came back and that `distance` more pages of room would have kept.
    pub fn refaulted(&self, distance: u64) {
        grow(&self.refaults, 1);
        grow(&self.distance, distance);
    }

    /// Counts a fault that was served this long after it was read.
    pub fn waited(&self, took: Duration) {
        grow(&self.waited, (took + WAKE_UP).as_nanos() as u64);
    }

    /// How long the process has waited for its turn, in the current unbroken wait and in all.
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

/// A question to the controller: whether a thread that faulted may be held.
#[derive(Debug)]
pub struct Question {
    /// The record of the space.
    pub record: Arc<LoadRecord>,
    /// The process.
    pub pid: u32,
    /// The thread that faulted.
    pub thread: u32,
    /// The page.
    pub address: u64,
}

/// The state that pagers and controller share.
#[derive(Debug)]
pub struct LoadControlState {
    enabled: bool,
    /// Whether pagers report their spaces in each round.
    watching: AtomicBool,
    /// Whether any process is held.
    holding: AtomicBool,
    records: Mutex<BTreeMap<Key, Arc<LoadRecord>>>,
    questions: SyncSender<Question>,
    /// For each pager: pages of held spaces that can be evicted.
    suspended: Vec<AtomicI64>,
    /// Pages that the running processes leave free.
    spare: AtomicI64,
    turns: AtomicU64,
    ended_ms: AtomicU64,
    /// The longest time for which any fault was put aside, in milliseconds.
    longest_hold: AtomicU64,
}

impl LoadControlState {
    /// State for this number of pagers; the controller gets the other end of `questions`.
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
            longest_hold: AtomicU64::new(0),
        }
    }

    /// Whether any process is held: the only check in the fault path while none is.
    pub fn is_holding(&self) -> bool {
        self.holding.load(Relaxed)
    }

    /// While processes take turns: pages that the running processes leave free, or (negative) lack.
    pub fn spare(&self) -> Option<i64> {
        self.is_holding().then(|| self.spare.load(Relaxed))
    }

    fn is_watching(&self) -> bool {
        self.watching.load(Relaxed)
    }

    /// Adds a space.
    pub fn begin(&self, record: &Arc<LoadRecord>) {
        self.records.lock().expect("records").insert(key(record), record.clone());
    }

    /// Removes a space that has ended.
    pub fn end(&self, record: &LoadRecord) {
        if self.records.lock().expect("records").remove(&key(record)).is_some() {
            self.ended_ms.fetch_add(record.waiting_ms().1, Relaxed);
        }
    }

    /// Whether a space is left: one that has not ended, or whose pages are not released yet.
    pub fn has_spaces(&self) -> bool {
        !self.records.lock().expect("records").is_empty()
    }

    /// Pages that held spaces of other pagers could give.
    fn suspended_elsewhere(&self, owner: usize) -> i64 {
        let others = self.suspended.iter().enumerate().filter(|(number, _)| *number != owner);
        others.map(|(_, pages)| pages.load(Relaxed)).sum()
    }

    /// Publishes the controller's decisions: whether pagers report their spaces in each round,
    /// whether any process is held, how many turns there were, and how many pages the running
    /// processes leave free.
    pub fn announce(&self, watching: bool, holding: bool, turns: u64, spare: i64) {
        self.watching.store(watching, Relaxed);
        self.holding.store(holding, Relaxed);
        self.turns.store(turns, Relaxed);
        self.spare.store(spare, Relaxed);
    }

    /// The records of all spaces.
    pub fn all(&self) -> Vec<(Key, Arc<LoadRecord>)> {
        self.records.lock().expect("records").iter().map(|(key, record)| (*key, record.clone())).collect()
    }

    /// The line for the summary, if any process had to wait.
    pub fn in_words(&self) -> Option<String> {
        let figures = self.figures();
        let (turns, waited) = (figures.turns, figures.waited_ms);
        (waited > 0).then(|| format!("processes took {turns} turns and waited {:.1} s for them", waited as f64 / 1e3))
    }

    /// Figures of load control as a whole.
    pub fn figures(&self) -> LoadFigures {
        let all = self.all();
        let held = all.iter().filter(|(_, record)| record.is_held()).count() as u64;
        let waited: u64 = all.iter().map(|(_, record)| record.waiting_ms().1).sum();
        let state = match (self.enabled, self.is_watching()) {
            (false, _) => LoadState::Off,
            (_, false) => LoadState::Idle,
            _ => LoadState::Active,
        };
        let waited_ms = waited + self.ended_ms.load(Relaxed);
        let (turns, longest_hold_ms) = (self.turns.load(Relaxed), self.longest_hold.load(Relaxed));
        LoadFigures { state, held, turns, waited_ms, longest_hold_ms }
    }

    /// Notes that a fault that was put aside is served now.
    fn count_hold(&self, fault: &HeldFault) {
        self.longest_hold.fetch_max(fault.since.elapsed().as_millis() as u64, Relaxed);
    }

    /// Figures of a process: whether it waits for its turn, how long in the current unbroken wait,
    /// and how long in all.
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

fn key(record: &LoadRecord) -> Key {
    key_of(record.owner, record.space)
}
