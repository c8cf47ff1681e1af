//! The number of pages that a first touch brings.
//!
//! Memory that was never touched is zeros, and installing zeros costs next to nothing compared with
//! the fault: so a first touch brings as many pages as its stream of faults has proven
//! ([`Streams`]), and [`BEGINNING`] pages where nothing is proven yet. Allocated memory is usually
//! used: where compilers touched memory at random, a third of the faults went away and in total no
//! more pages were brought in.
//!
//! **If the guess is wrong**, for example where a large table is touched at few places, pages come
//! along that the program does not use. This shows only when they are evicted and are still zeros.
//! Once a space has had more pages evicted as zeros than half of those that came along unproven
//! (plus [`MAX_UNUSED_PAGES`]), its first touches bring one page each until a stream is proven.

use uswap_core::PAGE;
use uswap_core::readahead::streams::{Streams, Window};

/// Number of pages, itself included, that come with a first touch that belongs to no stream.
const BEGINNING: u32 = 4;
/// One in this many pages that came along may turn out to be unused.
const USED: u64 = 2;
/// Unused pages that are tolerated in any case.
const MAX_UNUSED_PAGES: u64 = 256;

/// The streams of first touches of a space, and how many of the pages that came along were used.
#[derive(Clone, Default, Debug)]
pub struct FirstTouches {
    streams: Streams,
    /// Whether the last window began a stream.
    beginning: bool,
    came_along: u64,
    zeros: u64,
}

impl FirstTouches {
    /// The window (1 to `most` pages) for a first touch of the page at `address`.
    pub fn window(&mut self, address: u64, most: u32) -> Window {
        let known = self.streams.go_on(address, most);
        self.beginning = known.is_none();
        known.unwrap_or_else(|| {
            let first = if self.is_worth_it() { BEGINNING } else { 0 };
            self.streams.begin(address, most, first)
        })
    }

    /// Notes that for this touch all pages up to `next` were brought.
    pub fn advance(&mut self, address: u64, next: u64) {
        if self.beginning {
            self.came_along += (next - address) / PAGE - 1;
        }
        self.streams.advance(next);
    }

    /// Counts a page that was evicted and holds only zeros.
    pub fn was_zeros(&mut self) {
        self.zeros += 1;
    }

    fn is_worth_it(&self) -> bool {
        self.zeros <= self.came_along / USED + MAX_UNUSED_PAGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Touches these pages in order, with all pages of each window brought. Returns the number of
    /// faults and of pages brought.
    fn touch(touches: &mut FirstTouches, pages: impl Iterator<Item = u64>) -> (usize, usize) {
        let (mut here, mut faults) = (std::collections::HashSet::new(), 0);
        for page in pages {
            if here.contains(&page) {
                continue;
            }
            faults += 1;
            let window = touches.window(page * PAGE, 64);
            here.extend(page..page + u64::from(window.pages));
            touches.advance(page * PAGE, (page + u64::from(window.pages)) * PAGE);
        }
        (faults, here.len())
    }

    #[test]
    fn memory_that_is_used_up_in_short_runs_takes_a_third_of_the_faults() {
        let runs = || (0..1000u64).map(|n| n * 37 % 1000).flat_map(|run| run * 4..run * 4 + 4);
        let (faults, brought) = touch(&mut FirstTouches::default(), runs());
        assert!(faults <= 1000 && brought <= 4100, "{faults} faults, {brought} pages");
    }

    #[test]
    fn where_what_came_along_is_never_used_it_ends() {
        let mut touches = FirstTouches::default();
        touch(&mut touches, (0..100).map(|n| n * 1000));
        (0..600).for_each(|_| touches.was_zeros());
        let (faults, brought) = touch(&mut touches, (1000..2000).map(|n| n * 1000));
        assert_eq!((faults, brought), (1000, 1000));
        assert!(touch(&mut touches, 1 << 30..(1 << 30) + 640).0 < 20, "a stream that is proven still brings more");
    }

    #[test]
    fn no_more_come_than_are_allowed() {
        assert_eq!(FirstTouches::default().window(0x1000, 2).pages, 2);
        assert_eq!(FirstTouches::default().window(0x1000, 1).pages, 1);
    }
}
