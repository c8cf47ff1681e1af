//! How large programs become: load control's expectation for a process that has just begun.
//!
//! A compiler that has just begun has few pages and asks for few. If load control let in as many as
//! fit *now*, it would have too many a second later, and the pages of each that must go again would
//! be evicted and brought back. A process does not show how many pages it is going to need, but
//! other processes of the same program have ended before: a build runs one compiler hundreds of
//! times. So load control remembers for each program how large its processes became and how much
//! time they used, as moving averages of about the last [`MEMORY`] processes. It expects a process
//! to become as large until the process has used as much time; after that only its own size counts.
//!
//! **If the guess is wrong.** Too small (the first process of a program, or a larger input): load
//! control sees the process grow, and the one let in last goes back. Too large: fewer processes are
//! in than could be, until the process has used as much time as others of its program did.

use std::collections::BTreeMap;
use std::time::Duration;

/// Names a program: the same number for the same file. 0 is an unknown program.
pub type Program = u64;

/// A new process counts for one part in this number of the average.
const MEMORY: f64 = 4.0;
/// Programs that are remembered, at most.
const MAX: usize = 256;

/// The usual size and time of a program's processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habit {
    /// Most pages at a time.
    pub pages: f64,
    /// Time that they ran and waited for pages.
    pub used: Duration,
    /// When one ended last, counted in ends.
    seen: u64,
}

/// The programs of a run.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    known: BTreeMap<Program, Habit>,
    ends: u64,
}

impl Programs {
    /// A process has ended that had at most `pages` pages and used `used` of time.
    pub fn learn(&mut self, program: Program, pages: u64, used: Duration) {
        if program == 0 {
            return;
        }
        self.ends += 1;
        let fresh = Habit { pages: pages as f64, used, seen: self.ends };
        self.known
            .entry(program)
            .and_modify(|habit| {
                habit.pages += (fresh.pages - habit.pages) / MEMORY;
                habit.used = habit.used.mul_f64(1.0 - 1.0 / MEMORY) + used.div_f64(MEMORY);
                habit.seen = fresh.seen;
            })
            .or_insert(fresh);
        if self.known.len() > MAX {
            let oldest = self.known.iter().min_by_key(|(_, habit)| habit.seen).map(|(program, _)| *program);
            oldest.map(|program| self.known.remove(&program));
        }
    }

    /// The habit of a program, if one is known.
    pub fn habit(&self, program: Program) -> Option<Habit> {
        self.known.get(&program).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_counts_whole_and_later_ones_by_and_by() {
        let mut programs = Programs::default();
        assert!(programs.habit(7).is_none());
        programs.learn(7, 1000, Duration::from_secs(1));
        assert_eq!(programs.habit(7).map(|habit| (habit.pages, habit.used)), Some((1000.0, Duration::from_secs(1))));
        for _ in 0..30 {
            programs.learn(7, 3000, Duration::from_secs(3));
        }
        let habit = programs.habit(7).expect("it was learned");
        assert!((2990.0..=3000.0).contains(&habit.pages) && habit.used > Duration::from_millis(2990), "{habit:?}");
    }

    #[test]
    fn programs_nobody_knows_are_not_learned_and_the_oldest_is_forgotten() {
        let mut programs = Programs::default();
        programs.learn(0, 5, Duration::ZERO);
        assert!(programs.habit(0).is_none());
        (1..=MAX as u64).for_each(|program| programs.learn(program, 1, Duration::ZERO));
        programs.learn(1, 1, Duration::ZERO);
        programs.learn(9999, 1, Duration::ZERO);
        assert!(programs.habit(2).is_none() && programs.habit(1).is_some() && programs.habit(9999).is_some());
    }
}
