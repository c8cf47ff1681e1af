//! Notes: what the program's hooks tell of advice that sends no event (MADV_WIPEONFORK, MADV_DONTFORK, their opposites).
//!
//! A hook writes its note, drops the notice page, and makes the program's call only when the engine has read the event
//! of that. So the notes known when a fork's event is read are those made before the fork, and later ones came after
//! it, however late the fork is looked at.
//!
//! Before memory is registered there is no event, and of many notes the first are overwritten. What is missed is made up
//! for by asking the kernel at every fork.

use uswap_abi::layout::{NOTE_BYTES, NOTE_KEEP_ON_FORK, NOTE_WIPE_ON_FORK, NOTES, NOTES_COUNT, NOTES_START};
use uswap_sys::vmread::{self, RemoteRange};

use crate::owner::Owner;
use crate::space::Space;

/// Notes kept one by one at most, while no fork can ask for them.
const MOST_RECENT: usize = 64;
/// Bytes of count and ring.
const BYTES: usize = (NOTES_START - NOTES_COUNT) as usize + NOTES * NOTE_BYTES as usize;

type Ranges = Vec<(u64, u64)>;

/// One note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Note {
    start: u64,
    end: u64,
    /// Children do not inherit the range; or they do again.
    excludes: bool,
}

impl Note {
    /// The note of that number, if it is complete and was not overwritten.
    fn decode(words: [u64; 3], number: u64) -> Option<Self> {
        let [start, length, kind] = words;
        let excludes = match kind & 0xff {
            NOTE_WIPE_ON_FORK => true,
            NOTE_KEEP_ON_FORK => false,
            _ => return None,
        };
        (kind >> 8 == number).then_some(Self { start, end: start.saturating_add(length), excludes })
    }

    fn apply_to(&self, ranges: &mut Ranges) {
        cut(ranges, self.start, self.end);
        if self.excludes {
            ranges.push((self.start, self.end));
        }
    }
}

/// All notes of a space.
#[derive(Clone, Default, Debug)]
pub struct Notes {
    /// What the older ones exclude together.
    folded: Ranges,
    recent: Vec<Note>,
    /// The number of the first recent note.
    first: u64,
    /// Some were missed.
    incomplete: bool,
}

impl Notes {
    /// The number of the next note.
    pub fn count(&self) -> u64 {
        self.first + self.recent.len() as u64
    }

    /// The notes that a child has which was forked when there were `known`.
    pub fn inherited(&self, known: u64) -> Self {
        let mut notes = self.clone();
        notes.recent.truncate(known.saturating_sub(self.first) as usize);
        notes
    }

    /// No fork will ask for what was before: keeps the list short.
    pub fn fold(&mut self) {
        if self.recent.len() > MOST_RECENT {
            self.first = self.count();
            self.recent.drain(..).for_each(|note| note.apply_to(&mut self.folded));
        }
    }

    /// Takes in what is new in the header page.
    fn read(&mut self, words: &[u64]) {
        let count = words[0];
        let ring = words[((NOTES_START - NOTES_COUNT) / 8) as usize..].as_chunks::<3>().0;
        let oldest = count.saturating_sub(NOTES as u64);
        if oldest > self.count() {
            self.incomplete = true;
            self.recent.drain(..).for_each(|note| note.apply_to(&mut self.folded));
            self.first = oldest;
        }
        for number in self.count()..count {
            // An incomplete one is announced later.
            let Some(note) = Note::decode(ring[number as usize % NOTES], number) else { break };
            self.recent.push(note);
        }
    }

    /// What was excluded when there were `known` notes.
    fn excluded_then(&self, known: u64) -> Ranges {
        let mut ranges = self.folded.clone();
        self.split(known).0.iter().for_each(|note| note.apply_to(&mut ranges));
        ranges
    }

    /// The same, when the kernel says `now` after all notes: what later ones have changed is taken back.
    fn excluded_at(&self, known: u64, mut now: Ranges) -> Ranges {
        let then = self.excluded_then(known);
        for later in self.split(known).1 {
            cut(&mut now, later.start, later.end);
            let overlaps = then.iter().map(|(start, end)| ((*start).max(later.start), (*end).min(later.end)));
            now.extend(overlaps.filter(|(start, end)| start < end));
        }
        now
    }

    fn split(&self, known: u64) -> (&[Note], &[Note]) {
        self.recent.split_at((known.saturating_sub(self.first) as usize).min(self.recent.len()))
    }
}

impl Owner {
    /// Reads the notes left since the last time.
    pub fn read_notes(&mut self, space: &mut Space) {
        let mut bytes = [0u8; BYTES];
        let range = RemoteRange { start: space.area + NOTES_COUNT, length: BYTES as u64 };
        let readable = space.pid.is_some() && space.area != 0;
        if readable && vmread::read(space.reader, &[range], &mut bytes).is_ok_and(|n| n == BYTES) {
            let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
            space.notes.read(&words);
        }
    }

    /// Ranges that a child does not inherit that was forked when there were `known` notes. The notes only say that there
    /// may be some: the mapping they meant can have been replaced since, without an event if it was not registered; so
    /// the kernel is asked, and what notes have changed since the fork is taken back.
    pub fn excluded_from_fork(&mut self, parent: &mut Space, known: u64) -> Ranges {
        let managed = |(start, end): &(u64, u64)| parent.registered.range(..*end).any(|(_, e)| e > start);
        let none = !parent.notes.incomplete && !parent.notes.excluded_then(known).iter().any(managed);
        if self.shared.faults.ignore_notes || none {
            return Vec::new();
        }
        let now = crate::procfs::ranges_with_flags(parent.reader, &["wf", "dc"]);
        self.read_notes(parent);
        parent.notes.excluded_at(known, now)
    }
}

/// Takes `start..end` out of a list of ranges.
fn cut(ranges: &mut Ranges, start: u64, end: u64) {
    let pieces = ranges.iter().flat_map(|(s, e)| [(*s, (*e).min(start)), ((*s).max(end), *e)]);
    *ranges = pieces.filter(|(s, e)| s < e).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header page as hooks fill it.
    struct Page(Vec<u64>);

    impl Page {
        fn new() -> Self {
            Self(vec![0; BYTES / 8])
        }

        fn note(&mut self, start: u64, end: u64, kind: u64) {
            let number = self.0[0];
            let at = ((NOTES_START - NOTES_COUNT) / 8) as usize + (number as usize % NOTES) * 3;
            self.0[at..at + 3].copy_from_slice(&[start, end - start, number << 8 | kind]);
            self.0[0] += 1;
        }
    }

    const WIPE: u64 = NOTE_WIPE_ON_FORK;
    const KEEP: u64 = NOTE_KEEP_ON_FORK;

    fn sorted(mut ranges: Ranges) -> Ranges {
        ranges.sort_unstable();
        ranges
    }

    #[test]
    fn what_is_noted_after_the_fork_does_not_count() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        for (start, end, kind) in [(10, 20, WIPE), (30, 40, WIPE), (32, 34, KEEP), (15, 20, KEEP), (50, 60, WIPE)] {
            page.note(start, end, kind);
            notes.read(&page.0);
        }
        // Forked after three notes; the kernel is asked after all five, and also knows of a mapping that grew (90..95).
        let found = notes.excluded_at(3, vec![(10, 15), (30, 32), (34, 40), (50, 60), (90, 95)]);
        assert_eq!(sorted(found), [(10, 15), (15, 20), (30, 32), (34, 40), (90, 95)]);
        assert_eq!(sorted(notes.inherited(3).excluded_then(3)), [(10, 20), (30, 32), (34, 40)]);
        assert_eq!(notes.inherited(3).count(), 3);
    }

    #[test]
    fn a_mapping_that_was_replaced_is_inherited() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        page.note(10, 20, WIPE);
        notes.read(&page.0);
        assert_eq!(notes.excluded_at(1, vec![]), []);
    }

    #[test]
    fn a_note_that_is_being_written_waits() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        page.0[0] = 1;
        notes.read(&page.0);
        assert_eq!(notes.count(), 0);
        page.0[0] = 0;
        page.note(10, 20, WIPE);
        notes.read(&page.0);
        assert_eq!((notes.count(), notes.excluded_then(1)), (1, vec![(10, 20)]));
    }

    #[test]
    fn thousands_of_notes_fold_and_missed_ones_are_known_to_be() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        for i in 0..5 * NOTES as u64 {
            page.note(100 * i, 100 * i + 50, WIPE);
            page.note(100 * i, 100 * i + 40, KEEP);
            notes.read(&page.0);
            notes.fold();
        }
        assert!(!notes.incomplete && notes.recent.len() <= MOST_RECENT + 2);
        let ranges = sorted(notes.excluded_then(notes.count()));
        assert_eq!((ranges.len(), ranges[7]), (5 * NOTES, (740, 750)));
        (0..=NOTES as u64).for_each(|i| page.note(i, i + 1, KEEP));
        notes.read(&page.0);
        assert!(notes.incomplete && notes.count() == page.0[0]);
    }
}
