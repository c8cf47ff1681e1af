//! The thrash guard: decides whether pages that come back soon may take the place of active ones.
//!
//! A page *challenges* the active list if its refault distance is at most the length of that list
//! (Weiner 2013). Admitting every challenger is right when the working set changes, and ruinous
//! when a program sweeps over more than fits: then each page that is let in displaces one that is
//! needed just as soon, and every access misses, although a part of the pages, if it were held,
//! would be hit in each round (DIP and BIP, Qureshi et al., ISCA 2007).
//!
//! The guard tells the two cases apart by what became of the displaced pages. A replacement was
//! *wrong* if the displaced page came back no later than the challengers do: then the page that
//! went was worth as much as the page that took its place. So the guard is
//!
//! - **closed** at first: during a trial one challenger in [`PROBE`] is let in, in place of pages
//!   of the active list chosen at random, so that the displaced pages are a fair sample of the
//!   active list. Both are taken in blocks of neighbours, since holes in runs cost more than they
//!   tell. The guard opens if few of the displaced pages come back, or if the active pages that are
//!   not in use are as many as all challengers together would need;
//! - **ajar** if many of the displaced pages came back, but not nearly all, and the distances of
//!   the challengers differ widely, so that it is no sweep: active pages and challengers are worth
//!   about the same, and neither should be kept for long. Each challenger is let in, in place of
//!   random pages, so that pages which are not used any more go (phases of a program);
//! - **open**: each challenger is let in, in place of the page at the head of the active list.
//!
//! An open guard displaces half of the list before it is judged, and only the second half of these
//! pages counts: pages lie on the list in the order in which they came, and those at its head may
//! be remains of the new working set, so that the new set would be judged by itself.
//!
//! In a trial some of the displaced pages are watched for as long as a challenger takes from its
//! arrival to its return: the time to pass the inactive list, plus its refault distance. In a sweep
//! all of them are back by then. The guard opens if few of them are back (the active pages are not
//! in use); an open guard closes if half of them or more are back; and with four fifths or more it
//! is not left ajar. So the probes of a stream wear down the active list, but slowly: the sample is
//! small, and while it is watched a closed guard lets no page in.
//!
//! Part of a new working set is often active already, so that half of a sample comes back although
//! there is room. *Room* is the part of the active list that is not in use, and the refault
//! distance is the room that a challenger needs. So a closed guard opens as well if the share of
//! the sample that stayed away, less two and a half standard errors, times the length of the list
//! is at least that distance. A sweep over more than fits has no such room. The samples of
//! consecutive trials are added up; older ones weigh less.
//!
//! Time is the space's count of evictions, so nothing happens while no page is evicted. If the
//! guess is wrong: a guard that is wrongly closed costs the misses until a trial has ended, one and
//! a half rounds over the new set; a guard that is wrongly open costs as long, and the active pages
//! of that time are lost.

/// One challenger in this number is let in while the guard is closed.
const PROBE: u64 = 8;
/// Least and greatest number of blocks of displaced pages that are watched. With half as many, on a
/// long list, one trial in some hundreds would judge wrongly.
const MIN_BLOCKS: u64 = 14;
const MAX_BLOCKS: u64 = 64;
/// Between these bounds, one page of the list in this number is watched.
const SAMPLED: u64 = 400;
/// The most neighbours that are let in or displaced together.
const MAX_BLOCK: u64 = 8;
/// An open guard is judged when 1/SPAN of the list was displaced, by the second half of these
/// pages.
const SPAN: u64 = 2;
/// In that half an open guard divides the mean refault distance into this many parts, and watches
/// the pages displaced in the last 1/WATCHED of each part.
const WATCHES: u64 = 16;
const WATCHED: u64 = 4;
/// The mean refault distance is that of the last challengers, one for this many pages of the active
/// list. (The mean of the last 64 pages misled: as many come back together where neighbours were
/// displaced, and a trial judged by their distance ended before the watched pages could be back.)
const RECENT: u64 = 32;
/// At least as many challengers are in that mean.
const MIN_RECENT: u64 = 64;
/// The guard waits for the watched pages a little longer than a round takes: by one part in this
/// number.
const LATE: u64 = 64;
/// If a smaller share of the displaced pages comes back, the guard opens.
const OPENS: f64 = 0.35;
/// If this share or more comes back, the guard does not stay open.
const CLOSES: f64 = 0.5;
/// Room is the estimate of a sample less this many standard errors.
const SURE: f64 = 2.5;
/// If this share or more comes back, the guard is closed.
const SWEEP: f64 = 0.8;
/// If the distances of challengers differ on average from their mean by less than this part of it,
/// the program makes a sweep.
const SWEEP_SPREAD: f64 = 0.2;

/// The size of the sample of a trial.
#[derive(Clone, Copy, Debug)]
pub struct GuardSample {
    /// Pages in a row that are let in or displaced together.
    pub block: u64,
    /// Pages that are watched.
    pages: u64,
    /// Pages of the active list.
    list: u64,
    /// Challengers in the mean refault distance.
    mean: u64,
}

impl GuardSample {
    /// The sample for a list of `active` pages: one block in [`SAMPLED`] pages, within the bounds
    /// on the number of blocks.
    pub fn of(active: u64) -> Self {
        let block = (active / 16_384).clamp(1, MAX_BLOCK);
        let pages = block * (active / SAMPLED).clamp(MIN_BLOCKS, MAX_BLOCKS);
        Self { block, pages, list: active, mean: (active / RECENT).max(MIN_RECENT) }
    }
}

/// Pages that are neither active nor evicted.
#[derive(Clone, Copy, Debug)]
pub struct Passing {
    /// On the inactive list.
    pub inactive: u64,
    /// Chosen to be evicted, and not evicted yet.
    pub staged: u64,
}

impl Passing {
    /// Evictions between two touches of a page in a sweep, if the page is evicted and comes back
    /// after `distance`.
    fn round(self, distance: f64) -> u64 {
        ((self.inactive + self.staged) as f64 + distance) as u64
    }
}

/// The challengers that are let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Guard {
    #[default]
    Closed,
    Ajar,
    Open,
}

/// The guard of one space. All times are evictions of that space.
#[derive(Clone, Debug, Default)]
pub struct ThrashGuard {
    guard: Guard,
    /// Mean refault distance of challengers; 0 before the first.
    distance: f64,
    /// Mean deviation from that distance.
    spread: f64,
    challengers: u64,
    /// Challengers let in during this trial.
    admitted: u64,
    begin: u64,
    /// One of the `WATCHES` parts of the mean distance when the trial began.
    part: u64,
    /// Evictions for which an open guard displaces pages before it is judged.
    stretch: u64,
    /// Pages displaced from then on are not watched; `None` until enough were displaced.
    until: Option<u64>,
    displaced: u64,
    returned: u64,
    /// Displaced and returned pages in the trials since the guard closed; each trial weighs three
    /// quarters of the one after it.
    trials: (f64, f64),
}

impl ThrashGuard {
    /// Whether no page has challenged the list yet.
    fn is_untried(&self) -> bool {
        self.distance == 0.0
    }

    /// Whether too few pages have challenged the list to say anything of those that come back.
    pub fn is_ignorant(&self, sample: GuardSample) -> bool {
        self.challengers < sample.mean
    }

    /// Whether challengers displace the head of the active list, and not pages chosen at random.
    pub fn is_open(&self) -> bool {
        self.guard == Guard::Open
    }

    /// Whether every challenger is let in, in place of pages chosen at random.
    pub fn is_ajar(&self) -> bool {
        self.guard == Guard::Ajar
    }

    /// A page that had been active came back at `now`, `distance` after it was evicted.
    pub fn displaced_page_returned(&mut self, now: u64, distance: u64) {
        self.returned += u64::from(self.is_watched(now.saturating_sub(distance)));
    }

    /// Whether a page that is displaced at `then` belongs to the sample of this trial. At the head
    /// of the active list pages lie in the order in which they came, and pages of one kind lie
    /// together, so an open guard takes its sample at intervals.
    fn is_watched(&self, then: u64) -> bool {
        let within = then >= self.begin && self.until.is_none_or(|until| then < until);
        let late = || then >= self.begin + self.stretch / 2;
        within && (!self.is_open() || late() && (then - self.begin) % self.part >= self.part - self.part / WATCHED)
    }

    /// An active page is evicted.
    pub fn displaced(&mut self, now: u64, sample: GuardSample) {
        if self.is_untried() || !self.is_watched(now) {
            return;
        }
        self.displaced += 1;
        // A sample from one end of the list takes longer to be fair. A closed guard counts the
        // challengers that it lets in instead.
        let fair = match self.guard {
            Guard::Closed => false,
            Guard::Ajar => true,
            Guard::Open => now >= self.begin + self.stretch,
        };
        if fair && self.displaced >= sample.pages {
            self.until = Some(now + 1);
        }
    }

    /// An active page that was to be evicted was touched before it went: displaced, and back at
    /// once.
    pub fn displaced_page_touched(&mut self, now: u64, sample: GuardSample) {
        let before = self.displaced;
        self.displaced(now, sample);
        self.returned += self.displaced - before;
    }

    /// A page came back soon enough to challenge the active list. Returns whether it is let in.
    pub fn challenge(&mut self, now: u64, distance: u64, passing: Passing, sample: GuardSample) -> bool {
        let distance = distance.max(1) as f64;
        if self.is_untried() {
            self.distance = distance;
            self.begin(now, sample);
        }
        self.challengers += 1;
        let weight = 1.0 / self.challengers.min(sample.mean) as f64;
        self.spread += ((distance - self.distance).abs() - self.spread) * weight;
        self.distance += (distance - self.distance) * weight;
        self.judge(now, passing, sample);
        if self.guard != Guard::Closed {
            return true;
        }
        let probe =
            now >= self.begin && self.until.is_none() && (self.challengers / sample.block).is_multiple_of(PROBE);
        self.admitted += u64::from(probe);
        if probe && self.admitted >= sample.pages {
            // By then the displaced pages are evicted.
            self.until = Some(now + passing.staged + 1);
        }
        probe
    }

    /// Whether the active pages that are not in use are room enough for all challengers, by the
    /// trials since the guard closed.
    fn has_room(&mut self, sample: GuardSample) -> bool {
        if self.guard != Guard::Closed {
            self.trials = (0.0, 0.0);
            return false;
        }
        let (displaced, returned) = self.trials;
        self.trials = (displaced * 0.75 + self.displaced as f64, returned * 0.75 + self.returned as f64);
        let (displaced, returned) = self.trials;
        let share = returned / displaced;
        // Neighbours are in use together, so each block counts as one observation.
        let error = (share * (1.0 - share) * sample.block as f64 / displaced).sqrt();
        (1.0 - share - SURE * error) * sample.list as f64 >= self.distance
    }

    fn begin(&mut self, now: u64, sample: GuardSample) {
        (self.begin, self.part) = (now, (self.distance as u64 / WATCHES).max(WATCHED));
        self.stretch = sample.list / SPAN;
    }

    /// Ends a trial that has enough observations, and begins the next.
    fn judge(&mut self, now: u64, passing: Passing, sample: GuardSample) {
        let round = passing.round(self.distance);
        if self.until.is_none_or(|until| now < until + round + round / LATE) {
            return;
        }
        let was_open = self.is_open();
        if self.displaced >= MIN_BLOCKS / 2 {
            self.guard = self.verdict(sample);
        }
        // Pages that an open guard chose are still on their way out, and are no fair sample.
        let closes = was_open && !self.is_open();
        self.begin(if closes { now + passing.staged } else { now }, sample);
        (self.until, self.displaced, self.returned, self.admitted) = (None, 0, 0, 0);
    }

    fn verdict(&mut self, sample: GuardSample) -> Guard {
        let share = self.returned as f64 / self.displaced as f64;
        let opens = if self.is_open() { CLOSES } else { OPENS };
        match share {
            _ if self.has_room(sample) || share < opens => Guard::Open,
            _ if share < SWEEP && self.spread > SWEEP_SPREAD * self.distance => Guard::Ajar,
            _ => Guard::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSING: Passing = Passing { inactive: 2000, staged: 600 };

    /// A sweep whose pages come back `distance` after they went, until `end`.
    fn sweep(guard: &mut ThrashGuard, from: u64, end: u64, distance: u64, sample: GuardSample) {
        for now in from..end {
            if guard.challenge(now, distance, PASSING, sample) {
                guard.displaced(now, sample);
            }
        }
    }

    /// In a sweep all displaced pages come back, a round after they went. Neighbours that were
    /// displaced together come back together and sooner: they do not end the trial before that.
    #[test]
    fn neighbours_that_come_back_together_end_no_trial() {
        let (mut guard, sample) = (ThrashGuard::default(), GuardSample::of(16_384));
        sweep(&mut guard, 20_000, 32_000, 12_000, sample);
        for _ in 0..64 {
            guard.challenge(32_000, 60, PASSING, sample);
        }
        sweep(&mut guard, 32_001, 34_000, 12_000, sample);
        assert!(!guard.is_open() && !guard.is_ajar(), "{guard:?}");
        assert!(guard.displaced > 0 && guard.until.is_some(), "no trial was under way: {guard:?}");
    }

    /// A burst of pages that come back at the very start says nothing yet.
    #[test]
    fn a_few_challengers_leave_the_guard_ignorant() {
        let (mut guard, sample) = (ThrashGuard::default(), GuardSample::of(16_384));
        assert!(guard.is_ignorant(sample));
        sweep(&mut guard, 1000, 1128, 400, sample);
        assert!(guard.is_ignorant(sample), "{guard:?}");
        sweep(&mut guard, 1128, 2000, 400, sample);
        assert!(!guard.is_ignorant(sample), "{guard:?}");
    }
}
