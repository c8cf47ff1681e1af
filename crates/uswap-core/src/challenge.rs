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
//! - **open**: each challenger is let in, against the head of the active list.
//!
//! In a trial those displaced during a quarter of the challengers' distance are watched for one and a quarter of it: in a
//! sweep they may come back all at its end. A closed guard opens when few of them came back (what is held is not in use);
//! otherwise it pauses, longer each time it is told the same, so that a stream cannot wear down by its probes what is
//! held. An open one closes when half of them or more came back.
//!
//! Time is the space's count of evictions, so nothing happens while nothing is evicted. If the guess is wrong: closed for
//! nothing it costs the misses until a trial has ended, one round and a half over the new set; open for nothing, as long, and
//! the part that was held is lost.

/// One challenger in so many is let in while the guard is closed.
const PROBE: u64 = 16;
/// As many are watched at least.
const SAMPLE: u64 = 8;
/// If a smaller share of those displaced comes back, the guard opens.
const OPENS: f64 = 0.4;
/// If this share or more comes back, it closes.
const CLOSES: f64 = 0.5;
/// How much later than the challengers a displaced page may come back and still count as needed as soon.
const AS_SOON: f64 = 1.25;
/// Longest pause between closed trials, in halves of the challengers' distance.
const LONGEST_PAUSE: u32 = 7;

/// The guard of one space. All times are evictions of that space.
#[derive(Clone, Debug, Default)]
pub struct Challenge {
    open: bool,
    /// Mean refault distance of challengers; 0 before the first.
    distance: f64,
    challengers: u64,
    pause: u32,
    begin: u64,
    /// Those displaced later are not watched; not known yet before enough were.
    until: Option<u64>,
    displaced: u64,
    returned: u64,
}

impl Challenge {
    /// Whether every challenger is let in.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// A page that had been active came back at `now`, `distance` after it was evicted.
    pub fn displaced_page_returned(&mut self, now: u64, distance: u64) {
        let evicted = now.saturating_sub(distance);
        let watched = evicted >= self.begin && self.until.is_none_or(|until| evicted < until);
        if watched && distance as f64 <= self.horizon() {
            self.returned += 1;
        }
    }

    /// An active page is evicted.
    pub fn displaced(&mut self, now: u64) {
        if self.distance == 0.0 || now < self.begin || self.until.is_some() {
            return;
        }
        self.displaced += 1;
        if self.displaced >= SAMPLE && now as f64 >= self.begin as f64 + self.distance / 4.0 {
            self.until = Some(now + 1);
        }
    }

    /// A page came back soon enough to challenge the active list. Whether it is let in;
    /// `block`: so many in a row are treated alike.
    pub fn challenge(&mut self, now: u64, distance: u64, block: u64) -> bool {
        let distance = distance.max(1) as f64;
        if self.distance == 0.0 {
            (self.distance, self.begin) = (distance, now);
        }
        self.distance += (distance - self.distance) / 64.0;
        self.judge(now);
        self.challengers += 1;
        let sampling = now >= self.begin && self.until.is_none();
        self.open || (sampling && (self.challengers / block).is_multiple_of(PROBE))
    }

    /// Ends a trial of which enough is known, and begins the next.
    fn judge(&mut self, now: u64) {
        if self.until.is_none_or(|until| (now as f64) < until as f64 + self.horizon()) {
            return;
        }
        let was_open = self.open;
        let share = self.returned as f64 / self.displaced as f64;
        self.open = share < if was_open { CLOSES } else { OPENS };
        self.pause = if self.open || was_open { 0 } else { (2 * self.pause + 1).min(LONGEST_PAUSE) };
        self.begin = now + self.distance as u64 / 2 * u64::from(self.pause);
        (self.until, self.displaced, self.returned) = (None, 0, 0);
    }

    fn horizon(&self) -> f64 {
        self.distance * AS_SOON
    }
}
