//! Load control's state of one process.

use std::time::Duration;

use super::{FINITE, Key, LoadSample, REST, SHORT, THRASHES, works};
use crate::load_control::programs::{Habit, Program};

/// A process that was let in counts as moving for this long, until it begins to run.
const START: Duration = Duration::from_millis(20);
/// If its share of thrashing is below this, its resident pages are its working set.
const CONTENT: f64 = 0.05;
/// Half-life, in seconds, of the remembered times of waiting and running.
const HALF_LIFE: f64 = 0.2;
/// A process's share of thrashing counts only from this many seconds of waiting and running on.
const ENOUGH: f64 = 0.003;
/// While memory is short, new processes take turns that have used this time and are larger than one
/// part in this number of all memory.
const NEWCOMER: (Duration, u64) = (Duration::from_millis(20), 64);
/// The same, where others of the program used more than [`SHORT`]: a process that is this young and
/// this small has few pages to be evicted and brought back.
const OF_A_LONG_KIND: (Duration, u64) = (Duration::from_millis(5), 128);

/// Its turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub since: Duration,
    pub until: Duration,
    /// The time of the turn that the process may still use.
    pub left: Duration,
}

/// One process.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    /// Its place in line: the smaller, the sooner.
    pub ticket: u64,
    pub parent: Option<Key>,
    pub program: Program,
    pub turn: Option<Turn>,
    /// It has thrashed since it was last idle: it takes turns while load control is on.
    pub thrashed: bool,
    /// When it last ran, or wanted to.
    pub awake: Duration,
    /// It ran, or waited for pages, in this tick.
    pub gets_on: bool,
    pub blocked: bool,
    pub serves: bool,
    pub stopped: bool,
    /// The time that it used since it was last idle, and whether it ever was idle.
    pub burst: Duration,
    pub rested: bool,
    pub waited: f64,
    pub ran: f64,
    pub distance: f64,
    pub pages: u64,
    pub demand: u64,
    /// The most pages that it had, in memory and evicted, and all the time that it used.
    pub most: u64,
    pub used: Duration,
    pub held: bool,
}

impl Process {
    pub fn thrashing(&self) -> f64 {
        if self.waited + self.ran < ENOUGH { 0.0 } else { self.waited / (self.waited + self.ran) }
    }

    /// Whether it has begun recently, and is past its first steps.
    pub fn is_new(&self) -> bool {
        self.has_begun(NEWCOMER.0)
    }

    fn has_begun(&self, least: Duration) -> bool {
        !self.rested && (least..FINITE).contains(&self.burst)
    }

    /// Whether it has begun recently and begins to grow; `habit` is what others of its program
    /// used.
    pub fn begins_to_grow(&self, habit: Option<Habit>, capacity: u64) -> bool {
        let is_long = habit.is_some_and(|habit| habit.used >= SHORT);
        let (least, part) = if is_long { OF_A_LONG_KIND } else { NEWCOMER };
        self.has_begun(least) && self.demand > capacity / part
    }

    /// Whether it can be made to wait at all.
    pub fn may_be_held(&self) -> bool {
        self.thrashed && !self.serves && !self.stopped
    }

    pub fn is_awake(&self, now: Duration, within: Duration) -> bool {
        self.blocked || now.saturating_sub(self.awake) <= within
    }

    /// Whether it makes progress, or is about to because it was let in a moment ago.
    pub fn is_moving(&self, now: Duration) -> bool {
        self.gets_on || self.turn.is_some_and(|turn| self.blocked || now.saturating_sub(turn.since) <= START)
    }

    pub fn take(&mut self, now: Duration, passed: Duration, sample: &LoadSample) {
        if !self.is_awake(now, REST) {
            (self.burst, self.thrashed, self.turn, self.rested) = (Duration::ZERO, false, None, true);
        }
        let moves = sample.runnable || sample.refaults > 0 || works(sample.ran, passed);
        (self.gets_on, self.blocked) = (moves && !sample.stopped, sample.blocked && !sample.stopped);
        (self.parent, self.pages) = (sample.parent, sample.pages);
        (self.program, self.serves, self.stopped) = (sample.program, sample.serves, sample.stopped);
        self.turn = self.turn.filter(|_| !sample.stopped);
        self.most = self.most.max(sample.pages + sample.stored);
        // A stopped process did not become idle by itself: afterwards it counts as what it was
        // before.
        if self.gets_on || self.blocked || self.stopped {
            self.awake = now;
        }
        self.burst += sample.waited + sample.ran;
        self.used += sample.waited + sample.ran;
        if let Some(turn) = &mut self.turn {
            turn.left = turn.left.saturating_sub(sample.waited + sample.ran);
        }
        let faded = 0.5f64.powf(passed.as_secs_f64() / HALF_LIFE);
        self.waited = self.waited * faded + sample.waited.as_secs_f64();
        self.ran = self.ran * faded + sample.ran.as_secs_f64();
        self.thrashed |= self.thrashing() > THRASHES && (self.burst >= SHORT || self.is_new());
        self.estimate(faded, sample);
    }

    fn estimate(&mut self, faded: f64, sample: &LoadSample) {
        if sample.refaults > 0 {
            let weight = sample.refaults as f64 / (sample.refaults as f64 + self.pages as f64 / 64.0 + 1.0);
            self.distance += (sample.distance as f64 - self.distance) * weight;
        } else if !self.held {
            self.distance *= faded;
        }
        let seen = (sample.pages + self.distance as u64).min(sample.pages + sample.stored);
        // A process that is out shows no working set, and one that comes in does not show all of it
        // at once.
        let partial = self.held || self.thrashing() > CONTENT;
        self.demand = if partial { self.demand.max(seen) } else { seen }.min(sample.pages + sample.stored);
    }
}
