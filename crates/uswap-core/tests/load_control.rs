//! Load control: what it promises, on processes that are made up.

use std::time::Duration;

use proptest::prelude::*;
use uswap_core::load_control::{LINGER, LoadControl, LoadMachine, LoadSample, LoadTuning, MAX_TURN};

const TICK: Duration = Duration::from_millis(10);

/// A process as the machine would run it: who is held does nothing, the others share what there is.
#[derive(Clone, Copy, Debug)]
struct Program {
    size: u64,
    pages: u64,
    stored: u64,
    /// Ticks of work that are left; it sleeps in every `sleeps`th tick, where that is not 0.
    work: u32,
    sleeps: u32,
    /// It sleeps, and looks now and then whether something has happened.
    polls: bool,
    parent: Option<u64>,
}

fn sweep(size: u64, work: u32) -> Program {
    Program { size, pages: size, stored: 0, work, sleeps: 0, polls: false, parent: None }
}

struct World {
    control: LoadControl,
    programs: Vec<Option<Program>>,
    capacity: u64,
    ticks: u32,
    /// Ticks since each was held without a break, and the most that ever was.
    held: Vec<u32>,
    longest: u32,
    /// Who wanted to run in the last tick.
    wanting: Vec<u64>,
}

impl World {
    fn new(capacity: u64, programs: &[Program]) -> Self {
        let programs: Vec<Option<Program>> = programs.iter().copied().map(Some).collect();
        let held = vec![0; programs.len()];
        Self { control: LoadControl::default(), programs, capacity, ticks: 0, held, longest: 0, wanting: Vec::new() }
    }

    fn alive(&self) -> usize {
        self.programs.iter().flatten().count()
    }

    fn held(&self) -> usize {
        (0..self.programs.len())
            .filter(|key| self.programs[*key].is_some() && self.control.is_held(*key as u64))
            .count()
    }

    /// One tick: whoever is not held wants its pages; what does not fit is taken from those who are
    /// held first.
    fn tick(&mut self) {
        self.ticks += 1;
        let ticks = self.ticks;
        let control = &self.control;
        let held = |key: usize| control.is_held(key as u64);
        let wants = |program: &Program| program.sleeps == 0 || !ticks.is_multiple_of(program.sleeps);
        let running = |key: usize, program: &Program| !held(key) && wants(program);
        let wanted: u64 =
            self.programs.iter().enumerate().filter_map(|(key, p)| p.filter(|p| running(key, p))).map(|p| p.size).sum();
        let fits = wanted <= self.capacity;
        let mut samples = Vec::new();
        self.wanting.clear();
        for (key, slot) in self.programs.iter_mut().enumerate() {
            let Some(program) = slot else { continue };
            self.wanting.extend(wants(program).then_some(key as u64));
            let mut sample = LoadSample { key: key as u64, parent: program.parent, ..LoadSample::default() };
            if program.polls {
                sample.ran = TICK / 50;
            } else if control.is_held(key as u64) {
                sample.blocked = wants(program);
                (program.pages, program.stored) = (program.pages / 2, program.size - program.pages / 2);
            } else if wants(program) && fits {
                (program.pages, program.stored) = (program.size, 0);
                (sample.ran, sample.runnable) = (TICK, true);
                program.work = program.work.saturating_sub(1);
            } else if wants(program) {
                // Thrashing: a twentieth of the speed.
                program.pages = program.size * self.capacity / wanted;
                program.stored = program.size - program.pages;
                (sample.ran, sample.waited, sample.runnable) = (TICK / 20, TICK, true);
                (sample.refaults, sample.distance) = (100, program.stored);
                program.work = program.work.saturating_sub(u32::from(ticks.is_multiple_of(20)));
            }
            (sample.pages, sample.stored) = (program.pages, program.stored);
            samples.push(sample);
        }
        let swap_in = Duration::from_micros(10);
        let machine = LoadMachine { capacity: self.capacity, swap_in, processors: 2, ..LoadMachine::default() };
        self.control.tick(TICK * self.ticks, machine, &samples);
        self.note();
    }

    fn note(&mut self) {
        for (key, slot) in self.programs.iter_mut().enumerate() {
            let held = slot.is_some() && self.control.is_held(key as u64);
            self.held[key] = if held { self.held[key] + 1 } else { 0 };
            self.longest = self.longest.max(self.held[key]);
            *slot = slot.filter(|program| program.work > 0);
        }
    }

    /// Runs until all have ended; returns the ticks that took.
    fn finish(&mut self, most: u32) -> u32 {
        while self.alive() > 0 && self.ticks < most {
            self.tick();
        }
        self.ticks
    }
}

#[test]
fn working_sets_that_fit_are_left_alone() {
    let mut world = World::new(10_000, &[sweep(4000, 300), sweep(4000, 300), sweep(1900, 300)]);
    assert_eq!(world.finish(1000), 300);
    assert!(!world.control.is_on() && world.longest == 0 && world.control.turns() == 0);
}

#[test]
fn one_process_is_never_held_however_large() {
    let mut world = World::new(10_000, &[sweep(50_000, 100)]);
    world.finish(10_000);
    assert_eq!((world.alive(), world.longest), (0, 0));
}

#[test]
fn eight_sweeps_that_do_not_fit_end_ten_times_sooner_than_thrashing() {
    let mut world = World::new(10_000, &[sweep(2500, 200); 8]);
    let ticks = world.finish(20_000);
    // Thrashing all the time takes 200 times 20 ticks.
    assert!(world.alive() == 0 && ticks < 400 + 200 * 8, "{ticks}");
}

#[test]
fn as_many_are_in_as_fit() {
    let mut world = World::new(10_000, &[sweep(2800, 100_000); 6]);
    (0..500).for_each(|_| world.tick());
    assert_eq!(world.held(), 3);
}

#[test]
fn the_next_comes_in_when_those_who_are_in_sleep() {
    // All hold a third of their time: one thrashing group would never fill it.
    let mut world = World::new(10_000, &[sweep(8000, 100_000), sweep(8000, 100_000)]);
    (0..200).for_each(|_| world.tick());
    assert_eq!(world.held(), 1);
    let running = (0..2).find(|key| !world.control.is_held(*key)).expect("one runs");
    let other = 1 - running;
    // It waits for the other one, without a word to us.
    if let Some(program) = &mut world.programs[running as usize] {
        program.sleeps = 1;
    }
    (0..4).for_each(|_| world.tick());
    assert!(!world.control.is_held(other), "held while nobody runs");
}

/// A shell that looks each millisecond whether its child has ended would keep it from running for a
/// whole turn.
#[test]
fn the_next_comes_in_when_those_who_are_in_only_look_now_and_then() {
    let mut world = World::new(10_000, &[sweep(8000, 100_000), sweep(8000, 100_000)]);
    (0..200).for_each(|_| world.tick());
    let running = (0..2).find(|key| !world.control.is_held(*key)).expect("one runs");
    if let Some(program) = &mut world.programs[running as usize] {
        program.polls = true;
    }
    (0..4).for_each(|_| world.tick());
    assert!(!world.control.is_held(1 - running), "held while nobody works");
}

#[test]
fn a_child_takes_the_turn_of_a_parent_that_sleeps() {
    let child = Program { parent: Some(0), ..sweep(6000, 100_000) };
    let mut world = World::new(10_000, &[sweep(6000, 100_000), sweep(6000, 100_000), child]);
    (0..150).for_each(|_| world.tick());
    assert_eq!((world.control.is_held(0), world.control.is_held(1), world.control.is_held(2)), (false, true, true));
    if let Some(parent) = &mut world.programs[0] {
        parent.sleeps = 1;
    }
    (0..4).for_each(|_| world.tick());
    assert!(!world.control.is_held(2) && world.control.is_held(1), "not the child came in");
}

#[test]
fn who_was_idle_and_wakes_is_not_held() {
    let mut world = World::new(10_000, &[sweep(6000, 100_000), sweep(6000, 100_000), sweep(3000, 100_000)]);
    let asleep = |world: &mut World, sleeps| world.programs[2].as_mut().expect("it lives").sleeps = sleeps;
    asleep(&mut world, 1);
    (0..300).for_each(|_| world.tick());
    assert!(world.control.is_on());
    asleep(&mut world, 0);
    for _ in 0..5 {
        world.tick();
        assert!(!world.control.is_held(2));
    }
}

#[test]
fn it_ends_when_all_fit_again() {
    let mut world = World::new(10_000, &[sweep(6000, 100), sweep(6000, 1000)]);
    (0..100).for_each(|_| world.tick());
    assert!(world.control.is_on());
    world.finish(5000);
    let mut world = World { programs: vec![Some(sweep(100, 1000))], held: vec![0], ..world };
    (0..200).for_each(|_| world.tick());
    assert!(!world.control.is_on());
}

#[test]
fn forced_it_lets_one_run_at_a_time_and_nobody_is_forgotten() {
    let mut world = World::new(1 << 30, &[sweep(10, 300), sweep(10, 300), sweep(10, 300)]);
    world.control = LoadControl::tuned(LoadTuning { forced: Some(Duration::from_millis(20)), ..LoadTuning::default() });
    (0..20).for_each(|_| world.tick());
    assert_eq!(world.held(), 2);
    assert!(world.finish(5000) < 5000 && world.longest <= 12, "{}", world.longest);
}

fn program() -> impl Strategy<Value = Program> {
    (1u64..20_000, 1u32..400, prop_oneof![Just(0), 1u32..8], prop::option::of(0u64..6))
        .prop_map(|(size, work, sleeps, parent)| Program { sleeps, parent, ..sweep(size, work) })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whoever waits is let in after as many turns as there are others, never are all held who want
    /// to run, and nobody who lives alone is held.
    #[test]
    fn nobody_starves_and_never_are_all_held(programs in prop::collection::vec(program(), 1..7), capacity in 100u64..30_000) {
        let most = (MAX_TURN.as_millis() / TICK.as_millis()) as u32 * programs.len() as u32 + 20;
        let mut world = World::new(capacity, &programs);
        // Memory is kept for a sleeper for a moment; the next comes in after that.
        let (mut idle, most_idle) = (0, (LINGER.as_millis() / TICK.as_millis()) as u32 + 2);
        for _ in 0..6000 {
            world.tick();
            prop_assert!(world.longest <= most, "held for {} ticks", world.longest);
            let runs = |key: &u64| !world.control.is_held(*key);
            idle = if world.wanting.is_empty() || world.wanting.iter().any(runs) { 0 } else { idle + 1 };
            prop_assert!(idle <= most_idle, "all who want to run are held for {} ticks", idle);
        }
    }
}

/// One of many in a tick, as it thrashes.
fn thrashing(key: u64, program: u64, pages: u64, stored: u64) -> LoadSample {
    let (ran, waited) = (TICK / 10, TICK);
    LoadSample {
        key,
        program,
        pages,
        stored,
        refaults: 50,
        distance: stored,
        ran,
        waited,
        runnable: true,
        ..LoadSample::default()
    }
}

/// Of two large ones that thrash one ends; which of two small newcomers of this program are held
/// beside the other one?
fn newcomers_held(program: u64) -> [bool; 2] {
    let mut control = LoadControl::default();
    let machine = LoadMachine { capacity: 10_000, processors: 2, idle: 1.0, ..LoadMachine::default() };
    let large = [1, 2].map(|key| thrashing(key, 7, 5000, 3000));
    (1..60).for_each(|tick| control.tick(TICK * tick, machine, &large));
    assert!(control.is_on());
    let stays = usize::from(control.is_held(1));
    let small = [3, 4].map(|key| thrashing(key, program, 600, 100));
    (60..70).for_each(|tick| control.tick(TICK * tick, machine, &[large[stays], small[0], small[1]]));
    [3, 4].map(|key| control.is_held(key))
}

#[test]
fn newcomers_are_expected_to_become_as_large_as_others_of_their_program() {
    assert_eq!(newcomers_held(7), [true, true], "one that ended took 8000 pages");
    assert!(newcomers_held(8).contains(&false), "of this program nothing is known, and it is small");
}

/// While two large ones take turns, of which the others of program 7 are kin, and one of program 9
/// has ended after 30 ms: whether a newcomer of this program is held that has used 8 ms and holds
/// less than a hundredth of memory.
fn is_held_while_small(program: u64) -> bool {
    let mut control = LoadControl::default();
    let machine = LoadMachine { capacity: 10_000, processors: 2, ..LoadMachine::default() };
    let large = [1, 2, 3].map(|key| thrashing(key, 7, 5000, 3000));
    (1..60).for_each(|tick| control.tick(TICK * tick, machine, &large));
    assert!(control.is_on());
    let short = LoadSample { key: 4, program: 9, pages: 90, ran: TICK * 3, runnable: true, ..LoadSample::default() };
    control.tick(TICK * 60, machine, &[large[0], large[1], large[2], short]);
    let held: Vec<_> = large.into_iter().filter(|sample| control.is_held(sample.key)).collect();
    let young = LoadSample { key: 5, program, pages: 90, ran: TICK * 2 / 5, runnable: true, ..LoadSample::default() };
    control.tick(TICK * 61, machine, &[held[0], held[1]]);
    (62..64).for_each(|tick| control.tick(TICK * tick, machine, &[held[0], held[1], young]));
    control.is_held(5)
}

#[test]
fn newcomers_of_a_kind_that_goes_on_for_long_are_held_while_they_are_small() {
    assert!(is_held_while_small(7), "others of its program used more than a tenth of a second");
    assert!(!is_held_while_small(9), "the other one of its program was done after 30 ms");
    assert!(!is_held_while_small(8), "of its program nothing is known");
}

/// So many programs begin at once and grow side by side by 30 pages a tick, without any waiting:
/// pages in use when the first is held.
fn used_when_held(count: u64, idle: f64) -> Option<u64> {
    let mut control = LoadControl::default();
    let machine = LoadMachine { capacity: 60_000, processors: 2, idle, ..LoadMachine::default() };
    let ran = TICK * 2 / count as u32;
    (1..2000 / count as u32).find_map(|tick| {
        let pages = u64::from(tick) * 30;
        let sample = |key| LoadSample { key, pages, ran, runnable: true, ..LoadSample::default() };
        control.tick(TICK * tick, machine, &(0..count).map(sample).collect::<Vec<_>>());
        (0..count).any(|key| control.is_held(key)).then_some(pages * count)
    })
}

#[test]
fn a_crowd_of_newcomers_takes_turns_before_it_has_filled_memory() {
    assert!(used_when_held(24, 0.0).is_some_and(|used| used < 60_000), "{:?}", used_when_held(24, 0.0));
    assert_eq!(used_when_held(5, 0.0), None, "that many are wanted");
    assert_eq!(used_when_held(24, 0.5), None, "processors have nothing to do");
}

/// As many of those who fit, and do not wait, are in at a time as keep the processors busy, and one
/// more.
#[test]
fn no_more_are_in_than_keep_the_processors_busy() {
    let in_turn = |idle: f64| {
        let mut control = LoadControl::default();
        let begin = |key| thrashing(key, 0, 2000, 3000);
        let run = |key| LoadSample { key, pages: 100, ran: TICK / 8, runnable: true, ..LoadSample::default() };
        let machine = LoadMachine { capacity: 10_000, processors: 2, idle, ..LoadMachine::default() };
        (1..40).for_each(|tick| control.tick(TICK * tick, machine, &(0..16).map(begin).collect::<Vec<_>>()));
        assert!(control.is_on());
        (40..60).for_each(|tick| control.tick(TICK * tick, machine, &(0..16).map(run).collect::<Vec<_>>()));
        (0..16).filter(|key| control.has_turn(*key)).count()
    };
    assert_eq!(in_turn(0.0), 3);
    assert!(in_turn(0.5) > 3, "processors have nothing to do");
}

#[test]
fn who_answers_others_is_never_held() {
    let mut control =
        LoadControl::tuned(LoadTuning { forced: Some(Duration::from_millis(200)), ..LoadTuning::default() });
    let samples = [1, 2, 3].map(|key| LoadSample { serves: key > 1, ..thrashing(key, 0, 5000, 3000) });
    for tick in 1..100 {
        control.tick(TICK * tick, LoadMachine { capacity: 10_000, processors: 2, ..LoadMachine::default() }, &samples);
        assert!(!control.is_held(2) && !control.is_held(3));
    }
}

/// Somebody who sleeps in every second tick, and did in that one when the other's turn ended.
#[test]
fn who_just_had_a_turn_does_not_come_before_one_who_waits_and_nods() {
    let mut world = World::new(100, &[Program { sleeps: 2, ..sweep(1, 1) }, Program { sleeps: 4, ..sweep(16_809, 1) }]);
    world.finish(1000);
    assert!(world.programs[0].is_none() && world.longest <= 300, "{} ticks held", world.longest);
}

/// Three sweeps of which one fits at a time. Whoever is stopped has no turn, is not held, and its
/// pages are nobody's.
#[test]
fn who_is_stopped_has_no_turn_and_is_not_waited_for() {
    let mut control = LoadControl::default();
    let machine = LoadMachine { capacity: 10_000, processors: 2, idle: 1.0, ..LoadMachine::default() };
    let all = [1, 2, 3].map(|key| thrashing(key, 7, 3000, 3000));
    (1..60).for_each(|tick| control.tick(TICK * tick, machine, &all));
    let inside = (1..=3).find(|key| control.has_turn(*key)).expect("somebody has a turn");
    let stopped =
        all.map(|sample| LoadSample { stopped: sample.key == inside, blocked: control.is_held(sample.key), ..sample });
    control.tick(TICK * 60, machine, &stopped);
    assert!(!control.has_turn(inside) && !control.is_held(inside));
    let others = || (1..=3).filter(|key| *key != inside);
    assert_eq!(others().filter(|key| control.has_turn(*key)).count(), 1, "the next comes in at once");
    // The two others would fit beside each other, were it not for what the stopped one has.
    let small = stopped.map(|sample| LoadSample { stored: 500, distance: 500, ..sample });
    (61..300).for_each(|tick| control.tick(TICK * tick, machine, &small));
    assert!(others().any(|key| control.is_held(key)), "7000 pages are left, and each of two wants 3500");
}
