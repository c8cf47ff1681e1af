//! Whether pages that come back soon may take the place of active ones: the thrash guard.
//!
//! A page that refaults within a distance that the active list could have spared it *challenges*
//! that list (Weiner 2013). To let every challenger in is right when the working set changes, and
//! ruinous when a program sweeps over more than fits: then each page that is let in displaces one
//! that is needed just as soon, and everything misses, where a part that is held would be hit in
//! each round (DIP and BIP, Qureshi et al., ISCA 2007).
//!
//! The two are told apart by what happened to those displaced. A replacement was *wrong* if the
//! displaced page came back no later than the challengers do: the memory that was given away was
//! worth as much as what it was given for. So the guard is
//!
//! - **closed** at first: for the time of a trial one challenger in [`PROBE`] is let in, against
//!   pages of the active list chosen at random, so that those displaced are a fair sample of what
//!   is held; both by blocks of neighbours, since holes in runs cost more than they tell. It opens
//!   when few of them come back, or when as much of what is held is not in use as all challengers
//!   together would need;
//! - **ajar** when of those displaced many came back, but not nearly all, and challengers come
//!   after very different distances, so that it is no sweep: what is held and what comes are of
//!   much the same worth, and neither is to be kept for long. Each challenger is let in, against
//!   random pages, which forgets what is not used any more (phases of a program);
//! - **open**: each challenger is let in, against the head of the active list.
//!
//! An open guard displaces half of the list before it is judged, and by the second half of that:
//! pages lie there in the order in which they came, and the head may be what was left of the new
//! set, so that it would judge the new set by itself.
//!
//! In a trial some of those displaced are watched for as long as a challenger takes from its
//! arrival to its return: the time to pass the inactive list, and its refault distance. In a sweep
//! all are back by then. The guard opens when few of them are (what is held is not in use), an open
//! one closes when half of them or more are, and four fifths are too many to stand ajar. A stream
//! thus wears down what is held by its probes, but slowly: the sample is small, and while it is
//! watched a closed guard lets nobody in.
//!
//! Part of a new set is often held already, so that half of a sample comes back although there is
//! room: what is not in use is *room*, and the refault distance is how much of it a challenger
//! needs. So a closed guard opens as well if the share of the sample that stayed away, less two and
//! a half standard errors, is that much of the list. A sweep over more than fits has no such room.
//! Samples of trials in a row are taken together, the older ones for less.
//!
//! Time is the space's count of evictions, so nothing happens while nothing is evicted. If the
//! guess is wrong: closed for nothing it costs the misses until a trial has ended, one round and a
//! half over the new set; open for nothing, as long, and the part that was held is lost.

/// One challenger in so many is let in while the guard is closed.
const PROBE: u64 = 8;
/// So many blocks of those displaced are watched, at least and at most. With half as many of a long
/// list one trial in some hundreds judges wrongly.
const MIN_BLOCKS: u64 = 14;
const MAX_BLOCKS: u64 = 64;
/// One page of the list in so many, between those.
const SAMPLED: u64 = 400;
/// Most neighbours that are treated alike.
const MAX_BLOCK: u64 = 8;
/// An open guard is judged when one part in so many of the list was displaced, by the second half
/// of those: it
const SPAN: u64 = 2;
/// watches so many parts of the distance, the last one in so many of each.
const WATCHES: u64 = 16;
const WATCHED: u64 = 4;
/// They are waited for a little longer than a round takes: by one part in so many.
const LATE: u64 = 64;
/// If a smaller share of those displaced comes back, the guard opens.
const OPENS: f64 = 0.35;
/// If this share or more comes back, it does not stay open.
const CLOSES: f64 = 0.5;
/// Room is what a sample says less so many standard errors.
const SURE: f64 = 2.5;
/// If this share or more comes back, it is closed.
const SWEEP: f64 = 0.8;
/// Distances of challengers that differ less from their mean than this part of it, on average, are
/// those of a sweep.
const SWEEP_SPREAD: f64 = 0.2;

/// The sample of a trial.
#[derive(Clone, Copy, Debug)]
pub struct GuardSample {
    /// So many in a row are treated alike.
    pub block: u64,
    /// So many are watched.
    pages: u64,
    /// Of so many.
    list: u64,
}

impl GuardSample {
    /// Of a list of so many pages: one in [`SAMPLED`], where that is enough blocks and not too
    /// many.
    pub fn of(active: u64) -> Self {
        let block = (active / 16_384).clamp(1, MAX_BLOCK);
        Self { block, pages: block * (active / SAMPLED).clamp(MIN_BLOCKS, MAX_BLOCKS), list: active }
    }
}

/// Pages that are neither active nor evicted.
#[derive(Clone, Copy, Debug)]
pub struct Passing {
    /// On the inactive list.
    pub inactive: u64,
    /// Chosen to go, and not gone.
    pub staged: u64,
}

impl Passing {
    /// From one touch of a page of a sweep to the next so many evictions pass, if it is evicted and
    /// comes back after `distance`.
    fn round(self, distance: f64) -> u64 {
        ((self.inactive + self.staged) as f64 + distance) as u64
    }
}

/// Who is let in.
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
    /// Mean difference from it.
    spread: f64,
    challengers: u64,
    /// Let in during this trial.
    admitted: u64,
    begin: u64,
    /// A part of the distance as it was then.
    part: u64,
    /// So long an open guard displaces before it is judged.
    stretch: u64,
    /// Those displaced later are not watched; not known yet before enough were.
    until: Option<u64>,
    displaced: u64,
    returned: u64,
    /// Displaced and returned in trials since the guard closed, those before the last for three
    /// quarters of what came after.
    trials: (f64, f64),
}

impl ThrashGuard {
    /// Whether nobody has challenged the list yet.
    pub fn is_untried(&self) -> bool {
        self.distance == 0.0
    }

    /// Whether challengers displace the head of the active list, and not pages chosen at random.
    pub fn is_open(&self) -> bool {
        self.guard == Guard::Open
    }

    /// Whether every challenger is let in against pages chosen at random.
    pub fn is_ajar(&self) -> bool {
        self.guard == Guard::Ajar
    }

    /// A page that had been active came back at `now`, `distance` after it was evicted.
    pub fn displaced_page_returned(&mut self, now: u64, distance: u64) {
        self.returned += u64::from(self.is_watched(now.saturating_sub(distance)));
    }

    /// Whether a page that is displaced at `then` belongs to the sample of this trial. At the head
    /// of the active list pages lie in the order in which they came, those of one kind together: an
    /// open guard watches some now and some then.
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
        // From one end of the list it takes longer to a fair sample. A closed guard has counted
        // whom it let in.
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

    /// A page came back soon enough to challenge the active list. Whether it is let in.
    pub fn challenge(&mut self, now: u64, distance: u64, passing: Passing, sample: GuardSample) -> bool {
        let distance = distance.max(1) as f64;
        if self.is_untried() {
            self.distance = distance;
            self.begin(now, sample);
        }
        self.spread += ((distance - self.distance).abs() - self.spread) / 64.0;
        self.distance += (distance - self.distance) / 64.0;
        self.judge(now, passing, sample);
        self.challengers += 1;
        if self.guard != Guard::Closed {
            return true;
        }
        let probe =
            now >= self.begin && self.until.is_none() && (self.challengers / sample.block).is_multiple_of(PROBE);
        self.admitted += u64::from(probe);
        if probe && self.admitted >= sample.pages {
            // By then those displaced are evicted.
            self.until = Some(now + passing.staged + 1);
        }
        probe
    }

    /// Whether what is held and not in use is room enough for all challengers, by the trials since
    /// the guard closed.
    fn has_room(&mut self, sample: GuardSample) -> bool {
        if self.guard != Guard::Closed {
            self.trials = (0.0, 0.0);
            return false;
        }
        let (displaced, returned) = self.trials;
        self.trials = (displaced * 0.75 + self.displaced as f64, returned * 0.75 + self.returned as f64);
        let (displaced, returned) = self.trials;
        let share = returned / displaced;
        // Neighbours are in use together: each block tells one thing.
        let error = (share * (1.0 - share) * sample.block as f64 / displaced).sqrt();
        (1.0 - share - SURE * error) * sample.list as f64 >= self.distance
    }

    fn begin(&mut self, now: u64, sample: GuardSample) {
        (self.begin, self.part) = (now, (self.distance as u64 / WATCHES).max(WATCHED));
        self.stretch = sample.list / SPAN;
    }

    /// Ends a trial of which enough is known, and begins the next.
    fn judge(&mut self, now: u64, passing: Passing, sample: GuardSample) {
        let round = passing.round(self.distance);
        if self.until.is_none_or(|until| now < until + round + round / LATE) {
            return;
        }
        let was_open = self.is_open();
        if self.displaced >= MIN_BLOCKS / 2 {
            self.guard = self.verdict(sample);
        }
        // Pages that an open guard chose are still on their way out, and no fair sample.
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
