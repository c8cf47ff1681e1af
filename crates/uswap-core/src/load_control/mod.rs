//! Load control: whose working sets are in memory together, and who waits for its turn.
//!
//! When the working sets of the processes that want to run do not fit together, each page that one
//! brings back displaces one that another needs just as soon. All wait for pages, nobody gets on:
//! *thrashing*. No choice of pages mends that, because every page is in use. Denning's remedy
//! (*Thrashing: its causes and prevention*, 1968; *Virtual Memory*, 1970) is to run fewer at a
//! time: a process is in memory with its whole working set or not at all. Linux had a small
//! relative, the swap token (Jiang and Zhang; 2.6.9 to 3.4), which kept one process's pages from
//! reclaim but let all others fault on, and was dropped. A kernel cannot make a fault wait: it may
//! hold locks that others need. Here each fault comes with a message, and a thread that faults in
//! user mode holds nothing of the kernel's.
//!
//! **What is measured.** For each process, over about a tenth of a second: the time that its
//! threads waited for pages, and the processor time that it got. `waited / (waited + ran)` is its
//! *thrashing*. Its *working set* is estimated from what a pager sees. A refault tells its
//! distance: how many pages of the same process were evicted between the page's own eviction and
//! its return, so how many more it would have had to keep. So
//!
//! ```text
//! working set = resident pages + mean refault distance of late      (never more than it has in all)
//! ```
//!
//! For a sweep over N pages of which R are resident each page comes back after N-R others: the
//! estimate is N. For touches at random over N pages the mean distance is N-R too (a page is
//! evicted each miss, misses are (N-R)/N of the touches, and a page is touched every N of them).
//! Cold pages never refault and do not count.
//!
//! **When it acts.** Two processes or more thrash, all together do, and the working sets of all who
//! want to run exceed what is there for pages, for 150 ms on end. Or more newcomers than keep the
//! processors busy fill memory together, and will not fit if each becomes three times as large: of
//! two dozen compilers that begin at once and grow side by side none would be done when memory is
//! full, and most of what they have by then would have to go. Those that wait then delay nobody,
//! since the processors are busy without them. So it does nothing where working sets fit, for a
//! single process, however large, or beside one that has itself to blame. It ends when all fit for
//! a second, or fewer than two are left. While it acts, newcomers are expected to become as large
//! as others of the same program were (`programs.rs`), and take turns as soon as they grow: what
//! they never had need not be brought back.
//!
//! **Who is in.** Processes that have thrashed take *turns*, in the order in which they began: as
//! many at a time as fit, always one, and no more than keep the processors busy, since whoever
//! waits for a processor with its memory filled helps nobody. A turn lasts until the process has
//! used five times what it costs to bring its working set in, and for [`MAX_TURN`] at most. A
//! process that has not yet used [`FINITE`] since it was idle last may use it up in its first turn,
//! because most jobs are finite, and of finite jobs that run one after the other all but the last
//! end sooner than when they take turns; whoever goes on for longer is likely to for much longer,
//! and short turns are better for whoever watches all of them get on. Smaller ones further behind
//! may go before one that does not fit yet, for as long as it must wait anyway. Who was in goes to
//! the end of the line. So whoever waits is first in line after as many turns as there are others,
//! and then is let in, whatever its size: nobody starves. Who waits gives its memory to those who
//! run, whoever is last in line first, as its pages are needed last.
//!
//! **Who never waits.** Whoever used less than [`SHORT`] of time since it last was idle for
//! [`REST`] (or `NEWCOMER` if it never was: of two dozen compilers that begin together each has
//! used that little for a second, in which all of them thrash): what is short or interactive comes
//! first. Who answers others over sockets: somebody waits for it who gives up after some seconds.
//! Who gets its pages without waiting. The children of one that has a turn and sleeps: one of them
//! at a time has the turn instead, since its parent may wait for it. And when nobody who is in
//! wants to run, the next comes in at once (*work-conserving*), which ends every wait of one
//! program for another, by pipes, locks or signals, without knowing of it. Who uses less than a
//! twentieth of a processor counts as asleep: it looks now and then whether it may go on. Somebody
//! who is in and sleeps for more than [`LINGER`] keeps his turn but no memory is kept for him. Who
//! is stopped has no turn, and what it has in memory is nobody's, as it cannot be evicted.
//!
//! **If the estimate is wrong.** Too small: those who are in refault, which raises their estimates,
//! and the last one let in goes back to its place in line, until the others fit. Too large: fewer
//! are in than could be, for one turn; in its turn a process brings in what it needs, and that is
//! its estimate from then on. Wrong altogether, or a wait that is not understood: a fault is held
//! for a tenth of a second at most ([`MAX_HOLD`]), so who is out goes on, slowly.
//!
//! Times are from any fixed moment on; memory is in pages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::load_control::programs::{Program, Programs};

mod process;
pub mod programs;

use process::{Process, Turn};

/// A fault is held at most so long at a time.
pub const MAX_HOLD: Duration = Duration::from_millis(100);
/// Whoever used less than this since it was idle last is short or interactive, and never waits.
pub const SHORT: Duration = Duration::from_millis(100);
/// A process that sleeps for so long was idle.
pub const REST: Duration = Duration::from_millis(500);
/// So long memory is kept for somebody who has a turn and sleeps.
pub const LINGER: Duration = Duration::from_millis(50);
/// A turn ends after so long, however little of it was used.
pub const MAX_TURN: Duration = Duration::from_secs(10);
/// What may be used of a turn, running and waiting for pages: at least and at most.
const MIN_USE: Duration = Duration::from_millis(250);
const MAX_USE: Duration = Duration::from_secs(6);
/// And so many times what it takes to bring the working set in.
const TURN_FACTOR: u32 = 5;
/// A job that is finite has mostly used less when it ends.
pub const FINITE: Duration = Duration::from_secs(2);
/// A turn that takes the place of one that does not fit yet is not worth it if it is shorter.
const MIN_INTERIM: Duration = Duration::from_millis(250);
/// Share of its time that a process waits for pages when it thrashes.
const THRASHES: f64 = 0.3;
/// It begins after so long a shortage, and ends after so long a time of room.
const PROOF: Duration = Duration::from_millis(150);
const RELIEF: Duration = Duration::from_secs(1);
/// Whoever is let in must fit in this part of what is there: those who are in may grow by the rest
/// before the last must go.
const FILLED: f64 = 0.9;
/// One more than there are processors is enough to keep all busy, if they are; one more than so
/// many for each is a crowd.
const CROWD: u32 = 2;
const BUSY: f64 = 0.1;
/// Who has just begun may become so many times as large.
const GROWS: u64 = 3;
/// All fit if they need no more than this part of what is there.
const EASE: f64 = 0.9;

/// Names a process for as long as it lives.
pub type Key = u64;

/// What is known of a process since the last tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadSample {
    /// Which.
    pub key: Key,
    /// Its parent, if that is one of us.
    pub parent: Option<Key>,
    /// What it runs.
    pub program: Program,
    /// Its pages in memory.
    pub pages: u64,
    /// Its pages that were evicted.
    pub stored: u64,
    /// Pages that came back, and their mean refault distance.
    pub refaults: u64,
    /// See `refaults`.
    pub distance: u64,
    /// Time that its threads waited for pages (not: for their turn).
    pub waited: Duration,
    /// Processor time that it got.
    pub ran: Duration,
    /// A thread of it is runnable, or waits for a page that is on its way.
    pub runnable: bool,
    /// Faults of it are held.
    pub blocked: bool,
    /// Others wait for its answers: it is never held.
    pub serves: bool,
    /// It is stopped (SIGSTOP, a tracer): it does not run, and nothing that it has can be evicted.
    pub stopped: bool,
}

/// What is known of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadMachine {
    /// Pages that all processes together may have in memory.
    pub capacity: u64,
    /// Memory that the pool takes from that for each page that is evicted.
    pub pool_cost: f64,
    /// How much it may take.
    pub pool_room: u64,
    /// What it costs to bring a page back.
    pub swap_in: Duration,
    /// Processors, and the share of their time that they were idle of late.
    pub processors: u32,
    /// See `processors`.
    pub idle: f64,
}

/// Whether who got so much processor time is at work. Less than a twentieth has who looks again and
/// again whether something has happened, a child ended, say: that is a way of waiting.
pub fn works(ran: Duration, passed: Duration) -> bool {
    !ran.is_zero() && ran * 20 >= passed
}

/// What tests change of the policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadTuning {
    /// Whoever wants to run takes turns of this length, one at a time, whether memory is short or
    /// not.
    pub forced: Option<Duration>,
    /// Rule off: somebody who is in and sleeps keeps all others out until his turn ends.
    pub idle_turns: bool,
}

/// Who is in memory and who waits.
#[derive(Clone, Debug, Default)]
pub struct LoadControl {
    processes: BTreeMap<Key, Process>,
    tickets: u64,
    now: Duration,
    on: bool,
    tuning: LoadTuning,
    /// When it became so that the state should change.
    changing: Option<Duration>,
    turns: u64,
    spare: i64,
    /// How large those became that have ended.
    programs: Programs,
}

impl LoadControl {
    /// One with rules as a test wants them.
    pub fn tuned(tuning: LoadTuning) -> Self {
        Self { on: tuning.forced.is_some(), tuning, ..Self::default() }
    }

    /// Whether processes take turns.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Whether this process waits for its turn.
    pub fn is_held(&self, key: Key) -> bool {
        self.processes.get(&key).is_some_and(|process| process.held)
    }

    /// Whether it is this process's turn.
    pub fn has_turn(&self, key: Key) -> bool {
        self.processes.get(&key).is_some_and(|process| process.turn.is_some())
    }

    /// Its place in line: who has a larger one waits longer.
    pub fn place(&self, key: Key) -> u64 {
        self.processes.get(&key).map_or(0, |process| process.ticket)
    }

    /// Turns given so far.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Pages that are left beside the working sets of those who are in, or that these lack
    /// (negative) to keep the processors busy, at the last tick.
    pub fn spare(&self) -> i64 {
        self.spare
    }

    /// The estimate of its working set.
    pub fn demand(&self, key: Key) -> u64 {
        self.processes.get(&key).map_or(0, |process| process.demand)
    }

    /// Decides anew at the time `now`. `samples` has every process that lives.
    pub fn tick(&mut self, now: Duration, machine: LoadMachine, samples: &[LoadSample]) {
        let stuck: u64 = samples.iter().filter(|sample| sample.stopped).map(|sample| sample.pages).sum();
        let machine = LoadMachine { capacity: machine.capacity.saturating_sub(stuck).max(1), ..machine };
        let passed = now.saturating_sub(self.now);
        self.now = now;
        self.bury(samples);
        for sample in samples {
            let process = self.processes.entry(sample.key).or_insert_with(|| {
                self.tickets += 1;
                Process { ticket: self.tickets, awake: now, ..Process::default() }
            });
            process.take(now, passed, sample);
        }
        self.switch(machine);
        self.choose(machine);
    }

    /// Forgets those who have ended, but not what they came to.
    fn bury(&mut self, samples: &[LoadSample]) {
        let living: BTreeSet<Key> = samples.iter().map(|sample| sample.key).collect();
        let programs = &mut self.programs;
        self.processes.retain(|key, process| {
            let lives = living.contains(key);
            if !lives {
                programs.learn(process.program, process.most, process.used);
            }
            lives
        });
    }

    /// What a process is going to need: until it has used as much time as others of its program, as
    /// much as they did.
    fn expected(&self, process: &Process) -> u64 {
        let habit = self.programs.habit(process.program).filter(|habit| process.used < habit.used);
        process.demand.max(habit.map_or(0, |habit| habit.pages as u64))
    }

    /// Switches on and off.
    fn switch(&mut self, machine: LoadMachine) {
        if self.tuning.forced.is_some() {
            self.processes.values_mut().for_each(|process| process.thrashed = true);
            return;
        }
        let wanted = if self.on { !self.is_eased(machine) } else { self.is_crowded(machine) };
        if wanted == self.on {
            self.changing = None;
            return;
        }
        let since = *self.changing.get_or_insert(self.now);
        if self.now - since >= if self.on { RELIEF } else { PROOF } {
            (self.on, self.changing) = (wanted, None);
        }
    }

    /// Those that are not stopped.
    fn present(&self) -> impl Iterator<Item = &Process> {
        self.processes.values().filter(|process| !process.stopped)
    }

    fn is_crowded(&self, machine: LoadMachine) -> bool {
        let awake = || self.present().filter(|process| process.is_awake(self.now, REST));
        let thrashing = awake().filter(|process| process.may_be_held() && process.thrashing() > THRASHES).count();
        let demand: u64 = awake().map(|process| process.demand).sum();
        let waited: f64 = awake().map(|process| process.waited).sum();
        let ran: f64 = awake().map(|process| process.ran).sum();
        let thrash = thrashing >= 2 && waited > THRASHES * (waited + ran) && demand > machine.capacity;
        thrash || self.is_filling(machine)
    }

    /// Whether more newcomers than the processors need are filling memory, and will not fit if each
    /// becomes three times as large.
    fn is_filling(&self, machine: LoadMachine) -> bool {
        let young = || self.present().filter(|process| process.is_new() && process.is_awake(self.now, REST));
        let grown: u64 = young().map(|process| process.demand).sum();
        let used: u64 = self.present().map(|process| process.pages).sum();
        let many = young().count() as u32 > CROWD * machine.processors + 1;
        many && machine.idle < BUSY && used + (GROWS - 1) * grown > machine.capacity
    }

    fn is_eased(&self, machine: LoadMachine) -> bool {
        let thrashed = self.processes.values().filter(|process| process.may_be_held()).count();
        let demand: u64 = self.present().map(|process| self.expected(process)).sum();
        thrashed < 2 || (demand as f64) < machine.capacity as f64 * EASE && !self.is_filling(machine)
    }

    /// Whether the process takes turns.
    fn takes_turns(&self, process: &Process) -> bool {
        process.may_be_held() && (self.tuning.forced.is_some() || !process.rested || process.burst >= SHORT)
    }

    /// While memory is short whoever begins to grow takes turns at once, and sooner if its program
    /// tells that it will go on for long. Not before it does: of a compiler that is only asked what
    /// it can do somebody waits for the answer, and everything behind that one.
    fn enlist_newcomers(&mut self, machine: LoadMachine) {
        let programs = &self.programs;
        for process in self.processes.values_mut() {
            process.thrashed |= process.begins_to_grow(programs.habit(process.program), machine.capacity);
        }
    }

    /// Gives turns, and says who is held.
    fn choose(&mut self, machine: LoadMachine) {
        if !self.on {
            self.processes.values_mut().for_each(|process| (process.held, process.turn) = (false, None));
            return;
        }
        self.enlist_newcomers(machine);
        self.end_turns(machine);
        let line = self.line();
        self.admit(machine, &line);
        for key in self.processes.keys().copied().collect::<Vec<_>>() {
            let held = self.takes_turns(&self.processes[&key]) && self.processes[&key].turn.is_none();
            self.change(key, |process| process.held = held);
        }
    }

    fn change(&mut self, key: Key, change: impl FnOnce(&mut Process)) {
        if let Some(process) = self.processes.get_mut(&key) {
            change(process);
        }
    }

    /// Turns that are over go on if nobody waits; else who had them goes to the end of the line.
    fn end_turns(&mut self, machine: LoadMachine) {
        let now = self.now;
        let waits =
            |process: &Process| process.turn.is_none() && self.takes_turns(process) && process.is_awake(now, LINGER);
        let somebody_waits = self.processes.values().any(waits);
        let mut over: Vec<(u64, Key)> = self
            .processes
            .iter()
            .filter_map(|(key, process)| {
                process.turn.filter(|turn| turn.until <= now || turn.left.is_zero()).map(|_| (process.ticket, *key))
            })
            .collect();
        over.sort_unstable();
        for (_, key) in over {
            let turn = self.new_turn(machine, self.demand(key), self.processes[&key].burst);
            self.tickets += u64::from(somebody_waits);
            let ticket = self.tickets;
            self.change(key, |process| {
                if somebody_waits {
                    (process.turn, process.ticket) = (None, ticket);
                } else {
                    process.turn = Some(turn);
                }
            });
        }
    }

    fn new_turn(&self, machine: LoadMachine, demand: u64, burst: Duration) -> Turn {
        let swap_in = machine.swap_in.saturating_mul(demand.min(1 << 24) as u32);
        let least = FINITE.saturating_sub(burst).max(MIN_USE);
        let left = swap_in.saturating_mul(TURN_FACTOR).clamp(least, MAX_USE);
        // One that is forced lasts as long as it is told to, however much of it is used.
        let (length, left) = self.tuning.forced.map_or((MAX_TURN, left), |length| (length, Duration::MAX));
        Turn { since: self.now, until: self.now + length, left }
    }

    /// All who take turns: those who have one by how long, sleepers last, then the children of
    /// sleepers who have one, then the others by their place.
    fn line(&self) -> Vec<Key> {
        let rank = |process: &Process| match process.turn {
            Some(turn) => (u8::from(!process.is_moving(self.now)), turn.since, process.ticket),
            None if self.lender(process).is_some() => (2, Duration::ZERO, process.ticket),
            None => (3, Duration::ZERO, process.ticket),
        };
        let takers = self.processes.iter().filter(|(_, process)| self.takes_turns(process));
        let mut line: Vec<_> = takers.map(|(key, process)| (rank(process), *key)).collect();
        line.sort_unstable();
        line.into_iter().map(|(_, key)| key).collect()
    }

    /// When the turn of its parent ends, if that sleeps and no other child of it is in.
    fn lender(&self, process: &Process) -> Option<Duration> {
        let key = process.parent?;
        let parent = self.processes.get(&key)?;
        let asleep = !parent.is_moving(self.now);
        let lent = self.processes.values().any(|other| other.parent == Some(key) && other.turn.is_some());
        parent.turn.filter(|_| asleep && !lent).map(|turn| turn.until)
    }

    /// Goes along the line and lets in who fits.
    fn admit(&mut self, machine: LoadMachine, line: &[Key]) {
        let now = self.now;
        let mut room = LoadRoom::new(machine, self.tuning.forced.is_some());
        room.total = self.present().map(|process| process.pages).sum();
        for process in self.present() {
            if !self.takes_turns(process) && process.is_awake(now, LINGER) {
                room.add(process, process.demand);
                room.anybody |= process.gets_on;
            }
        }
        let in_turn = |key: &Key| self.processes[key].turn.is_some();
        let gets_on =
            room.anybody || line.iter().filter(|key| in_turn(key)).any(|key| self.processes[key].is_moving(now));
        let linger = if gets_on { LINGER } else { Duration::ZERO };
        // The first who does not fit, by when those who are in now have had their turns.
        let mut waits_until = None;
        let mut ends = now;
        for key in line {
            let process = self.processes[key].clone();
            // Whoever waits keeps his place for a moment of sleep: who just had a turn would come
            // before him again otherwise.
            let within = if process.turn.is_some() { linger } else { LINGER };
            let wanted = process.is_awake(now, within) || process.turn.is_some() && self.tuning.idle_turns;
            let demand = self.expected(&process);
            // A sleeper who has a turn keeps newcomers out for a moment, but nobody who is in.
            if let Some(turn) = process.turn {
                if process.is_moving(now) && !room.fits(&process, process.demand, 1.0) {
                    self.change(*key, |process| process.turn = None);
                    waits_until = waits_until.or(Some(ends));
                } else if wanted {
                    room.add(&process, demand);
                    (room.admitted, ends) = (room.admitted + 1, ends.max(turn.until));
                }
                continue;
            }
            if !wanted {
                continue;
            }
            let lent = self.lender(&process);
            let turn = self.new_turn(machine, demand, process.burst);
            let until = [lent, waits_until].into_iter().flatten().fold(turn.until, Duration::min);
            let worthwhile = waits_until.is_none() || until.saturating_sub(now) >= MIN_INTERIM;
            if room.fits(&process, demand, FILLED) && worthwhile {
                self.turns += 1;
                self.change(*key, |process| process.turn = Some(Turn { until, ..turn }));
                room.add(&process, demand);
                (room.admitted, ends) = (room.admitted + 1, ends.max(until));
            } else {
                waits_until = waits_until.or(Some(ends));
            }
        }
        let spare = (machine.capacity as f64 * FILLED) as i64 - room.used as i64;
        // Where those who are in keep all processors busy nobody gains by more room for them.
        self.spare = if room.admitted >= machine.processors && machine.idle < BUSY { spare.max(0) } else { spare };
    }
}

/// Memory while it is being given away.
struct LoadRoom {
    machine: LoadMachine,
    single: bool,
    /// Pages of all processes, and of those who are in.
    total: u64,
    inside: u64,
    used: u64,
    admitted: u32,
    /// Somebody who takes no turns gets on.
    anybody: bool,
}

impl LoadRoom {
    fn new(machine: LoadMachine, single: bool) -> Self {
        Self { machine, single, total: 0, inside: 0, used: 0, admitted: 0, anybody: false }
    }

    fn add(&mut self, process: &Process, demand: u64) {
        self.used += demand;
        self.inside += process.pages;
    }

    /// What there will be when the pages of all others are evicted: the pool takes its part.
    fn capacity(&self, process: &Process) -> f64 {
        let others = self.total.saturating_sub(self.inside + process.pages);
        let pool = (others as f64 * self.machine.pool_cost).min(self.machine.pool_room as f64);
        self.machine.capacity as f64 - pool
    }

    /// Whether it fits in a part of what is there; the first always does.
    fn fits(&self, process: &Process, demand: u64, part: f64) -> bool {
        let needed = (self.used + demand) as f64;
        let busy = self.admitted > self.machine.processors && self.machine.idle < BUSY;
        self.admitted == 0 || !self.single && !busy && needed <= self.capacity(process) * part
    }
}
