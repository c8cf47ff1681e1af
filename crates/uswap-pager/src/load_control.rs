//! Load control in the engine: what the policy (`load_control.rs` of the core) sees, and how a
//! process is held.
//!
//! The controller's thread looks at all processes each few milliseconds while load control is on,
//! and 20 times a second otherwise, at counters that the owners keep and at the processor time of
//! the processes. What it decides are flags, one for each space. The owner of a space whose flag is
//! set puts its faults aside and evicts its pages before those of others.
//!
//! A fault that is put aside is served when the process is let in, when it turns out not to be held
//! rightly, or when it was held for [`MAX_HOLD`]. Only faults in user mode are held: a system call
//! that waits for a page may hold locks of the kernel that others need.
//! `/proc/PID/task/TID/syscall` begins with -1 for a thread that is in no system call. The owner
//! never reads it, since reading it waits until the thread has gone to sleep: the controller
//! (`controller.rs`) does, and tells the owner whom to serve at once.

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

/// Faults of a space that are put aside at a time, at most: others are served at once.
const MAX_HELD: usize = 256;
/// Questions to the controller under way, at most.
pub const MAX_QUESTIONS: usize = 1024;
/// How often owners tell what they have while it looks.
const TOLD: Duration = Duration::from_millis(1);
/// What a fault costs beside the owner's work: the message and the wake-up.
const WAKE_UP: Duration = Duration::from_micros(20);
/// Pages of a held space that are worth being evicted before those of others.
const MIN_SUSPENDED: u64 = 32;

/// As good as no bound, where a test takes it away.
const LONG_HOLD: Duration = Duration::from_secs(10);

/// Whether load control is at work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadState {
    /// It is switched off.
    #[default]
    Off,
    /// Memory is not short.
    Idle,
    /// It watches all processes.
    Active,
}

/// What is told of load control as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadFigures {
    /// Whether it is at work.
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
    /// Its page.
    pub address: u64,
    /// The access was a write.
    pub write: bool,
    since: Instant,
    /// Served at the latest by then.
    until: Instant,
}

/// What an owner tells of a space, and the controller decides about it. Each counter has one
/// writer.
#[derive(Debug, Default)]
pub struct LoadRecord {
    owner: usize,
    space: SpaceId,
    pid: AtomicU32,
    agent: AtomicU32,
    /// The agent is a thread of the process, whose work is not the program's.
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
    /// Its place in line, and the estimate of its working set.
    place: AtomicU64,
    demand: AtomicU64,
    /// Milliseconds that it had faults put aside: since when it has without a break, and before
    /// that.
    waiting: AtomicU64,
    waited_before: AtomicU64,
}

/// Grows a counter that nobody else writes.
fn grow(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

/// What an owner has told of a space, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct LoadTold {
    /// Who runs there.
    pub runner: Runner,
    /// Pages can be evicted from it, and no group limits it.
    pub is_active: bool,
    /// Pages in the pool and on devices.
    pub stored: u64,
    /// Pages that came back, and the sum of their refault distances in pages.
    pub refaults: u64,
    /// See `refaults`.
    pub distance: u64,
    /// Nanoseconds that faults waited for pages.
    pub waited: u64,
    /// Something is under way for faults.
    pub is_pending: bool,
    /// Faults were put aside.
    pub is_blocked: bool,
}

impl LoadRecord {
    /// All that its owner has told.
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

    /// The owner's number and the space.
    pub fn whose(&self) -> (usize, SpaceId) {
        (self.owner, self.space)
    }

    /// The controller has decided, so long after the last time. Whether the space is held that was
    /// not, or is not that was.
    pub fn decide(&self, held: bool, place: u64, demand: u64, passed: Duration) -> bool {
        self.count_wait(passed);
        self.place.store(place, Relaxed);
        self.demand.store(demand, Relaxed);
        self.held.swap(held, Relaxed) != held
    }

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

    /// A fault was served, so long after it was read.
    pub fn waited(&self, took: Duration) {
        grow(&self.waited, (took + WAKE_UP).as_nanos() as u64);
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
    /// Whose space.
    pub record: Arc<LoadRecord>,
    /// The process.
    pub pid: u32,
    /// The thread that faulted.
    pub thread: u32,
    /// Its page.
    pub address: u64,
}

/// What owners and controller share.
#[derive(Debug)]
pub struct LoadControlState {
    enabled: bool,
    /// Owners tell of their spaces at each turn.
    watching: AtomicBool,
    /// Somebody is held.
    holding: AtomicBool,
    records: Mutex<BTreeMap<Key, Arc<LoadRecord>>>,
    questions: SyncSender<Question>,
    /// By owner: pages of held spaces that can be evicted.
    suspended: Vec<AtomicI64>,
    /// Pages that are left beside those who are in.
    spare: AtomicI64,
    turns: AtomicU64,
    ended_ms: AtomicU64,
    /// The longest that any fault was put aside, in milliseconds.
    longest_hold: AtomicU64,
}

impl LoadControlState {
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
            longest_hold: AtomicU64::new(0),
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
    pub fn begin(&self, record: &Arc<LoadRecord>) {
        self.records.lock().expect("records").insert(key(record), record.clone());
    }

    /// A space has ended.
    pub fn end(&self, record: &LoadRecord) {
        if self.records.lock().expect("records").remove(&key(record)).is_some() {
            self.ended_ms.fetch_add(record.waiting_ms().1, Relaxed);
        }
    }

    /// Pages that held spaces of other owners than this could give.
    fn suspended_elsewhere(&self, owner: usize) -> i64 {
        let others = self.suspended.iter().enumerate().filter(|(number, _)| *number != owner);
        others.map(|(_, pages)| pages.load(Relaxed)).sum()
    }

    /// What the controller has decided of all: whether owners tell of their spaces at each turn,
    /// whether anybody is held, how many turns there were, and how many pages are left beside those
    /// who are in.
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

    /// What the summary says, if anybody had to wait.
    pub fn in_words(&self) -> Option<String> {
        let figures = self.figures();
        let (turns, waited) = (figures.turns, figures.waited_ms);
        (waited > 0).then(|| format!("processes took {turns} turns and waited {:.1} s for them", waited as f64 / 1e3))
    }

    /// What is told of load control as a whole.
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

    /// A fault that was put aside is served now.
    fn count_hold(&self, fault: &HeldFault) {
        self.longest_hold.fetch_max(fault.since.elapsed().as_millis() as u64, Relaxed);
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

fn key(record: &LoadRecord) -> Key {
    key_of(record.owner, record.space)
}
