//! Finds the order in which changes happened.
//!
//! A thread changes the address space under the kernel's lock, releases the lock, and only then
//! queues the event that reports the change. Another thread can change the space in between and
//! queue its event first. A munmap by one thread and an mremap into the hole by another can be read
//! as "moved there" and then "unmapped"; a fork and a munmap as "unmapped" and then "forked",
//! though the child has the mapping. If the pager applied changes in the order of reading it would
//! drop evicted pages that the program still has, and the program would read zeros.
//!
//! The kernel counts changes from under its lock until their event was read, and puts off every
//! installing ioctl meanwhile (`mmap_changing` in fs/userfaultfd.c). So the pager collects the
//! changes that it reads in a *window* until the count is zero; nothing could be installed or moved
//! before that either. Then all changes are known, and observations decide their order:
//!
//! * the ranges that were registered before;
//! * the ranges that are registered now: the kernel is asked by an ioctl that cannot succeed;
//! * the ranges that each fork child has. For the changes read before the fork the child is asked
//!   when its event is read, before it runs; for the changes read after it, at the end of the
//!   window. Ranges that no child gets (MADV_DONTFORK) are no evidence;
//! * mremap fills a place that is empty, and every mremap sends an Unmap for the place it left,
//!   which is no new information.
//!
//! Orders are tried from the order of reading on, and the first one that agrees with all
//! observations is taken; if none does (mremap grows mappings without an event), the one with the
//! fewest contradictions. Two changes that threads make independently of each other may be taken in
//! either order. Those in the examples above may not, since there the kernel chose place and
//! moment.

use std::collections::{BTreeMap, BTreeSet};
use uswap_core::PAGE;

use uswap_sys::userfaultfd::{Event, Userfaultfd};

use crate::events::hook_notes::moved;
use uswap_pager::space::id::PageRange;

/// Maximum of steps of the search for an order; a window of a few changes needs some dozens.
const MAX_STEPS: u32 = 20_000;
/// Maximum of borders within one range: of thousands of mappings that are unmapped at once the rest
/// counts as one.
const MAX_EDGES: usize = 256;

/// A change as far as the order depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Vacates a range.
    Unmap {
        /// First address.
        start: u64,
        /// The address behind the last one.
        end: u64,
    },
    /// Vacates one range and fills another.
    Remap {
        /// Old address.
        from: u64,
        /// New address.
        to: u64,
        /// Bytes.
        length: u64,
    },
    /// Fills a range with the pages of another one, which stays registered (MREMAP_DONTUNMAP).
    Leave {
        /// The range that is filled.
        to: u64,
        /// Bytes.
        length: u64,
    },
    /// Copies everything.
    Fork,
    /// Any other change: its place in the order does not matter.
    Other,
}

impl Effect {
    fn of(event: &Event) -> Self {
        match *event {
            Event::Unmap { start, end } => Self::Unmap { start, end },
            Event::Remap { from, to, length } => Self::Remap { from, to, length },
            Event::Fork(_) => Self::Fork,
            Event::Remove { .. } | Event::Fault { .. } => Self::Other,
        }
    }

    fn vacates(self) -> Option<(u64, u64)> {
        match self {
            Self::Unmap { start, end } => Some((start, end)),
            Self::Remap { from, length, .. } => Some((from, from + length)),
            Self::Leave { .. } | Self::Fork | Self::Other => None,
        }
    }

    fn fills(self) -> Option<(u64, u64)> {
        match self {
            Self::Remap { to, length, .. } | Self::Leave { to, length } => Some((to, to + length)),
            _ => None,
        }
    }

    fn ranges(self) -> impl Iterator<Item = (u64, u64)> {
        self.vacates().into_iter().chain(self.fills())
    }
}

/// One change in a window.
#[derive(Clone, Debug)]
pub struct HeldEntry {
    /// Its effect.
    pub change: Effect,
    /// For a fork: pages, and whether the child had each when its event was read.
    pub seen: BTreeMap<u64, bool>,
}

/// A change that was read.
#[derive(Debug)]
pub struct Held {
    /// The event that reported it.
    pub event: Event,
    /// How many notes the program's hooks had left when it was read (see
    /// [`crate::events::hook_notes`]).
    pub notes: u64,
    /// The event is an mremap that left the old mapping in place (MREMAP_DONTUNMAP).
    pub leaves: bool,
}

/// The mappings of a space before the changes in its window.
#[derive(Clone, Debug)]
pub struct KnownMappings<'a> {
    /// The registered ranges.
    pub registered: &'a BTreeMap<u64, u64>,
    /// Ranges that children may lack. `None`: unknown, so any range may be missing.
    pub not_inherited: Option<Vec<PageRange>>,
}

/// Answers whether an address is registered now; `None`: the kernel gives no clear answer.
pub trait KernelView {
    /// Asks the space itself.
    fn space_has(&self, address: u64) -> Option<bool>;
    /// Asks the child whose fork is entry `fork`.
    fn child_has(&self, fork: usize, address: u64) -> Option<bool>;
}

/// The changes read since the last quiet moment.
#[derive(Debug, Default)]
pub struct EventReorderBuffer {
    entries: Vec<HeldEntry>,
    held: Vec<Held>,
}

impl EventReorderBuffer {
    /// Whether every change that was read has been applied.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Adds a change that was just read. `known` is called only if its result matters.
    pub fn push<'a>(&mut self, event: Event, notes: u64, known: impl FnOnce() -> KnownMappings<'a>) {
        let mut seen = BTreeMap::new();
        if let Event::Fork(child) = &event
            && !self.entries.is_empty()
        {
            let ask = |page: u64| Some((page, child.is_registered(page)?));
            seen = pages_to_ask(&self.entries, &known()).into_iter().filter_map(ask).collect();
        }
        self.entries.push(HeldEntry { change: Effect::of(&event), seen });
        self.held.push(Held { event, notes, leaves: false });
    }

    /// Takes all changes, in the order in which they happened, and the number of those that were
    /// read in another order. Only to be called when no change is under way.
    pub fn take(&mut self, space: &Userfaultfd, known: &KnownMappings) -> (Vec<Held>, u64) {
        let entries = std::mem::take(&mut self.entries);
        let mut held: Vec<Option<Held>> = std::mem::take(&mut self.held).into_iter().map(Some).collect();
        let echoes = echoes(&entries);
        for index in &echoes.1 {
            held[*index].iter_mut().for_each(|held| held.leaves = true);
        }
        let order = order(&entries, &echoes, known, &Asked { space, held: &held });
        let misordered = order.windows(2).filter(|pair| pair[0] > pair[1]).count() as u64;
        let mut changes: Vec<Held> = order.into_iter().filter_map(|index| held[index].take()).collect();
        let mut notes: Vec<u64> = changes.iter().map(|change| change.notes).collect();
        notes_in_order(&mut notes);
        changes.iter_mut().zip(notes).for_each(|(change, notes)| change.notes = notes);
        (changes, misordered)
    }

    /// Takes all changes in the order of reading.
    pub fn take_as_read(&mut self) -> Vec<Held> {
        self.entries.clear();
        std::mem::take(&mut self.held)
    }
}

/// The first and the last page of every segment that the changes concern.
pub fn pages_to_ask(entries: &[HeldEntry], known: &KnownMappings) -> BTreeSet<u64> {
    let ranges = ranges_of(entries.iter());
    let borders = borders(&ranges, known.registered, known.absent(entries).as_deref());
    let pages = borders.iter().flat_map(|border| [*border, border.wrapping_sub(PAGE)]);
    pages.filter(|page| within(&ranges, *page)).collect()
}

fn within(ranges: &[PageRange], page: u64) -> bool {
    ranges.iter().any(|(start, end)| (*start..*end).contains(&page))
}

fn ranges_of<'a>(entries: impl Iterator<Item = &'a HeldEntry>) -> Vec<PageRange> {
    entries.flat_map(|entry| entry.change.ranges()).collect()
}

/// The addresses at which segments begin and end. Before and after every change a segment is either
/// wholly present or wholly absent, and either all or none of it is inherited.
fn borders(ranges: &[PageRange], registered: &BTreeMap<u64, u64>, absent: Option<&[PageRange]>) -> BTreeSet<u64> {
    let mut borders: BTreeSet<u64> = ranges.iter().flat_map(|(start, end)| [*start, *end]).collect();
    for (start, end) in ranges {
        let from = registered.range(..=start).next_back().map_or(*start, |(from, _)| *from);
        let there = registered.range(from..*end).map(|(start, end)| (*start, *end));
        let edges = there.chain(absent.unwrap_or_default().iter().copied()).flat_map(|(start, end)| [start, end]);
        borders.extend(edges.filter(|edge| start < edge && edge < end).take(MAX_EDGES));
    }
    borders
}

/// Lowers the note counts of changes so that they never fall along the order. A note that was not
/// known when a change was read was made after that change, and so after all changes before it: a
/// change cannot have had more notes before it than any later change.
fn notes_in_order(notes: &mut [u64]) {
    let mut most = u64::MAX;
    for count in notes.iter_mut().rev() {
        most = most.min(*count);
        *count = most;
    }
}

impl KnownMappings<'_> {
    /// The ranges that children may lack, also at the places to which an mremap among the entries
    /// may have moved them.
    fn absent(&self, entries: &[HeldEntry]) -> Option<Vec<PageRange>> {
        let mut absent = self.not_inherited.clone()?;
        for entry in entries {
            if let Effect::Remap { from, to, length } = entry.change {
                absent.extend(moved(&absent, (from, from + length), to));
            }
        }
        Some(absent)
    }
}

struct Asked<'a> {
    space: &'a Userfaultfd,
    held: &'a [Option<Held>],
}

impl KernelView for Asked<'_> {
    fn space_has(&self, address: u64) -> Option<bool> {
        self.space.is_registered(address)
    }

    fn child_has(&self, fork: usize, address: u64) -> Option<bool> {
        let Some(Some(Held { event: Event::Fork(child), .. })) = self.held.get(fork) else { return None };
        child.is_registered(address)
    }
}

/// The indices of the entries in the order in which they happened, without entries that add no
/// information.
pub fn order(
    entries: &[HeldEntry],
    (echoes, leaving): &Echoes,
    known: &KnownMappings,
    kernel: &impl KernelView,
) -> Vec<usize> {
    let kept: Vec<usize> = (0..entries.len()).filter(|i| !echoes.contains(i)).collect();
    let depends = |index: &usize| matches!(entries[*index].change, Effect::Remap { .. } | Effect::Fork);
    if kept.len() < 2 || !kept.iter().any(depends) {
        return kept;
    }
    let absent = known.absent(entries);
    let entries = with_leaving(entries, leaving);
    let mut search = ReorderSearch::new(&entries, &kept, known.registered, absent.as_deref(), kernel);
    let mut taken = Vec::with_capacity(kept.len());
    let before = search.before.clone();
    search.extend(&mut taken, &before, 0);
    search.best.map_or(kept, |(order, _)| order)
}

/// Each mremap is followed by an Unmap of its old range, unless it left the old mapping in place.
/// The indices of those Unmaps, and of the mremaps that have none.
pub type Echoes = (BTreeSet<usize>, BTreeSet<usize>);

/// Finds the Unmaps that belong to mremaps.
pub fn echoes(entries: &[HeldEntry]) -> Echoes {
    let (mut echoes, mut leaving) = (BTreeSet::new(), BTreeSet::new());
    for (index, entry) in entries.iter().enumerate() {
        let Effect::Remap { from, length, .. } = entry.change else { continue };
        let echo = Effect::Unmap { start: from, end: from + length };
        match (index + 1..entries.len()).find(|i| entries[*i].change == echo && !echoes.contains(i)) {
            Some(found) => echoes.insert(found),
            None => leaving.insert(index),
        };
    }
    (echoes, leaving)
}

/// The entries, with every mremap that left its old mapping in place turned into `Effect::Leave`.
fn with_leaving(entries: &[HeldEntry], leaving: &BTreeSet<usize>) -> Vec<HeldEntry> {
    let mut entries = entries.to_vec();
    for index in leaving {
        if let Effect::Remap { to, length, .. } = entries[*index].change {
            entries[*index].change = Effect::Leave { to, length };
        }
    }
    entries
}

/// For each segment whether it is registered. The borders of all ranges concerned, and of known
/// differences within them, cut the address space into segments; every change concerns whole
/// segments.
type Picture = Vec<bool>;

struct ReorderSearch<'a> {
    entries: &'a [HeldEntry],
    left: Vec<usize>,
    borders: Vec<u64>,
    before: Picture,
    now: Vec<Option<bool>>,
    children: BTreeMap<usize, Vec<Option<bool>>>,
    steps: u32,
    best: Option<(Vec<usize>, u32)>,
}

impl<'a> ReorderSearch<'a> {
    fn new(
        entries: &'a [HeldEntry],
        kept: &[usize],
        registered: &BTreeMap<u64, u64>,
        absent: Option<&[PageRange]>,
        kernel: &impl KernelView,
    ) -> Self {
        let ranges = ranges_of(kept.iter().map(|index| &entries[*index]));
        let borders: Vec<u64> = borders(&ranges, registered, absent).into_iter().collect();
        let concerned = |page: &u64| within(&ranges, *page);
        let says_something = |has: bool, page: &u64| has || absent.is_some_and(|absent| !within(absent, *page));
        let before = |page: &u64| registered.range(..=*page).next_back().is_some_and(|(_, end)| end > page);
        let forks = kept.iter().filter(|index| entries[**index].change == Effect::Fork);
        let child = |fork: &usize| {
            let answer = |(i, page): (usize, &u64)| {
                let end = borders.get(i + 1).copied().unwrap_or(u64::MAX);
                let seen = entries[*fork].seen.range(*page..end).next().map(|(_, has)| *has);
                let has = seen.or_else(|| kernel.child_has(*fork, *page));
                has.filter(|has| concerned(page) && says_something(*has, page))
            };
            (*fork, borders.iter().enumerate().map(answer).collect())
        };
        Self {
            entries,
            left: kept.to_vec(),
            before: borders.iter().map(before).collect(),
            now: borders.iter().map(|page| kernel.space_has(*page).filter(|_| concerned(page))).collect(),
            children: forks.map(child).collect(),
            borders: borders.clone(),
            steps: 0,
            best: None,
        }
    }

    /// Tries all continuations of `taken`, an order that leads to `picture` and contradicts `cost`
    /// observations.
    fn extend(&mut self, taken: &mut Vec<usize>, picture: &Picture, cost: u32) {
        let bound = self.best.as_ref().map_or(u32::MAX, |(_, cost)| *cost);
        self.steps += 1;
        if cost >= bound || (self.steps > MAX_STEPS && self.best.is_some()) {
            return;
        }
        if self.left.is_empty() {
            let cost = cost + contradictions(picture, &self.now);
            if cost < bound {
                self.best = Some((taken.clone(), cost));
            }
            return;
        }
        for position in 0..self.left.len() {
            let index = self.left.remove(position);
            taken.push(index);
            let (next, more) = self.after(index, picture);
            self.extend(taken, &next, cost + more);
            taken.pop();
            self.left.insert(position, index);
        }
    }

    /// The picture after a change, and how many observations it contradicts.
    fn after(&self, index: usize, picture: &Picture) -> (Picture, u32) {
        let mut next = picture.clone();
        let mut cost = 0;
        let change = self.entries[index].change;
        if change == Effect::Fork {
            cost += contradictions(picture, &self.children[&index]);
        }
        if let Some((start, end)) = change.vacates() {
            let moves = change.fills().is_some();
            for segment in self.segments(start, end) {
                // Only a registered segment can be moved.
                cost += u32::from(moves && !next[segment]);
                next[segment] = false;
            }
        }
        if let Some((start, end)) = change.fills() {
            for segment in self.segments(start, end) {
                // Only an empty segment can be filled.
                cost += u32::from(next[segment]);
                next[segment] = true;
            }
        }
        (next, cost)
    }

    fn segments(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let position = |border| self.borders.partition_point(|known| *known < border);
        position(start)..position(end)
    }
}

fn contradictions(picture: &Picture, observed: &[Option<bool>]) -> u32 {
    picture.iter().zip(observed).filter(|(has, seen)| seen.is_some_and(|seen| seen != **has)).count() as u32
}

#[cfg(test)]
#[path = "reorder_tests.rs"]
mod tests;
