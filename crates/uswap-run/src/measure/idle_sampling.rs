//! Who need not be measured each time: processes whose memory does not change.
//!
//! Of the processes of a build four of five sleep: shells and makes wait for a child, compilers for
//! their turn. To read what each of them holds a thousand times a second cost a tenth of two
//! processors. A process is *still* when its last [`STILL`] readings were the same; it is read
//! again after as many rounds as the processors would need to fill what room there is
//! ([`Budget::patience`](uswap_pager::accounting::budget::Budget::patience)), so however suddenly
//! it wakes, what it touches unseen fits.
//!
//! Pages that an owner installs or drops are counted in two places, and must not be in both or in
//! neither: they are charged at once, and the next measurement takes the place of what was charged
//! before. So a process for which an owner moved pages since it was read is not still, whatever its
//! readings were. The owner counts the move before it charges; the governor looks at what was
//! charged before it looks at the moves.
//!
//! **If the guess is wrong.** What a process frees by itself is seen some milliseconds late: memory
//! seems shorter than it is. What it allocates, too: by no more than there was room for.

use uswap_pager::accounting::moves::Moves;

/// So many readings that are the same make a process still.
const STILL: u32 = 8;

/// How still a process is.
#[derive(Debug, Default)]
pub struct SampleSkipper {
    same: u32,
    skipped: u32,
    /// The moves of its space when it was read last, if it is managed.
    moves: Option<(Moves, u64)>,
}

impl SampleSkipper {
    /// Whether the process need not be read in this round, when it is enough to read it every
    /// `patience` rounds. Asked once a round, after the measurement has begun.
    pub fn may_wait(&mut self, patience: u32, moves: Option<&Moves>) -> bool {
        let unmoved = match (&self.moves, moves) {
            (None, None) => true,
            (Some((known, count)), Some(moves)) => known.are_of(moves) && moves.now() == *count,
            _ => false,
        };
        let waits = unmoved && self.same >= STILL && self.skipped + 1 < patience;
        self.skipped = if waits { self.skipped + 1 } else { 0 };
        if !waits {
            // Before it is read: what is moved from here on is news.
            self.moves = moves.map(|moves| (moves.clone(), moves.now()));
        }
        waits
    }

    /// It was read, and is as it was before or not.
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
