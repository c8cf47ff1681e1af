//! Neighbours: how many pages on both sides of a page are worth bringing with it, if its fault
//! belongs to no stream.
//!
//! Pages above the faulting one and pages below it are judged apart, and so are pages in the pool
//! and pages on devices, each by a measurement of its own ([`Locality`]). Programs walk down as
//! often as up without being a stream: CPython's allocator hands out the blocks of a pool of 16 KiB
//! upwards and the pools of an arena in any order, and a program that reads objects in the order in
//! which it made them touches a few pages up, then a few pages further down. (Linux takes as many
//! pages below an isolated fault as above it, `swap_vma_ra_win` in mm/swap_state.c.)
//!
//! A neighbour in the pool costs a decompression and its installation, and saves a fault that takes
//! a few times as long; a neighbour on a device lies in what is read in any case. So a neighbour in
//! the pool must be wanted sooner. Only pages above a page on a device come before anything is
//! measured.
//!
//! If a guess is wrong, pages that are withheld show it, as `locality.rs` tells.

use crate::PAGE;
use crate::readahead::locality::{Locality, MIN, Now};

/// The least rate at which neighbours in the pool are wanted, per page and horizon: one in four
/// within one horizon.
const MIN_IN_POOL: f32 = 1.0 / 4.0;
/// Addresses below this have a mirror image, so that pages below a page are pages above its image.
const MIRROR: u64 = 1 << 60;

fn mirrored(address: u64) -> u64 {
    MIRROR - address
}

/// The place where the neighbours of a page lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the compressed pool.
    Pool,
    /// On a device.
    Device,
}

/// Pages that are worth bringing with a page, itself not counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Around {
    /// Right above it.
    pub above: u32,
    /// Right below it.
    pub below: u32,
}

/// The measurements of one space.
#[derive(Clone, Debug)]
pub struct Neighbours {
    pool: [Locality; 2],
    device: [Locality; 2],
}

impl Default for Neighbours {
    fn default() -> Self {
        let measured = || Locality::new(MIN_IN_POOL, false);
        Self { pool: [measured(), measured()], device: [Locality::new(MIN, true), Locality::new(MIN, false)] }
    }
}

impl Neighbours {
    /// The pages to bring with the page at `address`, which was evicted `distance` evictions ago
    /// and lies in `place`. `lies_there` says whether the page at an address lies there too.
    pub fn fault(
        &mut self,
        address: u64,
        place: Place,
        distance: u32,
        now: Now,
        lies_there: impl Fn(u64) -> bool,
    ) -> Around {
        let [above, below] = self.of(place);
        let in_mirror = |image| lies_there(mirrored(image));
        Around {
            above: above.fault(address, distance, now, &lies_there) - 1,
            below: below.fault(mirrored(address), distance, now, in_mirror) - 1,
        }
    }

    /// The most pages that a fault would bring from this place now, itself not counted.
    pub fn most(&mut self, place: Place, now: Now) -> u32 {
        self.of(place).iter().map(|side| side.most(now) - 1).sum()
    }

    /// A page that was evicted `distance` evictions ago has come back, for whatever reason.
    pub fn returned(&mut self, address: u64, distance: u32, now: Now) {
        for [above, below] in [&mut self.pool, &mut self.device] {
            above.returned(address, distance, now);
            below.returned(mirrored(address), distance, now);
        }
    }

    fn of(&mut self, place: Place) -> &mut [Locality; 2] {
        match place {
            Place::Pool => &mut self.pool,
            Place::Device => &mut self.device,
        }
    }
}

/// At most `below` pages right below `address`, the nearest first, down to address `from`.
pub fn pages_below(address: u64, below: u32, from: u64) -> impl Iterator<Item = u64> {
    let steps = (1..=u64::from(below)).map_while(move |step| address.checked_sub(step * PAGE));
    steps.take_while(move |page| *page >= from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESIDENT: u64 = 4096;

    /// Faults on pages far apart, after each of which the program wants the pages on one side of
    /// it that did not come. Returns what the last faults brought.
    fn walk(place: Place, wants: impl Fn(u64, u64) -> u64) -> Around {
        let (mut neighbours, mut last) = (Neighbours::default(), Around::default());
        for round in 0..4000u64 {
            let now = Now { evictions: (round * 32) as u32, resident: RESIDENT };
            let address = (1 << 30) + round * 64 * PAGE;
            last = neighbours.fault(address, place, 100_000, now, |_| true);
            for step in 1..4 {
                let page = wants(address, step * PAGE);
                let came = if page > address { last.above } else { last.below };
                if step > u64::from(came) {
                    let now = Now { evictions: now.evictions + 1, ..now };
                    neighbours.fault(page, place, 100_000, now, |_| false);
                }
            }
        }
        last
    }

    #[test]
    fn pages_that_are_never_wanted_do_not_come() {
        for place in [Place::Pool, Place::Device] {
            let mut neighbours = Neighbours::default();
            let mut last = Around::default();
            for round in 0..4000u64 {
                let now = Now { evictions: (round * 32) as u32, resident: RESIDENT };
                last = neighbours.fault((1 << 30) + round * 64 * PAGE, place, 100_000, now, |_| true);
            }
            assert_eq!(last, Around::default(), "{place:?}");
        }
    }

    #[test]
    fn each_side_is_judged_by_itself() {
        for place in [Place::Pool, Place::Device] {
            let up = walk(place, |page, bytes| page + bytes);
            assert!(up.above > 0 && up.below == 0, "{place:?}: {up:?}");
            let down = walk(place, |page, bytes| page - bytes);
            assert!(down.below > 0 && down.above == 0, "{place:?}: {down:?}");
        }
    }

    #[test]
    fn pages_below_end_at_the_border() {
        assert_eq!(pages_below(5 * PAGE, 7, 3 * PAGE).collect::<Vec<_>>(), [4 * PAGE, 3 * PAGE]);
        assert_eq!(pages_below(PAGE, 7, 0).collect::<Vec<_>>(), [0]);
        assert_eq!(pages_below(0, 7, 0).count(), 0);
    }
}
