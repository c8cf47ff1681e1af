//! Whether neighbours that cost no request of their own are worth bringing with a page from a device.
//!
//! One request brings what lies behind a page on its device as well. That saves a fault each time the program wants it, and
//! where it does not, it costs the expansion of pages that nobody touches, and for each of them another page its place:
//! at random over memory that does not fit, three useless pages with each fault. Which of both a program does is learnt by
//! trying: of some faults that belong to no stream the neighbours are *withheld*, and it is seen whether the program faults on
//! them soon. (Linux scales its swap readahead by hits in the same way, `swapin_nr_pages` in mm/swap_state.c, but counts
//! touches of the pages that it brought; here no touch of a mapped page can be seen.)

/// Faults whose neighbours were withheld that are remembered: within so many the program must come back.
const REMEMBERED: usize = 32;
/// While neighbours are brought, those of one fault in so many are withheld.
const SAMPLE: u32 = 4;
/// Part of the withheld that must have been wanted, in 256ths, and the weight of the newest.
const WORTH_IT: u32 = 64;
const WEIGHT: u32 = 8;
const ALL: u32 = 256;
const PAGE: u64 = 4096;

/// What is known of one space.
#[derive(Clone, Debug)]
pub struct Locality {
    /// Pages whose neighbours were withheld, oldest at `next`; 0: none.
    withheld: [u64; REMEMBERED],
    next: usize,
    /// Which part of the withheld was wanted of late, in 256ths.
    wanted: u32,
    faults: u32,
}

impl Default for Locality {
    /// Neighbours are taken to be worth it.
    fn default() -> Self {
        Self { withheld: [0; REMEMBERED], next: 0, wanted: ALL / 2, faults: 0 }
    }
}

impl Locality {
    /// A fault on the page at `address` goes to a device: says whether up to `neighbours - 1` pages behind it should come
    /// along for nothing.
    pub fn fault(&mut self, address: u64, neighbours: u32) -> bool {
        let behind = 1..u64::from(neighbours);
        let is_behind = |page: &&mut u64| **page != 0 && behind.contains(&(address.wrapping_sub(**page) / PAGE));
        if let Some(page) = self.withheld.iter_mut().find(is_behind) {
            *page = 0;
            self.wanted += (ALL - self.wanted).div_ceil(WEIGHT);
        }
        self.faults = self.faults.wrapping_add(1);
        let bring = self.wanted >= WORTH_IT && !self.faults.is_multiple_of(SAMPLE);
        if !bring {
            self.withhold(address);
        }
        bring
    }

    fn withhold(&mut self, address: u64) {
        let oldest = std::mem::replace(&mut self.withheld[self.next], address);
        self.next = (self.next + 1) % REMEMBERED;
        if oldest != 0 {
            self.wanted -= self.wanted.div_ceil(WEIGHT).min(self.wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEIGHBOURS: u32 = 4;

    fn random(x: &mut u64) -> u64 {
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        (*x >> 20) * PAGE
    }

    /// Records of so many pages at random; returns which part of the last faults had neighbours brought.
    fn brought(locality: &mut Locality, pages: u64, records: u32) -> f64 {
        let (mut x, mut faults, mut brought) = (88_172_645_463_325_252u64, 0, 0);
        for record in 0..records {
            let start = random(&mut x);
            let mut end = start;
            for page in (0..pages).map(|n| start + n * PAGE) {
                if page >= end {
                    let bring = locality.fault(page, NEIGHBOURS);
                    end = page + PAGE * if bring { u64::from(NEIGHBOURS) } else { 1 };
                    if record > records / 2 {
                        (faults, brought) = (faults + 1, brought + u32::from(bring));
                    }
                }
            }
        }
        f64::from(brought) / f64::from(faults)
    }

    #[test]
    fn at_random_nothing_comes_along_and_with_records_of_several_pages_mostly_does() {
        assert_eq!(brought(&mut Locality::default(), 1, 2000), 0.0);
        for pages in [2, 3, 4] {
            let part = brought(&mut Locality::default(), pages, 2000);
            assert!(part > 0.4, "records of {pages} pages: {part}");
        }
    }

    #[test]
    fn a_program_that_changes_its_ways_is_followed() {
        let mut locality = Locality::default();
        for _ in 0..3 {
            assert!(brought(&mut locality, 1, 600) < 0.05);
            assert!(brought(&mut locality, 4, 600) > 0.4);
        }
    }

    #[test]
    fn the_part_that_was_wanted_stays_a_part() {
        let mut locality = Locality::default();
        for n in 0..10_000u64 {
            locality.fault(n * PAGE, NEIGHBOURS);
            assert!(locality.wanted <= ALL);
        }
        for n in 0..10_000u64 {
            locality.fault(n * (PAGE << 20), NEIGHBOURS);
        }
        assert!(locality.wanted < WORTH_IT);
    }
}
