//! Notes: what the program's hooks tell of advice that sends no event (MADV_WIPEONFORK, MADV_DONTFORK, their opposites).
//!
//! A hook writes its note, drops the notice page, and makes the program's call only when the engine has read the event
//! of that. So the notes known when a fork's event is read are those made before the fork, and later ones came after
//! it, however late the fork is looked at.

use uswap_abi::layout::{NOTE_BYTES, NOTE_KEEP_ON_FORK, NOTE_WIPE_ON_FORK, NOTES, NOTES_COUNT, NOTES_START};
use uswap_sys::vmread::{self, RemoteRange};

use crate::owner::Owner;
use crate::space::Space;

/// One note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    start: u64,
    end: u64,
    /// Children do not inherit the range; or they do again.
    excludes: bool,
}

impl Note {
    fn decode(words: [u64; 3]) -> Option<Self> {
        let [start, length, kind] = words;
        let excludes = match kind {
            NOTE_WIPE_ON_FORK => true,
            NOTE_KEEP_ON_FORK => false,
            _ => return None,
        };
        Some(Self { start, end: start.saturating_add(length), excludes })
    }
}

type Ranges = Vec<(u64, u64)>;

impl Owner {
    /// Reads the notes left since the last time.
    pub fn read_notes(&mut self, space: &mut Space) {
        let Some(pid) = space.pid.map(|_| space.reader) else { return };
        let length = (NOTES_START - NOTES_COUNT) + NOTES as u64 * NOTE_BYTES;
        let mut bytes = vec![0u8; length as usize];
        let range = RemoteRange { start: space.area + NOTES_COUNT, length };
        if space.area == 0 || !vmread::read(pid, &[range], &mut bytes).is_ok_and(|n| n == bytes.len()) {
            return;
        }
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
        let count = words[0] as u32 as usize;
        let first = ((NOTES_START - NOTES_COUNT) / 8) as usize;
        let written = words[first..].as_chunks::<3>().0.iter().take(count).skip(space.notes.len());
        space.notes.extend(written.map_while(|words| Note::decode(*words)));
        if count > NOTES && !space.notes_overflow {
            space.notes_overflow = true;
            let name = &space.process_name;
            self.shared.alarm(format!("{name} (process {pid}) excludes more ranges from fork than can be noted: its forks are not safe; run it without uswap"));
            self.shared.condemn(crate::shared::Verdict::Broken("too many ranges excluded from fork".into()));
        }
    }

    /// Ranges that a child does not inherit that was forked after the first `known` notes. The notes only say that there
    /// may be some: the mapping they meant can have been replaced since, without an event if it was not registered; so
    /// the kernel is asked, and what notes have changed since the fork is taken back.
    pub fn excluded_from_fork(&mut self, parent: &mut Space, known: usize) -> Ranges {
        let managed = |(start, end): &(u64, u64)| parent.registered.range(..*end).any(|(_, e)| e > start);
        if self.shared.faults.ignore_notes || !excluded(&parent.notes[..known]).iter().any(managed) {
            return Vec::new();
        }
        let now = crate::procfs::ranges_with_flags(parent.reader, &["wf", "dc"]);
        self.read_notes(parent);
        excluded_at(&parent.notes, known, now)
    }
}

/// What the notes exclude, one after the other.
fn excluded(notes: &[Note]) -> Ranges {
    let mut ranges = Ranges::new();
    for note in notes {
        cut(&mut ranges, note.start, note.end);
        if note.excludes {
            ranges.push((note.start, note.end));
        }
    }
    ranges
}

/// What was excluded after the first `known` notes, when the kernel says `now` after all of them.
fn excluded_at(notes: &[Note], known: usize, mut now: Ranges) -> Ranges {
    let then = excluded(&notes[..known]);
    for later in &notes[known..] {
        cut(&mut now, later.start, later.end);
        let overlaps = then.iter().map(|(start, end)| ((*start).max(later.start), (*end).min(later.end)));
        now.extend(overlaps.filter(|(start, end)| start < end));
    }
    now
}

/// Takes `start..end` out of a list of ranges.
fn cut(ranges: &mut Ranges, start: u64, end: u64) {
    let pieces = ranges.iter().flat_map(|(s, e)| [(*s, (*e).min(start)), ((*s).max(end), *e)]);
    *ranges = pieces.filter(|(s, e)| s < e).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(start: u64, end: u64, excludes: bool) -> Note {
        Note { start, end, excludes }
    }

    #[test]
    fn what_is_noted_after_the_fork_does_not_count() {
        let notes =
            [note(10, 20, true), note(30, 40, true), note(32, 34, false), note(15, 20, false), note(50, 60, true)];
        // After three notes; the kernel is asked after all five, and also knows of a mapping that grew (90..95).
        let mut found = excluded_at(&notes, 3, vec![(10, 15), (30, 32), (34, 40), (50, 60), (90, 95)]);
        found.sort_unstable();
        assert_eq!(found, [(10, 15), (15, 20), (30, 32), (34, 40), (90, 95)]);
    }

    #[test]
    fn a_mapping_that_was_replaced_is_inherited() {
        assert_eq!(excluded_at(&[note(10, 20, true)], 1, vec![]), []);
    }

    #[test]
    fn an_incomplete_note_is_none() {
        assert_eq!(Note::decode([4096, 4096, 0]), None);
        assert_eq!(Note::decode([4096, 8192, NOTE_WIPE_ON_FORK]), Some(note(4096, 12288, true)));
    }
}
