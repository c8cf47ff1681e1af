//! Newly registered memory is *settled* once two things are proven: every fork child to come has it
//! registered too, and really all of it is registered. Nothing is evicted from it before.
//!
//! A scan reads where a mapping lies, and registers that range. In between the program can have
//! unmapped the mapping, which sends no event, and mapped something smaller in its place. The
//! kernel registers the mappings that it finds in the range and skips holes. So memory that the
//! program maps into such a hole later is not registered, though it lies in a registered range. A
//! page that is evicted from there reads as zeros, since no fault is reported for it.
//!
//! So the kernel is asked about one page of each mapping in the range. The answers hold for whole
//! mappings, and for the same moment, if no event is pending after the last one: the pager thread
//! reads no event in between, so nothing registered was unmapped or moved since it was registered.

use std::time::Duration;

use uswap_core::util::growth::{Growth, during};

use crate::Pager;
use crate::Space;
use uswap_pager::space::id::PageRange;

/// Methods that this file adds to [`Pager`].
pub(crate) trait SettlePager {
    /// Settles the unsettled ranges, if no change is under way. Returns whether none is left.
    fn is_settled(&mut self, space: &mut Space) -> bool;
    /// Drops a part of a registered range that turned out not to be registered.
    fn disown(&mut self, space: &mut Space, start: u64, end: u64);
}

impl SettlePager for Pager {
    fn is_settled(&mut self, space: &mut Space) -> bool {
        // A fork that was read and is not applied yet needs the ranges that were unsettled when it
        // happened.
        if !space.memory.changes.window.is_empty()
            || !space.coverage.unsettled.is_due(Duration::from_micros(self.shared.faults.delay_settle))
        {
            return space.coverage.unsettled.is_empty();
        }
        let unfounded = if self.shared.faults.trust_scan {
            space.memory.events.is_quiet(space.memory.area).then(Vec::new)
        } else {
            space.unfounded()
        };
        let Some(unfounded) = unfounded else { return false };
        space.coverage.unsettled.settle();
        for (start, end) in unfounded {
            during(Growth::AddressSpaces, || self.disown(space, start, end));
        }
        true
    }

    fn disown(&mut self, space: &mut Space, start: u64, end: u64) {
        self.shared.counters.unfounded_registrations.add(1);
        self.release_pages(space, start, end);
        space.unregister_range(start, end);
        space.memory.scans.are_needed = true;
        space.memory.scans.cut_off.push((start, end));
    }
}

/// Methods that this file adds to [`Space`].
pub(crate) trait SettleSpace {
    /// The parts of unsettled ranges that are not registered; `None` if an event is pending or the
    /// address space is gone.
    fn unfounded(&self) -> Option<Vec<PageRange>>;
}

impl SettleSpace for Space {
    fn unfounded(&self) -> Option<Vec<PageRange>> {
        let maps = self.memory.proc.maps.as_ref()?;
        let next = |at| maps.extent_covering_or_next(at).ok();
        let found =
            unfounded(self.coverage.unsettled.ranges(), next, |address| self.memory.events.is_registered(address))?;
        self.memory.events.is_quiet(self.memory.area).then_some(found)
    }
}

/// The parts of the ranges that are not registered. `next` returns the mapping that covers an
/// address or is the next above it, and `is_registered` answers for a page of a mapping. If one of
/// them cannot answer, the result is `None`.
fn unfounded(
    ranges: &[PageRange],
    next: impl Fn(u64) -> Option<Option<PageRange>>,
    is_registered: impl Fn(u64) -> Option<bool>,
) -> Option<Vec<PageRange>> {
    let mut unfounded = Vec::new();
    for (start, end) in ranges {
        let mut at = *start;
        while at < *end {
            let (from, to) = next(at)?.map_or((*end, *end), |(from, to)| (from.clamp(at, *end), to.min(*end)));
            if from > at {
                during(Growth::AddressSpaces, || unfounded.push((at, from)));
            }
            if from < *end && !is_registered(from)? {
                during(Growth::AddressSpaces, || unfounded.push((from, to)));
            }
            at = to.max(from);
        }
    }
    Some(unfounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mappings, and whether each is registered.
    const MAPPINGS: [(PageRange, bool); 4] = [((10, 20), true), ((20, 30), false), ((40, 50), true), ((60, 70), false)];

    fn next(at: u64) -> Option<Option<PageRange>> {
        Some(MAPPINGS.iter().map(|(range, _)| *range).find(|(_, end)| *end > at))
    }

    fn is_registered(address: u64) -> Option<bool> {
        MAPPINGS.iter().find(|((start, end), _)| (*start..*end).contains(&address)).map(|(_, is)| *is)
    }

    #[test]
    fn holes_and_what_was_mapped_into_them_are_unfounded() {
        let found = |ranges: &[PageRange]| unfounded(ranges, next, is_registered).expect("known");
        assert_eq!(found(&[(10, 20), (42, 48)]), []);
        assert_eq!(found(&[(5, 15)]), [(5, 10)]);
        assert_eq!(found(&[(15, 45)]), [(20, 30), (30, 40)]);
        assert_eq!(found(&[(22, 28)]), [(22, 28)]);
        assert_eq!(found(&[(45, 100)]), [(50, 60), (60, 70), (70, 100)]);
        assert_eq!(found(&[(52, 58), (80, 90)]), [(52, 58), (80, 90)]);
    }

    #[test]
    fn nothing_is_known_while_an_event_is_pending() {
        assert_eq!(unfounded(&[(10, 20)], next, |_| None), None);
        assert_eq!(unfounded(&[(10, 20)], |_| None, is_registered), None);
    }
}
