//! Load control: decides which processes have their working sets in memory together, and which wait
//! for their turn.
//!
//! When the working sets of the processes that want to run do not fit together, each page that one
//! brings back displaces one that another needs just as soon. All processes wait for pages, and
//! none makes progress: *thrashing*. No choice of victim pages helps, because every page is in use.
//! Denning's remedy (*Thrashing: its causes and prevention*, 1968; *Virtual Memory*, 1970) is to
//! run fewer processes at a time: a process is in memory with its whole working set or not at all.
//! Linux 2.6.9 to 3.4 had a similar but smaller mechanism, the swap token (Jiang and Zhang). It
//! kept one process's pages from reclaim but let all others go on faulting, and was dropped. A
//! kernel cannot make a fault wait: it may hold locks that others need. Here each fault arrives as
//! a message, and a thread that faults in user mode holds no kernel locks.
//!
//! **Measurements.** For each process load control measures, over about a tenth of a second, the
//! time that its threads waited for pages and the processor time that it got.
//! `waited / (waited + ran)` is its *thrashing*. Its *working set* is estimated from the faults
//! that a pager sees. A refault has a distance: the number of pages of the same process that were
//! evicted between the page's own eviction and its return, and so the number of pages more that the
//! process would have needed in memory to keep it. So
//!
//! ```text
//! working set = resident pages + recent mean refault distance (at most all pages that it has)
//! ```
//!
//! For a sweep over N pages of which R are resident each page comes back after N-R others: the
//! estimate is N. For touches at random over N pages the mean distance is N-R too (each miss evicts
//! a page, (N-R)/N of the touches are misses, and each page is touched once in N touches). Cold
//! pages never refault and do not count.
//!
//! **When it acts.** Load control begins when one of two conditions has held for 150 ms without a
//! break. First, two processes or more thrash, all processes taken together thrash, and the working
//! sets of all processes that want to run exceed the memory for pages. Second, more new processes
//! than are needed to keep the processors busy fill memory together, and would not fit if each
//! became three times as large. (Of two dozen compilers that begin at once and grow side by side
//! none would be done when memory is full, and most of their pages would have to be evicted. Making
//! some of them wait delays none, since the processors are busy without them.) So load control does
//! nothing if the working sets fit, nor for a single process, however large, nor beside one process
//! that thrashes by itself alone. It ends when all have fitted for a second, or fewer than two are
//! left. While it acts, it expects new processes to become as large as others of the same program
//! did (`programs.rs`), and they take turns as soon as they grow: pages that they never had need
//! not be brought back.
//!
//! **Processes that are in.** Processes that have thrashed take *turns*, in the order in which they
//! began: as many at a time as fit, always at least one, and no more than keep the processors busy,
//! since a process that fills memory while it waits for a processor is of no use. A process that
//! has a turn is *in*. A turn lasts until the process has used five times the time that it takes to
//! bring its working set in, and for [`MAX_TURN`] at most. A process that has not yet used
//! [`FINITE`] since it was last idle may use up that time in its first turn, because most jobs are
//! short, and if short jobs run one after the other, all but the last end sooner than if they take
//! turns. A process that goes on for longer is likely to go on for much longer, and then short
//! turns show users that all of them make progress. A smaller process further back in line may go
//! before one that does not fit yet, for as long as the larger one must wait anyway. After its turn
//! a process goes to the end of the line. So a waiting process is first in line after at most as
//! many turns as there are other processes, and then is let in, whatever its size: no process
//! starves. Waiting processes give their memory to those that are in; the last in line gives first,
//! as its pages are needed last.
//!
//! **Processes that never wait.** These kinds of process are never held:
//! - A process that has used less than [`SHORT`] of time since it was last idle for [`REST`]: short
//!   and interactive work comes first. (For a process that was never idle the limit is `NEWCOMER`:
//!   of two dozen compilers that begin together each has used less than [`SHORT`] for a second, in
//!   which all of them thrash.)
//! - A process that answers others over sockets: a client waits for it and gives up after some
//!   seconds.
//! - A process that gets its pages without waiting.
//! - One child at a time of a process that has a turn and sleeps: the child has the turn instead,
//!   since its parent may wait for it.
//!
//! When no process that is in wants to run, the next comes in at once (*work-conserving*). That
//! ends every wait of one program for another, by pipes, locks or signals, although load control
//! does not know of these waits. A process that uses less than a twentieth of a processor counts as
//! asleep: it only checks now and then whether it may go on. A process that is in and sleeps for
//! more than [`LINGER`] keeps its turn, but no memory is kept for it. A stopped process has no
//! turn, and its resident memory is not counted as available, as it cannot be evicted.
//!
//! **If the estimate is wrong.** Too small: the processes that are in refault, which raises their
//! estimates, and the one let in last goes back to its place in line, until the others fit. Too
//! large: for one turn fewer processes are in than could be; in its turn a process brings in what
//! it needs, and that is its estimate from then on. Wrong altogether, or a wait that load control
//! does not understand: a fault is held for a tenth of a second at most ([`MAX_HOLD`]), so a
//! process that is out goes on, slowly.
//!
//! Times count from an arbitrary fixed moment; memory is in pages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::load_control::programs::{Program, Programs};

mod process;
pub mod programs;

use process::{Process, Turn};

/// The longest time for which a fault is held.
pub const MAX_HOLD: Duration = Duration::from_millis(100);
/// A process that has used less than this since it was last idle is short or interactive, and never
/// waits.
pub const SHORT: Duration = Duration::from_millis(100);
/// A process that sleeps for this long counts as idle.
pub const REST: Duration = Duration::from_millis(500);
/// How long memory is kept for a process that has a turn and sleeps.
pub const LINGER: Duration = Duration::from_millis(50);
/// A turn ends after this time, however little of it the process has used.
pub const MAX_TURN: Duration = Duration::from_secs(10);
/// Least and greatest time that a process may use in one turn, running and waiting for pages.
const MIN_USE: Duration = Duration::from_millis(250);
const MAX_USE: Duration = Duration::from_secs(6);
/// Within these bounds, this many times the time that it takes to bring the working set in.
const TURN_FACTOR: u32 = 5;
/// Most jobs that end at all have used less than this by then.
pub const FINITE: Duration = Duration::from_secs(2);
/// A turn given to a smaller process, while the next in line does not fit yet, is not worth it if
/// it would be shorter than this.
const MIN_INTERIM: Duration = Duration::from_millis(250);
/// Share of its time that a process waits for pages when it thrashes.
const THRASHES: f64 = 0.3;
/// Load control begins after memory has been short for `PROOF`, and ends after all have fitted for
/// `RELIEF`.
const PROOF: Duration = Duration::from_millis(150);
const RELIEF: Duration = Duration::from_secs(1);
/// A process that is let in must fit in this part of the capacity: the processes that are in may
/// grow by the rest before the last must go.
const FILLED: f64 = 0.9;
/// One process more than there are processors is enough, if all processors are busy (idle for less
/// than `BUSY` of their time); one more than `CROWD` for each processor is a crowd.
const CROWD: u32 = 2;
const BUSY: f64 = 0.1;
/// A process that has just begun may become this many times as large.
const GROWS: u64 = 3;
/// All processes fit if they need no more than this part of the capacity.
const EASE: f64 = 0.9;

/// Names a process for as long as it lives.
pub type Key = u64;

/// Measurements of one process since the last tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadSample {
    /// The process.
    pub key: Key,
    /// Its parent, if that is managed too.
    pub parent: Option<Key>,
    /// The program that it runs.
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

/// Measurements of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadMachine {
    /// Pages that all processes together may have in memory.
    pub capacity: u64,
    /// Memory in pages that the pool takes from `capacity` for each page that is evicted.
    pub pool_cost: f64,
    /// The most that the pool may take.
    pub pool_room: u64,
    /// The time that it takes to bring a page back.
    pub swap_in: Duration,
    /// Number of processors, and the recent share of their time that they were idle.
    pub processors: u32,
    /// See `processors`.
    pub idle: f64,
}

/// Whether a process that got `ran` of processor time in `passed` is at work. A process that uses
/// less than a twentieth only checks again and again whether something has happened (that a child
/// has ended, say): that is a way of waiting.
pub fn works(ran: Duration, passed: Duration) -> bool {
    !ran.is_zero() && ran * 20 >= passed
}

/// The policy's rules that tests can change.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadTuning {
    /// All processes that want to run take turns of this length, one at a time, whether memory is
    /// short or not.
    pub forced: Option<Duration>,
    /// Switches a rule off: then a process that is in and sleeps keeps the others out until its
    /// turn ends.
    pub idle_turns: bool,
}

/// Decides which processes are in memory and which wait.
#[derive(Clone, Debug, Default)]
pub struct LoadControl {
    processes: BTreeMap<Key, Process>,
    tickets: u64,
    now: Duration,
    on: bool,
    tuning: LoadTuning,
    /// Since when the state should change between on and off.
    changing: Option<Duration>,
    turns: u64,
    spare: i64,
    /// How large the processes became that have ended.
    programs: Programs,
}

impl LoadControl {
    /// A load control with the rules that a test wants.
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

    /// Its place in line: a process with a larger place waits longer.
    pub fn place(&self, key: Key) -> u64 {
        self.processes.get(&key).map_or(0, |process| process.ticket)
    }

    /// Turns given so far.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Pages that are left beside the working sets of the processes that are in, or (negative) that
    /// these lack to keep the processors busy, at the last tick.
    pub fn spare(&self) -> i64 {
        self.spare
    }

    /// The estimated working set of a process.
    pub fn demand(&self, key: Key) -> u64 {
        self.processes.get(&key).map_or(0, |process| process.demand)
    }

    /// Decides anew at the time `now`. `samples` has one entry for each living process.
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

    /// Forgets the processes that have ended, but remembers how large they became and how much time
    /// they used.
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

    /// The pages that a process is expected to need: until it has used as much time as others of
    /// its program, as many as they did.
    fn expected(&self, process: &Process) -> u64 {
        let habit = self.programs.habit(process.program).filter(|habit| process.used < habit.used);
        process.demand.max(habit.map_or(0, |habit| habit.pages as u64))
    }

    /// Switches load control on and off.
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

    /// The processes that are not stopped.
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

    /// Whether more new processes than the processors need are filling memory, and will not fit if
    /// each becomes three times as large.
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

    /// While memory is short a new process takes turns as soon as it begins to grow, and sooner if
    /// others of its program went on for long. It does not before it grows: a compiler may only
    /// have been asked for its capabilities, and then another process, and everything behind that,
    /// waits for the answer.
    fn enlist_newcomers(&mut self, machine: LoadMachine) {
        let programs = &self.programs;
        for process in self.processes.values_mut() {
            process.thrashed |= process.begins_to_grow(programs.habit(process.program), machine.capacity);
        }
    }

    /// Gives turns, and decides which processes are held.
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

    /// A turn that is over is renewed if no process waits; otherwise its process goes to the end of
    /// the line.
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
        // A forced turn lasts for the given time, however much of it the process uses.
        let (length, left) = self.tuning.forced.map_or((MAX_TURN, left), |length| (length, Duration::MAX));
        Turn { since: self.now, until: self.now + length, left }
    }

    /// All processes that take turns: first those that have a turn, the longest first and sleeping
    /// ones last, then the children of sleeping ones that have a turn, then the others by their
    /// place.
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

    /// When the turn of the process's parent ends, if the parent sleeps and no other child of it is
    /// in.
    fn lender(&self, process: &Process) -> Option<Duration> {
        let key = process.parent?;
        let parent = self.processes.get(&key)?;
        let asleep = !parent.is_moving(self.now);
        let lent = self.processes.values().any(|other| other.parent == Some(key) && other.turn.is_some());
        parent.turn.filter(|_| asleep && !lent).map(|turn| turn.until)
    }

    /// Goes along the line and lets in the processes that fit.
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
        // For the first process that does not fit: when the processes that are in now will have had
        // their turns.
        let mut waits_until = None;
        let mut ends = now;
        for key in line {
            let process = self.processes[key].clone();
            // A waiting process keeps its place while it sleeps for a moment: otherwise one that
            // just had a turn would come before it again.
            let within = if process.turn.is_some() { linger } else { LINGER };
            let wanted = process.is_awake(now, within) || process.turn.is_some() && self.tuning.idle_turns;
            let demand = self.expected(&process);
            // A sleeping process that has a turn keeps new ones out for a moment, but does not push
            // out one that is in.
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
        // If the processes that are in keep all processors busy, more room for them gains nothing.
        self.spare = if room.admitted >= machine.processors && machine.idle < BUSY { spare.max(0) } else { spare };
    }
}

/// The memory that is left while `admit` gives it away.
struct LoadRoom {
    machine: LoadMachine,
    single: bool,
    /// Pages of all processes, and of those that are in.
    total: u64,
    inside: u64,
    used: u64,
    admitted: u32,
    /// A process that takes no turns makes progress.
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

    /// The capacity that is left for pages once the pages of all other processes are evicted, less
    /// the pool's part for these.
    fn capacity(&self, process: &Process) -> f64 {
        let others = self.total.saturating_sub(self.inside + process.pages);
        let pool = (others as f64 * self.machine.pool_cost).min(self.machine.pool_room as f64);
        self.machine.capacity as f64 - pool
    }

    /// Whether the process fits in this part of the capacity; the first always does.
    fn fits(&self, process: &Process, demand: u64, part: f64) -> bool {
        let needed = (self.used + demand) as f64;
        let busy = self.admitted > self.machine.processors && self.machine.idle < BUSY;
        self.admitted == 0 || !self.single && !busy && needed <= self.capacity(process) * part
    }
}
