//! Notes of the program's hooks about advice that sends no event (MADV_WIPEONFORK, MADV_DONTFORK,
//! and their opposites).
//!
//! A hook writes its note and drops the notice page. It makes the program's call only after the
//! engine has read the event of that drop, and then marks the note as done. So all notes that are
//! known when a fork's event is read were made before the fork, and all later notes after it,
//! however late the fork is applied. One system call reads several events, and a program can run
//! on as soon as the kernel has copied the first of them. So of the notes that are there by then,
//! those are left for later whose own event comes later in the same reading.
//!
//! Notes and changes are applied in one sequence: ranges that children do not inherit follow munmap
//! and mremap as pages do. The kernel (smaps) cannot simply be asked when a fork is applied: by
//! then the program may have changed its mappings again.
//!
//! Memory that is not registered can be replaced without an event, so a note about it is in
//! *doubt*. Once the memory is registered the kernel is asked, after the scan or at the next fork;
//! its answer holds for every note that is done. Such memory can also be moved or grown by mremap
//! without an event, and keeps its advice: if a program has written notes, all memory that becomes
//! registered is in doubt until the next fork. If a program writes many notes before anything is
//! registered the first are overwritten; then all registered memory is in doubt.

use std::collections::{BTreeMap, VecDeque};

use uswap_abi::layout::{
    NOTE_BYTES, NOTE_DO_FORK, NOTE_DONE, NOTE_DONT_FORK, NOTE_KEEP_ON_FORK, NOTE_WIPE_ON_FORK, NOTES, NOTES_COUNT,
    NOTES_START,
};
use uswap_sys::procfs::vmread::{self, RemoteRange};

use crate::Pager;
use crate::Space;
use uswap_pager::space::id::PageRange;
use uswap_sys::procfs;

/// Bytes of count and ring.
const BYTES: usize = (NOTES_START - NOTES_COUNT) as usize + NOTES * NOTE_BYTES as usize;

type Registered = BTreeMap<u64, u64>;

/// One note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Note {
    range: PageRange,
    /// The note is about MADV_WIPEONFORK or its opposite; otherwise about MADV_DONTFORK or its
    /// opposite.
    wipes: bool,
    excludes: bool,
}

impl Note {
    /// The note with this number, if it is complete and was not overwritten, and whether the hook
    /// has made the call that the note announces.
    fn decode(words: [u64; 3], number: u64) -> Option<(Self, bool)> {
        let [start, length, kind] = words;
        let (wipes, excludes) = match kind & 0xff & !NOTE_DONE {
            NOTE_WIPE_ON_FORK => (true, true),
            NOTE_KEEP_ON_FORK => (true, false),
            NOTE_DONT_FORK => (false, true),
            NOTE_DO_FORK => (false, false),
            _ => return None,
        };
        let note = Self { range: (start, start.saturating_add(length)), wipes, excludes };
        (kind >> 8 == number).then_some((note, kind & NOTE_DONE != 0))
    }
}

/// Memory that children do not inherit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Excluded {
    range: PageRange,
    /// Children have the range, filled with zeros.
    wiped: bool,
}

/// Memory for which the notes may be incomplete or wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Doubt {
    range: PageRange,
    number: u64,
    why: NoteReason,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoteReason {
    /// A note was made about it before it was registered, or notes were overwritten before they
    /// were read.
    Noted,
    /// It became registered, or known to be registered, after notes had been made: an mremap
    /// without an event may have moved it there or grown it, together with its advice. The kernel
    /// is not asked about it before there is a fork.
    Came,
}

/// A statement about a range, which can be cut and moved with its range.
pub trait Ranged: Copy {
    /// The range.
    fn range(self) -> PageRange;
    /// The same statement about another range.
    fn with(self, range: PageRange) -> Self;
}

impl Ranged for PageRange {
    fn range(self) -> PageRange {
        self
    }

    fn with(self, range: PageRange) -> Self {
        range
    }
}

impl Ranged for Excluded {
    fn range(self) -> PageRange {
        self.range
    }

    fn with(self, range: PageRange) -> Self {
        Self { range, ..self }
    }
}

impl Ranged for Doubt {
    fn range(self) -> PageRange {
        self.range
    }

    fn with(self, range: PageRange) -> Self {
        Self { range, ..self }
    }
}

impl Doubt {
    /// A doubt because notes about this range may have been missed.
    fn missed(range: PageRange) -> Self {
        Self { range, number: 0, why: NoteReason::Noted }
    }
}

/// All notes of a space.
#[derive(Clone, Default, Debug)]
pub struct Notes {
    /// Excluded ranges, as of the changes that were applied.
    excluded: Vec<Excluded>,
    doubts: Vec<Doubt>,
    /// Notes that were read and not applied yet, and the number of the first of them.
    recent: VecDeque<Note>,
    first: u64,
    /// Some notes were missed: all memory that becomes registered is in doubt.
    missed: bool,
}

impl Notes {
    /// The number of the next note.
    pub fn count(&self) -> u64 {
        self.first + self.recent.len() as u64
    }

    /// The notes of a child that is forked now. Ranges that are wiped in the child are also wiped
    /// in its own children; ranges that the child does not have are left out.
    pub fn inherited(&self) -> Self {
        let mut notes = Self { first: self.first, recent: VecDeque::new(), ..self.clone() };
        notes.excluded.retain(|excluded| excluded.wiped);
        notes
    }

    /// Reads the new notes from the words of the header page, but for the last `later` ones.
    fn read(&mut self, words: &[u64], later: u64, registered: &Registered) {
        let count = words[0].saturating_sub(later);
        let oldest = count.saturating_sub(NOTES as u64);
        if oldest > self.count() {
            self.apply_until(u64::MAX, registered);
            self.first = oldest;
            self.missed = true;
            self.doubts.extend(registered.iter().map(|(start, end)| Doubt::missed((*start, *end))));
        }
        for number in self.count()..count {
            // An incomplete note is announced later.
            let Some((note, _)) = Note::decode(slot(words, number), number) else { break };
            self.recent.push_back(note);
        }
    }

    /// Applies all notes with a lower number than this.
    pub fn apply_until(&mut self, number: u64, registered: &Registered) {
        while self.first < number
            && let Some(note) = self.recent.pop_front()
        {
            self.apply(note, registered);
            self.first += 1;
        }
    }

    fn apply(&mut self, note: Note, registered: &Registered) {
        let (others, mut alike) = self.excluded.iter().partition::<Vec<Excluded>, _>(|e| e.wiped != note.wipes);
        cut(&mut alike, note.range);
        self.excluded = [others, alike].concat();
        if note.excludes {
            self.excluded.push(Excluded { range: note.range, wiped: note.wipes });
        }
        // Where memory is in doubt anyway, the kernel knows of this note only when its call is
        // done.
        let mut doubtful: Vec<PageRange> =
            self.doubts.iter().filter_map(|doubt| both(doubt.range, note.range)).collect();
        doubtful.extend(unregistered(note.range, registered));
        cut(&mut self.doubts, note.range);
        let noted = |range| Doubt { range, number: self.first, why: NoteReason::Noted };
        self.doubts.extend(doubtful.into_iter().map(noted));
    }

    /// Applies a munmap: advice on the range is gone with its mappings.
    pub fn unmap(&mut self, start: u64, end: u64) {
        self.cut((start, end));
    }

    /// Applies an mremap: advice moves with the mapping. With `leaves` (MREMAP_DONTUNMAP) the old
    /// mapping stays, and keeps its advice too.
    pub fn remap(&mut self, from: u64, to: u64, length: u64, leaves: bool) {
        let source = (from, from + length);
        let (excluded, doubts) = (moved(&self.excluded, source, to), moved(&self.doubts, source, to));
        if !leaves {
            self.cut(source);
        }
        self.cut((to, to + length));
        self.excluded.extend(excluded);
        self.doubts.extend(doubts);
    }

    /// Notes that a range is registered from now on, or is known to be.
    pub fn registered(&mut self, start: u64, end: u64) {
        if self.missed {
            return self.doubts.push(Doubt::missed((start, end)));
        }
        let Some(number) = self.count().checked_sub(1) else { return };
        match self.doubts.last_mut() {
            // A heap grows: the range continues the last one.
            Some(Doubt { range, number: last, why: NoteReason::Came }) if range.1 == start => {
                (range.1, *last) = (end, number)
            }
            _ => self.doubts.push(Doubt { range: (start, end), number, why: NoteReason::Came }),
        }
    }

    /// The ranges that children do not inherit.
    pub fn excluded(&self) -> Vec<PageRange> {
        self.excluded.iter().map(|excluded| excluded.range).collect()
    }

    /// The ranges that children may lack altogether, by the notes that were read; ranges in doubt
    /// are included.
    pub fn not_inherited(&self) -> Vec<PageRange> {
        let excluded = self.excluded.iter().filter(|excluded| !excluded.wiped).map(|excluded| excluded.range);
        let recent = self.recent.iter().filter(|note| note.excludes && !note.wipes).map(|note| note.range);
        excluded.chain(recent).chain(self.doubts.iter().map(|doubt| doubt.range)).collect()
    }

    /// Whether the kernel must be asked about registered memory. `fork`: a fork is about to be
    /// applied.
    fn is_in_doubt(&self, registered: &Registered, fork: bool) -> bool {
        let mut doubts = self.doubts.iter().filter(|doubt| fork || doubt.why == NoteReason::Noted);
        doubts.any(|doubt| parts(doubt.range, registered).next().is_some())
    }

    /// Settles doubts by the kernel's answer: it says `now` of all memory, and the notes for which
    /// `is_done` returns true were made before that answer. Ranges of notes that are not applied
    /// yet stay in doubt.
    fn settle(&mut self, now: &[Excluded], is_done: impl Fn(u64) -> bool, registered: &Registered) {
        let later: Vec<PageRange> = self.recent.iter().map(|note| note.range).collect();
        for doubt in std::mem::take(&mut self.doubts) {
            let mut sure: Vec<PageRange> = parts(doubt.range, registered).filter(|_| is_done(doubt.number)).collect();
            later.iter().for_each(|range| cut(&mut sure, *range));
            let mut unsure = vec![doubt];
            for range in sure {
                cut(&mut unsure, range);
                cut(&mut self.excluded, range);
                self.excluded.extend(now.iter().filter_map(|e| Some(e.with(both(e.range, range)?))));
            }
            self.doubts.extend(unsure);
        }
    }

    fn cut(&mut self, range: PageRange) {
        cut(&mut self.excluded, range);
        cut(&mut self.doubts, range);
    }
}

/// Methods that this file adds to [`Pager`].
pub(crate) trait HookNotesPager {
    /// Reads the notes left since the last time, but for the last `later` ones.
    fn read_notes(&mut self, space: &mut Space, later: u64);
    /// Asks the kernel about memory in doubt; the doubt stays if a change is under way. Every
    /// change that was read must have been applied.
    fn settle_notes(&mut self, space: &mut Space, fork: bool);
    /// Ranges that a child forked now does not inherit. `last`: no change is left to be applied
    /// after the fork.
    fn excluded_from_fork(&mut self, parent: &mut Space, last: bool) -> Vec<PageRange>;
}

impl HookNotesPager for Pager {
    fn read_notes(&mut self, space: &mut Space, later: u64) {
        if let Some(words) = header(space) {
            space.memory.changes.notes.read(&words, later, &space.coverage.registered);
        }
    }

    fn settle_notes(&mut self, space: &mut Space, fork: bool) {
        if !space.memory.changes.notes.is_in_doubt(&space.coverage.registered, fork) {
            return;
        }
        let Some(before) = header(space) else { return };
        let Some([wiped, left]) = procfs::ranges_with_flags(space.memory.reader, ["wf", "dc"]) else { return };
        let wiped = wiped.into_iter().map(|range| Excluded { range, wiped: true });
        let now: Vec<Excluded> = wiped.chain(left.into_iter().map(|range| Excluded { range, wiped: false })).collect();
        if !space.memory.events.is_quiet(space.memory.area) {
            return;
        }
        // The kernel's answer may or may not include notes that were made meanwhile: their ranges
        // stay in doubt.
        self.read_notes(space, 0);
        let overwritten = before[0].saturating_sub(NOTES as u64);
        let is_done =
            |number| number < overwritten || Note::decode(slot(&before, number), number).is_some_and(|(_, done)| done);
        space.memory.changes.notes.settle(&now, is_done, &space.coverage.registered);
    }

    fn excluded_from_fork(&mut self, parent: &mut Space, last: bool) -> Vec<PageRange> {
        if self.shared.faults.ignore_notes {
            return Vec::new();
        }
        if parent.memory.attached.is_some() {
            return advised(parent);
        }
        if last {
            self.settle_notes(parent, true);
        }
        parent.memory.changes.notes.excluded()
    }
}

/// The excluded ranges of a program without hooks, which writes no notes: the kernel's current
/// answer is used. It is right for the fork unless another thread has given advice in the moment
/// since.
fn advised(parent: &Space) -> Vec<PageRange> {
    let ranges = procfs::ranges_with_flags(parent.memory.reader, ["wf", "dc"]).unwrap_or_default();
    let all = ranges.into_iter().flatten();
    all.flat_map(|range| parts(range, &parent.coverage.registered).collect::<Vec<_>>()).collect()
}

/// Count and ring in the header page of a space.
fn header(space: &Space) -> Option<Vec<u64>> {
    let mut bytes = [0u8; BYTES];
    let range = RemoteRange { start: space.memory.area + NOTES_COUNT, length: BYTES as u64 };
    let readable = space.memory.pid.is_some() && space.memory.area != 0;
    let read = readable && vmread::read(space.memory.reader, &[range], &mut bytes).is_ok_and(|n| n == BYTES);
    read.then(|| bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)).collect())
}

/// The words of a note in the ring.
fn slot(words: &[u64], number: u64) -> [u64; 3] {
    let ring = words[((NOTES_START - NOTES_COUNT) / 8) as usize..].as_chunks::<3>().0;
    ring[number as usize % NOTES]
}

/// The intersection of two ranges.
fn both(a: PageRange, b: PageRange) -> Option<PageRange> {
    let range = (a.0.max(b.0), a.1.min(b.1));
    (range.0 < range.1).then_some(range)
}

/// The parts of a range that are registered.
fn parts(range: PageRange, registered: &Registered) -> impl Iterator<Item = PageRange> {
    let first = registered.range(..=range.0).next_back().map_or(range.0, |(start, _)| *start);
    registered.range(first..range.1).filter_map(move |(start, end)| both((*start, *end), range))
}

/// The parts of a range that are not registered.
fn unregistered(range: PageRange, registered: &Registered) -> impl Iterator<Item = PageRange> {
    let mut left = vec![range];
    parts(range, registered).for_each(|part| cut(&mut left, part));
    left.into_iter()
}

/// Cuts a range out of all entries of a list.
fn cut<T: Ranged>(list: &mut Vec<T>, (start, end): PageRange) {
    let pieces = list.iter().flat_map(|one| {
        let (s, e) = one.range();
        [(s, e.min(start)), (s.max(end), e)].map(|(s, e)| (s < e).then(|| one.with((s, e))))
    });
    *list = pieces.flatten().collect();
}

/// The parts of a list's entries that lie in `source`, at their places after `source` has moved to
/// `to`.
pub fn moved<T: Ranged>(list: &[T], source: PageRange, to: u64) -> Vec<T> {
    let target = |(start, end): PageRange| (start - source.0 + to, end - source.0 + to);
    list.iter().filter_map(|one| Some(one.with(target(both(one.range(), source)?)))).collect()
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
    const LEAVE: u64 = NOTE_DONT_FORK;

    fn all() -> Registered {
        [(0, 1000)].into()
    }

    fn excluded(notes: &Notes) -> Vec<PageRange> {
        let mut ranges = notes.excluded();
        ranges.sort_unstable();
        ranges
    }

    fn wiped(range: PageRange) -> Excluded {
        Excluded { range, wiped: true }
    }

    #[test]
    fn what_is_noted_after_the_fork_does_not_count() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        for (start, end, kind) in [(10, 20, WIPE), (30, 40, WIPE), (32, 34, KEEP), (15, 20, KEEP), (50, 60, WIPE)] {
            page.note(start, end, kind);
            notes.read(&page.0, 0, &all());
        }
        notes.apply_until(3, &all());
        assert_eq!(excluded(&notes), [(10, 20), (30, 32), (34, 40)]);
        assert_eq!(notes.inherited().count(), 3);
        notes.apply_until(5, &all());
        assert_eq!(excluded(&notes), [(10, 15), (30, 32), (34, 40), (50, 60)]);
    }

    /// A program has forked and gone on before the first event of a reading is looked at.
    #[test]
    fn notes_whose_events_come_later_in_a_reading_are_left_for_them() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        page.note(10, 20, WIPE);
        page.note(30, 40, WIPE);
        notes.read(&page.0, 1, &all());
        let fork = notes.count();
        notes.read(&page.0, 0, &all());
        notes.apply_until(fork, &all());
        assert_eq!((excluded(&notes), notes.count()), (vec![(10, 20)], 2));
        assert_eq!(excluded(&notes.inherited()), [(10, 20)], "the child has the other range as it was");
    }

    #[test]
    fn advice_follows_its_memory() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        page.note(10, 20, WIPE);
        page.note(40, 50, LEAVE);
        notes.read(&page.0, 0, &all());
        notes.apply_until(2, &all());
        notes.remap(12, 42, 4, false);
        assert_eq!(excluded(&notes), [(10, 12), (16, 20), (40, 42), (42, 46), (46, 50)]);
        notes.remap(16, 100, 4, true);
        notes.unmap(44, 48);
        assert_eq!(excluded(&notes), [(10, 12), (16, 20), (40, 42), (42, 44), (48, 50), (100, 104)]);
        assert_eq!(
            excluded(&notes.inherited()),
            [(10, 12), (16, 20), (42, 44), (100, 104)],
            "what a child has not it cannot wipe"
        );
    }

    #[test]
    fn the_kernel_is_asked_about_memory_that_was_not_registered_then() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        let registered: Registered = [(0, 30)].into();
        page.note(10, 20, WIPE);
        page.note(30, 40, WIPE);
        notes.read(&page.0, 0, &registered);
        notes.apply_until(2, &registered);
        assert!(!notes.is_in_doubt(&registered, false));
        assert!(notes.is_in_doubt(&all(), false));
        // The mapping was replaced before it was registered; the kernel's answer about other memory
        // does not count.
        notes.settle(&[wiped((38, 50))], |_| true, &all());
        assert_eq!(excluded(&notes), [(10, 20), (38, 40)]);
        assert!(!notes.is_in_doubt(&all(), false));
    }

    #[test]
    fn a_note_whose_call_is_not_made_yet_stays_in_doubt_and_counts() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        page.note(30, 40, WIPE);
        notes.read(&page.0, 0, &Registered::new());
        notes.apply_until(1, &Registered::new());
        notes.settle(&[], |_| false, &all());
        assert_eq!((excluded(&notes), notes.is_in_doubt(&all(), false)), (vec![(30, 40)], true));
        page.note(35, 40, KEEP);
        notes.read(&page.0, 0, &all());
        notes.settle(&[], |number| number == 0, &all());
        assert_eq!(
            (excluded(&notes), notes.is_in_doubt(&all(), false)),
            (vec![(35, 40)], true),
            "a later note is not applied yet"
        );
    }

    #[test]
    fn a_note_that_is_being_written_waits() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        page.0[0] = 1;
        notes.read(&page.0, 0, &all());
        assert_eq!(notes.count(), 0);
        page.0[0] = 0;
        page.note(10, 20, WIPE | NOTE_DONE);
        notes.read(&page.0, 0, &all());
        notes.apply_until(1, &all());
        assert_eq!((notes.count(), excluded(&notes)), (1, vec![(10, 20)]));
    }

    /// An mremap without an event can have moved advised memory there: the kernel is asked at the
    /// next fork.
    #[test]
    fn what_is_registered_after_notes_is_in_doubt_at_forks() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        notes.registered(0, 100);
        assert!(!notes.is_in_doubt(&all(), true), "no note was made yet");
        page.note(10, 20, WIPE | NOTE_DONE);
        notes.read(&page.0, 0, &all());
        notes.apply_until(1, &all());
        [(200, 210), (210, 300), (400, 410)].into_iter().for_each(|(start, end)| notes.registered(start, end));
        assert_eq!(notes.doubts.len(), 2, "a heap that grows is one range");
        assert!(!notes.is_in_doubt(&all(), false) && notes.is_in_doubt(&all(), true));
        notes.settle(&[wiped((205, 220))], |_| true, &all());
        assert_eq!(excluded(&notes), [(10, 20), (205, 220)]);
        assert!(!notes.is_in_doubt(&all(), true));
    }

    #[test]
    fn thousands_of_notes_are_followed_and_after_missed_ones_all_is_in_doubt() {
        let (mut page, mut notes) = (Page::new(), Notes::default());
        for i in 0..5 * NOTES as u64 {
            page.note(100 * i, 100 * i + 50, WIPE);
            page.note(100 * i, 100 * i + 40, KEEP);
            notes.read(&page.0, 0, &all());
            notes.apply_until(notes.count(), &all());
        }
        assert_eq!((excluded(&notes).len(), excluded(&notes)[7], notes.recent.len()), (5 * NOTES, (740, 750), 0));
        notes.settle(&[], |_| true, &[(0, 1 << 20)].into());
        assert_eq!(excluded(&notes).len(), 10, "what was registered then is not asked about");
        (0..=NOTES as u64).for_each(|i| page.note(i, i + 1, KEEP));
        notes.read(&page.0, 0, &all());
        assert!(notes.missed && notes.count() == page.0[0] && notes.is_in_doubt(&all(), false));
        notes.apply_until(u64::MAX, &all());
        notes.settle(&[wiped((500, 600))], |_| true, &all());
        assert_eq!(excluded(&notes), [(500, 600)]);
        notes.registered(2000, 3000);
        assert!(notes.is_in_doubt(&[(2000, 3000)].into(), false));
    }
}
