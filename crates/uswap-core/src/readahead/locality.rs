//! Locality: decides which of the pages above a page are worth bringing with it, if its fault
//! belongs to no stream. (Pages below it are pages above its mirror image, `neighbours.rs`.)
//!
//! One request can also bring the pages that lie beside a page on its device, for little more than
//! the page alone, and a page in the pool costs little beside a fault. Each such neighbour saves a
//! fault if the program wants it; otherwise it costs the expansion of a page that is not touched,
//! and displaces another page. So bringing neighbours pays if they are wanted *sooner than the
//! pages that they displace*. A program that returns to
//! memory that was evicted wants all of it, and has no more use for the pages that go. In random
//! access to more than fits in memory, the pages that come are worth just as much as the pages that
//! go.
//!
//! Both are measured in evictions of the space, as rates (per page and *horizon*, a quarter of what
//! is in memory):
//!
//! * at some faults the neighbours from one page on are *withheld*, and that page is remembered; if
//!   the program wants it, it faults on it;
//! * of the pages that were evicted within a horizon, the ones that the program faults on are
//!   counted.
//!
//! Pages that come for another reason are no longer watched and count for neither rate. Neighbours
//! are grouped into *bands* by how far behind the page they lie. A band is brought while its rate
//! is well above the rate of evicted pages and not close to zero, provided that all nearer bands
//! are brought too.
//!
//! If the guess is wrong, the withheld pages show it within a horizon. (Linux scales its swap
//! readahead by hits, `swapin_nr_pages` in mm/swap_state.c: it counts touches of the pages that it
//! brought; in user space no touch of a mapped page can be seen.)

use crate::PAGE;
use std::ops::Range;

/// Pages that are watched at once.
const WATCHED: usize = 96;
/// The bands: how many pages behind the faulting page they begin and end.
const BANDS: [Range<u32>; 3] = [1..4, 4..8, 8..16];
/// One horizon is the number of resident pages divided by this.
const HORIZON: u64 = 4;
/// While neighbours are brought, they are withheld at no more than one fault in this number.
const SAMPLE: u32 = 4;
/// The rate of the pages that come must be more than this many times the rate of the pages that go.
const SOONER: f32 = 1.4;
/// And it must be higher by this, or by another number that is given: of the pages that come, one
/// in four must be wanted within four horizons, which is as long as they stay.
pub const MIN: f32 = 1.0 / 16.0;
/// After this many pages or horizons the earlier measurements count half.
const MEMORY: f32 = 32.0;

/// Events per page and horizon.
#[derive(Clone, Copy, Debug)]
struct Rate {
    events: f32,
    exposure: f32,
}

impl Rate {
    fn get(self) -> f32 {
        self.events / self.exposure.max(1.0)
    }

    fn note(&mut self, events: f32, exposure: f32, memory: f32) {
        self.events += events;
        self.exposure = (self.exposure + exposure).max(0.0);
        if self.exposure > memory || self.events > memory {
            self.events /= 2.0;
            self.exposure /= 2.0;
        }
    }
}

/// A page that was withheld, and when; 0: none.
#[derive(Clone, Copy, Debug, Default)]
struct Withheld {
    page: u64,
    since: u32,
    band: u8,
}

/// A point in the life of a space.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Evictions so far, modulo 2^32.
    pub evictions: u32,
    /// Pages in memory.
    pub resident: u64,
}

impl Now {
    fn horizon(self) -> f32 {
        (self.resident / HORIZON).max(64) as f32
    }

    /// Horizons since then, at most one.
    fn since(self, evictions: u32) -> f32 {
        (self.evictions.wrapping_sub(evictions) as f32 / self.horizon()).min(1.0)
    }
}

/// The measurements of one space.
#[derive(Clone, Debug)]
pub struct Locality {
    /// See [`MIN`].
    least: f32,
    withheld: [Withheld; WATCHED],
    next: usize,
    /// Number of pages in `withheld`. It is mostly 0, which saves a search for each page that comes
    /// back.
    watched: usize,
    wanted: [Rate; BANDS.len()],
    /// Rate of the pages that were evicted.
    displaced: Rate,
    /// Evictions at the last fault, and pages that were evicted within a horizon and have come back
    /// since then, with the horizons that they were away.
    seen: u32,
    returned: f32,
    away: f32,
    /// Evictions when a page was last withheld, faults since then, and the band whose turn it is.
    sampled: u32,
    faults: u32,
    turn: usize,
}

impl Locality {
    /// A measurement; neighbours come that are wanted at a rate well above `least`, per page and
    /// horizon. `begins`: at first the nearest band counts as worth bringing.
    pub fn new(least: f32, begins: bool) -> Self {
        let rate = |events| Rate { events, exposure: 1.0 };
        Self {
            least,
            withheld: [Withheld::default(); WATCHED],
            next: 0,
            watched: 0,
            wanted: [rate(if begins { 0.5 } else { 0.0 }), rate(0.0), rate(0.0)],
            displaced: Rate { events: 0.0, exposure: 0.0 },
            seen: 0,
            returned: 0.0,
            away: 0.0,
            sampled: 0,
            faults: 0,
            turn: 0,
        }
    }

    /// A fault on the page at `address`, which was evicted `distance` evictions ago, belongs to no
    /// stream. Returns the number of pages to bring, the faulting one
    /// included. `lies_there` says whether the page at an address could be brought with it.
    pub fn fault(&mut self, address: u64, distance: u32, now: Now, lies_there: impl Fn(u64) -> bool) -> u32 {
        self.count_displaced(distance, now);
        self.settle(address, 1.0, now);
        let bands = self.bands(now);
        let most = if bands == 0 { 1 } else { BANDS[bands - 1].end };
        self.faults += 1;
        let due = now.since(self.sampled) * WATCHED as f32 >= 1.0 || self.withheld[self.next].page == 0;
        if !due || (bands > 0 && self.faults < SAMPLE) {
            return most;
        }
        // The bands that are brought are watched, and the next one.
        self.turn = (self.turn + 1) % (bands + 1).min(BANDS.len());
        let band = &BANDS[self.turn];
        let step = band.start + now.evictions % (band.end - band.start);
        let page = address + u64::from(step) * PAGE;
        if lies_there(page) {
            (self.sampled, self.faults) = (now.evictions, 0);
            self.withhold(page, now);
            return most.min(step);
        }
        most
    }

    /// The most pages that a fault would bring now, the faulting one included.
    pub fn most(&self, now: Now) -> u32 {
        match self.bands(now) {
            0 => 1,
            bands => BANDS[bands - 1].end,
        }
    }

    /// A page that was evicted `distance` evictions ago has come back, for whatever reason.
    pub fn returned(&mut self, address: u64, distance: u32, now: Now) {
        let away = distance as f32 / now.horizon();
        if away < 1.0 {
            self.returned += 1.0;
            self.away += away;
        }
        self.settle(address, 0.0, now);
    }

    /// Number of bands that are worth bringing. Pages that are still watched count as not wanted so
    /// far.
    fn bands(&self, now: Now) -> usize {
        let mut wanted = self.wanted;
        for withheld in self.withheld.iter().filter(|withheld| withheld.page != 0) {
            wanted[usize::from(withheld.band)].exposure += now.since(withheld.since);
        }
        let least = self.displaced.get() * SOONER + self.least;
        wanted.iter().take_while(|rate| rate.get() > least).count()
    }

    /// Each page evicted since the last fault counts as away for a horizon, except those that came
    /// back sooner.
    fn count_displaced(&mut self, distance: u32, now: Now) {
        let evicted = now.evictions.wrapping_sub(self.seen) as f32;
        let exposure = evicted - std::mem::take(&mut self.returned) + std::mem::take(&mut self.away);
        let wanted = if (distance as f32) < now.horizon() { 1.0 } else { 0.0 };
        self.seen = now.evictions;
        self.displaced.note(wanted, exposure, now.horizon() / 2.0);
    }

    /// Stops watching the page at `address`; `wanted` is 1 if the program wants it.
    fn settle(&mut self, address: u64, wanted: f32, now: Now) {
        if self.watched == 0 {
            return;
        }
        if let Some(at) = self.withheld.iter().position(|withheld| withheld.page == address) {
            self.resolve(at, wanted, now);
        }
    }

    fn resolve(&mut self, at: usize, wanted: f32, now: Now) {
        let Withheld { page, since, band } = std::mem::take(&mut self.withheld[at]);
        let exposure = now.since(since);
        if page != 0 {
            self.watched -= 1;
            self.wanted[usize::from(band)].note(if exposure < 1.0 { wanted } else { 0.0 }, exposure, MEMORY);
        }
    }

    fn withhold(&mut self, page: u64, now: Now) {
        self.resolve(self.next, 0.0, now);
        self.withheld[self.next] = Withheld { page, since: now.evictions, band: self.turn as u8 };
        self.watched += 1;
        self.next = (self.next + 1) % WATCHED;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use super::*;

    /// Simulated memory for a number of pages, which go in the order in which they came.
    struct Memory {
        locality: Locality,
        size: usize,
        held: HashMap<u64, u32>,
        queue: VecDeque<u64>,
        gone: HashMap<u64, u32>,
        evictions: u32,
        faults: u64,
        brought: u64,
        random: u64,
    }

    impl Memory {
        fn new(size: usize) -> Self {
            let (held, queue, gone) = (HashMap::new(), VecDeque::new(), HashMap::new());
            let locality = Locality::new(MIN, true);
            Self {
                locality,
                size,
                held,
                queue,
                gone,
                evictions: 0,
                faults: 0,
                brought: 0,
                random: 88_172_645_463_325_252,
            }
        }

        fn below(&mut self, most: u64) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random >> 20) % most
        }

        fn now(&self) -> Now {
            Now { evictions: self.evictions, resident: self.held.len() as u64 }
        }

        fn bring(&mut self, page: u64) {
            if let Some(since) = self.gone.remove(&page) {
                self.locality.returned(page * PAGE, self.evictions - since, self.now());
            }
            self.held.insert(page, self.evictions);
            self.queue.push_back(page);
            while self.queue.len() > self.size {
                let victim = self.queue.pop_front().unwrap();
                self.held.remove(&victim);
                self.gone.insert(victim, self.evictions);
                self.evictions += 1;
            }
        }

        fn touch(&mut self, page: u64) {
            if self.held.contains_key(&page) {
                return;
            }
            let Some(since) = self.gone.get(&page) else { return self.bring(page) };
            let gone = &self.gone;
            let distance = self.evictions - since;
            let now = self.now();
            let pages = self.locality.fault(page * PAGE, distance, now, |address| gone.contains_key(&(address / PAGE)));
            self.faults += 1;
            for page in (page..page + u64::from(pages)).filter(|page| self.gone.contains_key(page)).collect::<Vec<_>>()
            {
                self.brought += 1;
                self.bring(page);
            }
        }

        /// Pages that came for each fault since the last call, and the faults.
        fn told(&mut self) -> (f64, u64) {
            let told = (self.brought as f64 / self.faults.max(1) as f64, self.faults);
            (self.brought, self.faults) = (0, 0);
            told
        }
    }

    /// Touches `pages` pages at random after filling them in order; memory has room for `size`.
    fn at_random(pages: u64, size: usize) -> f64 {
        let mut memory = Memory::new(size);
        (0..pages).for_each(|page| memory.touch(page));
        for part in 0..2 {
            memory.told();
            while memory.faults < 6 * size as u64 {
                let page = memory.below(pages);
                memory.touch(page);
            }
            if part == 0 {
                assert!(memory.told().0 < 1.6, "most of the first is wasted");
            }
        }
        memory.told().0
    }

    #[test]
    fn at_random_over_more_than_fits_hardly_anything_comes_along() {
        for (pages, size) in [(8000, 4000), (12_000, 4000), (4800, 4000), (40_000, 4000), (1200, 1000)] {
            let along = at_random(pages, size);
            assert!(along < 1.15, "{pages} pages in {size}: {along} pages a fault");
        }
    }

    #[test]
    fn records_of_several_pages_come_together() {
        for record in [2u64, 3, 4, 8] {
            let mut memory = Memory::new(4000);
            (0..80_000).for_each(|page| memory.touch(page));
            for _ in 0..2 {
                memory.told();
                while memory.faults < 8000 {
                    let start = memory.below(80_000 / 16) * 16;
                    (start..start + record).for_each(|page| memory.touch(page));
                }
            }
            let (along, _) = memory.told();
            assert!(along > 1.4, "records of {record} pages: {along} pages a fault");
        }
    }

    /// A program wants half of memory at random after other pages have filled it, as when it
    /// returns to an array.
    #[test]
    fn what_a_program_turns_back_to_comes_in_few_faults() {
        let mut memory = Memory::new(4000);
        for round in 0..6 {
            (10_000..14_000).for_each(|page| memory.touch(page));
            memory.told();
            for _ in 0..40_000 {
                let page = memory.below(2000);
                memory.touch(page);
            }
            let (along, faults) = memory.told();
            assert!(round < 2 || faults < 1000, "round {round}: {faults} faults for 2000 pages, {along} a fault");
        }
    }

    #[test]
    fn a_program_that_changes_its_ways_is_followed() {
        let mut memory = Memory::new(2000);
        (0..40_000).for_each(|page| memory.touch(page));
        for _ in 0..3 {
            for record in [1, 4] {
                memory.told();
                while memory.faults < 6000 {
                    let start = memory.below(40_000 / 8) * 8;
                    (start..start + record).for_each(|page| memory.touch(page));
                }
                let (along, _) = memory.told();
                assert!(
                    if record == 1 { along < 1.5 } else { along > 1.4 },
                    "records of {record}: {along} pages a fault"
                );
            }
        }
    }
}
