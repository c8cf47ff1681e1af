//! Finds processes that need not be measured each time, because their memory does not change.
//!
//! Of the processes of a build four of five sleep: shells and makes wait for a child, compilers for
//! their turn. Reading the memory of each a thousand times a second cost a tenth of two processors.
//! A process is *still* when its last [`STILL`] readings were the same. It is read again after as
//! many rounds as the processors would need to fill the free room
//! ([`Budget::patience`](uswap_pager::accounting::budget::Budget::patience)), so however suddenly
//! it wakes, the memory that it touches unseen fits.
//!
//! Pages that a pager thread installs or drops are counted in two places, and must appear in
//! exactly one of them: they are charged at once, and the next measurement replaces the earlier
//! charges. So a process for which a pager thread has moved pages since the last reading is not
//! still, whatever its readings were. The pager thread counts the move before it charges; the
//! governor reads the charges before it reads the moves.
//!
//! **If the guess is wrong.** Memory that a process frees by itself is seen some milliseconds late:
//! memory seems shorter than it is. Memory that it allocates is seen late too, but it is no more
//! than there was room for.

use uswap_pager::accounting::moves::Moves;

/// Number of equal readings after which a process is still.
const STILL: u32 = 8;

/// The recent readings of a process, as far as they decide whether it is still.
#[derive(Debug, Default)]
pub struct SampleSkipper {
    same: u32,
    skipped: u32,
    /// The moves of its space at the last reading, if it is managed.
    moves: Option<(Moves, u64)>,
}

impl SampleSkipper {
    /// Whether the process need not be read in this round. `patience`: a still process is read once
    /// in this many rounds. Called once a round, after the measurement has begun.
    pub fn may_wait(&mut self, patience: u32, moves: Option<&Moves>) -> bool {
        let unmoved = match (&self.moves, moves) {
            (None, None) => true,
            (Some((known, count)), Some(moves)) => known.are_of(moves) && moves.now() == *count,
            _ => false,
        };
        let waits = unmoved && self.same >= STILL && self.skipped + 1 < patience;
        self.skipped = if waits { self.skipped + 1 } else { 0 };
        if !waits {
            // The count is taken before the reading: later moves are new ones.
            self.moves = moves.map(|moves| (moves.clone(), moves.now()));
        }
        waits
    }

    /// Notes a reading. `same`: it equals the one before.
    pub fn was_read(&mut self, same: bool) {
        self.same = if same { self.same.saturating_add(1) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn still(moves: Option<&Moves>) -> SampleSkipper {
        let mut stillness = SampleSkipper::default();
        for _ in 0..STILL {
            assert!(!stillness.may_wait(8, moves));
            stillness.was_read(true);
        }
        stillness
    }

    fn rounds_waited(stillness: &mut SampleSkipper, patience: u32, moves: Option<&Moves>) -> u32 {
        (0..20).take_while(|_| stillness.may_wait(patience, moves)).count() as u32
    }

    #[test]
    fn one_that_does_not_change_is_read_every_so_many_rounds() {
        let mut stillness = still(None);
        assert_eq!(rounds_waited(&mut stillness, 4, None), 3);
        stillness.was_read(true);
        assert_eq!(rounds_waited(&mut stillness, 8, None), 7);
        stillness.was_read(true);
        assert_eq!(rounds_waited(&mut stillness, 1, None), 0, "no room, no patience");
    }

    #[test]
    fn one_that_changed_is_read_each_time_for_a_while() {
        let mut stillness = still(None);
        stillness.was_read(false);
        for _ in 0..STILL {
            assert!(!stillness.may_wait(8, None));
            stillness.was_read(true);
        }
        assert!(stillness.may_wait(8, None));
    }

    #[test]
    fn moved_pages_are_looked_at_in_the_next_round() {
        let moves = Moves::default();
        let mut stillness = still(Some(&moves));
        assert!(stillness.may_wait(8, Some(&moves)));
        moves.count();
        assert!(!stillness.may_wait(8, Some(&moves)));
        stillness.was_read(true);
        assert!(stillness.may_wait(8, Some(&moves)), "it was read since");
    }

    #[test]
    fn one_that_executes_another_program_or_becomes_managed_is_read() {
        let (before, after) = (Moves::default(), Moves::default());
        let mut stillness = still(Some(&before));
        assert!(!stillness.may_wait(8, Some(&after)));
        let mut stillness = still(None);
        assert!(!stillness.may_wait(8, Some(&after)));
        let mut stillness = still(Some(&before));
        assert!(!stillness.may_wait(8, None));
    }
}
