//! Whether pages that come back soon may take the place of active ones: the thrash guard.
//!
//! A page that refaults within a distance that the active list could have spared it *challenges* that list (Weiner
//! 2013). To let every challenger in is right when the working set changes, and ruinous when a program sweeps over
//! more than fits: then each page that is let in displaces one that is needed just as soon, and everything misses,
//! where a part that is held would be hit in each round (DIP and BIP, Qureshi et al., ISCA 2007).
//!
//! The two are told apart by what happened to those displaced. A replacement was *wrong* if the displaced page came back
//! no later than the challengers do: the memory that was given away was worth as much as what it was given for. So
//! the guard is
//!
//! - **closed** at first: for the time of a trial one challenger in [`PROBE`] is let in, against pages of the active list
//!   chosen at random, so that those displaced are a fair sample of what is held; both by blocks of neighbours, since
//!   holes in runs cost more than they tell;
//! - **ajar** when of those displaced many came back, but not nearly all, and challengers come after very different distances,
//!   so that it is no sweep: what is held and what comes are of much the same worth, and neither is to be kept for long.
//!   Each challenger is let in, against random pages, which forgets what is not used any more (phases of a program);
//! - **open**: each challenger is let in, against the head of the active list.
//!
//! An open guard takes its sample from the whole of a stretch of the list and not from its head: pages lie there in the order in which they
//! came, and if those of the new set happened to be first it would judge the new set by itself.
//!
//! In a trial some of those displaced are watched for as long as a challenger takes from its arrival to its return: the time to
//! pass the inactive list, and its refault distance. In a sweep all are back by then. The guard opens when few of them are
//! (what is held is not in use), an open one closes when half of them or more are, and four fifths are too many to stand
//! ajar. A stream thus wears down what is held by its probes, but slowly: the sample is small, and while it is
//! watched a closed guard lets nobody in.
//!
//! Time is the space's count of evictions, so nothing happens while nothing is evicted. If the guess is wrong: closed for
//! nothing it costs the misses until a trial has ended, one round and a half over the new set; open for nothing, as long, and
//! the part that was held is lost.

/// One challenger in so many is let in while the guard is closed.
const PROBE: u64 = 8;
/// So many blocks of those displaced are watched, at least and at most. With half as many of a long list one trial in some hundreds judges wrongly.
const LEAST_BLOCKS: u64 = 16;
const MOST_BLOCKS: u64 = 32;
/// Most neighbours that are treated alike.
const MOST_BLOCK: u64 = 8;
/// An open guard watches so many parts of the distance, the last one in so many of each,
const WATCHES: u64 = 16;
const WATCHED: u64 = 4;
/// over this part of it at least.
const SPAN: f64 = 0.5;
/// If a smaller share of those displaced comes back, the guard opens.
const OPENS: f64 = 0.35;
/// If this share or more comes back, it does not stay open.
const CLOSES: f64 = 0.5;
/// If this share or more comes back, it is closed.
const SWEEP: f64 = 0.8;
/// Distances of challengers that differ less from their mean than this part of it, on average, are those of a sweep.
const SWEEP_SPREAD: f64 = 0.2;

/// The sample of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// So many in a row are treated alike.
    pub block: u64,
    /// So many are watched.
    pages: u64,
}

impl Sample {
    /// Of a list of so many pages: a five-hundredth, where that is enough blocks and not too many.
    pub fn of(active: u64) -> Self {
        let block = (active / 16_384).clamp(1, MOST_BLOCK);
        Self { block, pages: block * (active / 512).clamp(LEAST_BLOCKS, MOST_BLOCKS) }
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
pub struct Challenge {
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
    /// Those displaced later are not watched; not known yet before enough were.
    until: Option<u64>,
    displaced: u64,
    returned: u64,
}

impl Challenge {
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

    /// Whether a page that is displaced at `then` belongs to the sample of this trial. At the head of the active list pages lie in the
    /// order in which they came, those of one kind together: an open guard watches some now and some then.
    fn is_watched(&self, then: u64) -> bool {
        let within = then >= self.begin && self.until.is_none_or(|until| then < until);
        within && (!self.is_open() || (then - self.begin) % self.part >= self.part - self.part / WATCHED)
    }

    /// An active page is evicted.
    pub fn displaced(&mut self, now: u64, sample: Sample) {
        if self.is_untried() || !self.is_watched(now) {
            return;
        }
        self.displaced += 1;
        // From one end of the list it takes longer to a fair sample. A closed guard has counted whom it let in.
        let fair = match self.guard {
            Guard::Closed => false,
            Guard::Ajar => true,
            Guard::Open => now as f64 >= self.begin as f64 + self.distance * SPAN,
        };
        if fair && self.displaced >= sample.pages {
            self.until = Some(now + 1);
        }
    }

    /// An active page that was to be evicted was touched before it went: displaced, and back at once.
    pub fn displaced_page_touched(&mut self, now: u64, sample: Sample) {
        let before = self.displaced;
        self.displaced(now, sample);
        self.returned += self.displaced - before;
    }

    /// A page came back soon enough to challenge the active list. Whether it is let in. `passing`: pages on their way
    /// out.
    pub fn challenge(&mut self, now: u64, distance: u64, passing: u64, sample: Sample) -> bool {
        let distance = distance.max(1) as f64;
        if self.is_untried() {
            self.distance = distance;
            self.begin(now);
        }
        self.spread += ((distance - self.distance).abs() - self.spread) / 64.0;
        self.distance += (distance - self.distance) / 64.0;
        self.judge(now, passing);
        self.challengers += 1;
        if self.guard != Guard::Closed {
            return true;
        }
        let probe = self.until.is_none() && (self.challengers / sample.block).is_multiple_of(PROBE);
        self.admitted += u64::from(probe);
        if probe && self.admitted >= sample.pages {
            // By then those displaced are evicted: a quarter of those on their way out lie staged.
            self.until = Some(now + passing / 4);
        }
        probe
    }

    fn begin(&mut self, now: u64) {
        (self.begin, self.part) = (now, (self.distance as u64 / WATCHES).max(WATCHED));
    }

    /// Ends a trial of which enough is known, and begins the next.
    fn judge(&mut self, now: u64, passing: u64) {
        if self.until.is_none_or(|until| now < until + self.distance as u64 + passing) {
            return;
        }
        if self.displaced >= LEAST_BLOCKS / 2 {
            let share = self.returned as f64 / self.displaced as f64;
            let opens = if self.is_open() { CLOSES } else { OPENS };
            self.guard = match share {
                _ if share < opens => Guard::Open,
                _ if share < SWEEP && self.spread > SWEEP_SPREAD * self.distance => Guard::Ajar,
                _ => Guard::Closed,
            };
        }
        self.begin(now);
        (self.until, self.displaced, self.returned, self.admitted) = (None, 0, 0, 0);
    }
}
