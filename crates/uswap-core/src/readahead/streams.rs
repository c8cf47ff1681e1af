//! Readahead by streams: for each stream of faults decides how many pages to bring with the one
//! that faulted, and how far apart.
//!
//! A fault at the place where the last batch of some stream ended proves the stream: its window
//! doubles, from the second proof on. A fault elsewhere starts a stream anew with a window of one.
//! The first proof brings no further pages yet: a record that crosses the border of a page touches
//! two neighbours and no third, and in random access to more than fits in memory every needless
//! page costs a fault elsewhere (measured: a quarter of all time). Runs of four pages take three
//! faults either way. Several streams are followed at the same time, so that threads that each walk
//! their own array do not spoil each other's windows (linux keeps one word per mapping for the same
//! reason, `vma->swap_readahead_info`).
//!
//! A new stream is expected to go on with the next page, unless most of the last faults that
//! belonged to no stream were equally far apart: then that distance is its stride, which may be
//! negative (a walk along the columns of a matrix, or backwards). The vote is taken as in Leap (Al
//! Maruf and Chowdhury, USENIX ATC 2020, section 4.1): the majority of a window of differences,
//! found by Boyer and Moore's algorithm and then counted. If the guess is wrong, at most one
//! needless page is brought, and the stream is not proven.
//!
//! If pages take long to arrive, one window is not enough: while the program consumes it, the next
//! ones must be on their way, as many pages as it consumes in one round trip to the device. A
//! proven stream therefore has a *lead*: pages that are requested before the program touches them.
//! Each time the program reaches pages of the lead, the lead is filled up again and doubles, up to
//! the length that the device's round trip makes worthwhile; each page of it that the program never
//! touched halves it.
//!
//! If a stream has had only one fault, a fault on the page right before it turns the stream round:
//! merges of sorted runs walk backwards along three arrays at a time, with other faults in between,
//! where no distance has a majority.
//!
//! A program that walks the same pages again leaves the streams of its last walk behind, which
//! claim pages that were evicted long ago. So if several streams claim a page, the stream that was
//! followed last counts, and two streams that would go on at the same page become one.
//!
//! ```text
//!   ... consumed ...| window |  lead: asked for, not touched   |
//!                   ^ fault: asks for what follows here ───────^ next
//! ```

/// Streams that are followed at the same time.
const STREAMS: usize = 16;
/// Of these, the number reserved for streams that are not proven yet.
const UNPROVEN: usize = 6;
/// Number of faults whose distances vote on the stride of a new stream, and number of distances
/// that must be equal.
const VOTERS: usize = 9;
const MAJORITY: usize = 5;
/// Pages further apart than this (in bytes) do not belong to one stream.
const MAX_STRIDE: i64 = 4 << 20;
const PAGE: i64 = crate::PAGE_SIZE as i64;
/// The most pages of a lead, whatever the device.
const LONGEST_LEAD: u32 = 1 << 16;

#[derive(Clone, Copy, Default, Debug)]
struct FaultStream {
    next: u64,
    stride: i64,
    /// Pages that the stream brought last; 0: the stream was never proven.
    window: u32,
    used: u64,
    /// Pages that are to be requested ahead of the program; 0 while the stream is not proven.
    lead: u32,
    /// The last page of the stream that was touched, as far as is known.
    seen: u64,
}

impl FaultStream {
    /// Pages from `address` to where the stream goes on, if the stream has requested `address` and
    /// the program was not seen beyond it.
    fn behind(&self, address: u64) -> Option<i64> {
        let (left, all) = (self.next.wrapping_sub(address) as i64, self.next.wrapping_sub(self.seen) as i64);
        let is_page = self.used != 0 && left % self.stride == 0;
        (is_page && (1..=all / self.stride).contains(&(left / self.stride))).then(|| left / self.stride)
    }

    fn lengthen_lead(&mut self) {
        self.lead = (self.lead.max(self.window) * 2).min(LONGEST_LEAD);
    }
}

/// The window of a stream that was proven once more.
fn grown(window: u32) -> u32 {
    (window * 2).max(1)
}

/// Pages of a stream's lead that are to be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The first.
    pub from: u64,
    stream: usize,
    /// The number of pages, and their distance.
    pub window: Window,
    /// Pages that were requested and that the program has not reached yet.
    pub ahead: u32,
}

/// The pages to bring: `pages` of them from the faulting one on, each `stride` bytes after the one
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// 1 or more, the faulting page included.
    pub pages: u32,
    /// A multiple of the page size, not 0.
    pub stride: i64,
}

impl Window {
    /// Whether the pages are neighbours in rising order.
    pub fn is_run(&self) -> bool {
        self.stride == PAGE
    }
}

/// The streams of one space.
#[derive(Clone, Default, Debug)]
pub struct Streams {
    streams: [FaultStream; STREAMS],
    clock: u64,
    /// The stream that was followed last.
    last: usize,
    /// The last faults that belonged to no stream, oldest first. Only kept if strides are wanted.
    voters: Option<[u64; VOTERS]>,
}

impl Streams {
    /// Streams that may have strides. Streams made by `default` go from page to page.
    pub fn with_strides() -> Self {
        Self { voters: Some([0; VOTERS]), ..Self::default() }
    }

    /// The window (1 to `most` pages) for a fault on the page at `address`.
    pub fn window(&mut self, address: u64, most: u32) -> Window {
        self.go_on(address, most).unwrap_or_else(|| self.begin(address, most, 0))
    }

    /// The window for a fault on the page at `address`, if the fault belongs to a stream.
    pub fn go_on(&mut self, address: u64, most: u32) -> Option<Window> {
        let index = self.going_on_at(address)?;
        self.follow(index);
        let stream = &mut self.streams[index];
        stream.window = grown(stream.window).min(most.max(1));
        // The program has reached the end of the lead, which was too short.
        if stream.lead > 0 {
            stream.lengthen_lead();
        }
        stream.seen = address;
        Some(Window { pages: stream.window, stride: stream.stride })
    }

    /// Begins a stream at `address` with `first` pages (0: one page, and the stream is not proven),
    /// in place of the stream that was left longest ago.
    pub fn begin(&mut self, address: u64, most: u32, first: u32) -> Window {
        let guessed = self.vote(address).filter(|stride| *stride != PAGE);
        if let Some(window) = self.turn_round(address) {
            return window;
        }
        let (window, stride) = guessed.map_or((first.min(most), PAGE), |stride| (2.min(most), stride));
        let oldest = self.replaceable();
        let next = address.wrapping_add_signed(stride);
        self.streams[oldest] = FaultStream { next, stride, window, used: 0, lead: 0, seen: address };
        self.follow(oldest);
        Window { pages: window.max(1), stride }
    }

    /// The stream whose place a new one takes: among the unproven streams, while there are enough
    /// of them, the one left longest ago. Otherwise random faults would drive out the proven
    /// streams.
    fn replaceable(&self) -> usize {
        let unproven = |index: &usize| self.streams[*index].window <= 1;
        let enough = (0..STREAMS).filter(unproven).count() >= UNPROVEN;
        let candidates = (0..STREAMS).filter(|index| !enough || unproven(index));
        candidates.min_by_key(|index| self.streams[*index].used).expect("there are streams")
    }

    /// A fault right before the page that began a stream which is not proven yet is that stream's
    /// first proof, in the other direction.
    fn turn_round(&mut self, address: u64) -> Option<Window> {
        self.voters?;
        let fits = |stream: &FaultStream| {
            stream.used != 0
                && stream.window == 0
                && stream.stride == PAGE
                && stream.seen == address.wrapping_add(PAGE as u64)
        };
        let index = (0..STREAMS).find(|index| fits(&self.streams[*index]))?;
        let next = address.wrapping_add_signed(-PAGE);
        self.streams[index] = FaultStream { next, stride: -PAGE, window: 1, used: 0, lead: 0, seen: address };
        self.follow(index);
        Some(Window { pages: 1, stride: -PAGE })
    }

    /// An estimate of the window that a fault at `address` would get; does not count as a fault.
    pub fn forecast(&self, address: u64, most: u32) -> u32 {
        self.going_on_at(address).map_or(1, |index| grown(self.streams[index].window).min(most.max(1)))
    }

    /// Pages from `address` on, at most `most`, that a stream has already requested. The page at
    /// `address` was brought and has gone again, or does not lie on the device beside the others;
    /// its fault tells nothing new about the stream.
    pub fn passed(&self, address: u64, most: u32) -> Option<Window> {
        let (index, left) = self.having(address)?;
        let is_newer = |other: usize| self.streams[other].used > self.streams[index].used;
        let is_left_over = self.going_on_at(address).is_some_and(is_newer);
        let window = Window { pages: (left as u32).clamp(1, most.max(1)), stride: self.streams[index].stride };
        (!is_left_over).then_some(window)
    }

    /// The program has reached `address`, which was requested before. Returns the pages to request
    /// now, so that the stream keeps a lead of at most `most` pages. `None`: no stream has that
    /// page, or the lead is long enough.
    ///
    /// [`advance_lead`](Self::advance_lead) is to be told how many of them were requested.
    pub fn reached(&mut self, address: u64, most: u32) -> Option<Lead> {
        let (index, left) = self.having(address)?;
        self.clock += 1;
        let stream = &mut self.streams[index];
        stream.used = self.clock;
        // Only a stream that was proven twice has a lead: one right guess can be luck.
        if stream.window < 4 {
            return None;
        }
        if stream.seen != address || stream.lead == 0 {
            stream.lengthen_lead();
        }
        stream.lead = stream.lead.min(most);
        stream.seen = address;
        let missing = i64::from(stream.lead) - left;
        let worth_it = missing >= i64::from(stream.window.min(stream.lead / 3).max(1));
        let window = Window { pages: missing.max(0) as u32, stride: stream.stride };
        let ahead = u32::try_from(left).unwrap_or(0);
        worth_it.then_some(Lead { from: stream.next, stream: index, window, ahead })
    }

    /// Notes that the pages of a lead before `next` were requested.
    pub fn advance_lead(&mut self, lead: Lead, next: u64) {
        if self.streams[lead.stream].next == lead.from {
            self.go_on_at(lead.stream, next);
        }
    }

    /// The program did not touch the page, which was requested ahead. That was long ago, so it was
    /// the oldest of the streams that have the page.
    pub fn missed(&mut self, address: u64) {
        let has = self.streams.iter_mut().filter(|stream| stream.behind(address).is_some());
        if let Some(stream) = has.min_by_key(|stream| stream.used) {
            (stream.window, stream.lead) = ((stream.window / 2).max(1), stream.lead / 2);
        }
    }

    /// The stream that was followed last goes on at `next`, behind the pages that were brought.
    pub fn advance(&mut self, next: u64) {
        self.go_on_at(self.last, next);
    }

    /// The stream whose next fault is expected at `address`.
    fn going_on_at(&self, address: u64) -> Option<usize> {
        let fits = |index: &usize| self.streams[*index].used != 0 && self.streams[*index].next == address;
        (0..STREAMS).filter(fits).max_by_key(|index| self.streams[*index].used)
    }

    /// The stream that has requested `address`, and the number of its steps that are left from
    /// there on.
    fn having(&self, address: u64) -> Option<(usize, i64)> {
        let known = self.streams.iter().enumerate();
        let having = known.filter_map(|(index, stream)| stream.behind(address).map(|left| (index, left)));
        having.max_by_key(|(index, _)| self.streams[*index].used)
    }

    fn follow(&mut self, index: usize) {
        self.clock += 1;
        self.streams[index].used = self.clock;
        self.last = index;
    }

    /// Lets a stream go on at `next`, and forgets others that go on at the same page with the same
    /// stride.
    fn go_on_at(&mut self, index: usize, next: u64) {
        let stride = self.streams[index].stride;
        for (other, stream) in self.streams.iter_mut().enumerate() {
            if other == index {
                stream.next = next;
            } else if stream.next == next && stream.stride == stride {
                *stream = FaultStream::default();
            }
        }
    }

    /// The distance that most of the last faults had that belonged to no stream, this one included.
    fn vote(&mut self, address: u64) -> Option<i64> {
        let voters = self.voters.as_mut()?;
        voters.rotate_left(1);
        voters[VOTERS - 1] = address;
        let distances = voters.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) as i64);
        let (mut candidate, mut lead) = (0, 0);
        for distance in distances.clone() {
            match lead {
                0 => (candidate, lead) = (distance, 1),
                _ if distance == candidate => lead += 1,
                _ => lead -= 1,
            }
        }
        let votes = distances.filter(|distance| *distance == candidate).count();
        (votes >= MAJORITY && candidate != 0 && candidate.abs() <= MAX_STRIDE).then_some(candidate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// Faults as an engine would see them that brings each window completely; returns their number.
    fn walk(streams: &mut Streams, pages: impl Iterator<Item = u64>, most: u32) -> usize {
        let mut here = std::collections::HashSet::new();
        let mut faults = 0;
        for page in pages {
            if here.insert(page) {
                faults += 1;
                let window = streams.window(page, most);
                let end = |n: u32| page.wrapping_add_signed(window.stride * i64::from(n));
                here.extend((1..window.pages).map(end));
                streams.advance(end(window.pages));
            }
        }
        faults
    }

    #[test]
    fn two_interleaved_runs_both_grow_and_a_random_fault_gets_one_page() {
        for mut streams in [Streams::default(), Streams::with_strides()] {
            let (mut a, mut b) = (0x10_0000, 0x9000_0000);
            let mut last = (0, 0);
            for _ in 0..7 {
                let window = streams.window(a, 32).pages;
                a += u64::from(window) * PAGE;
                streams.advance(a);
                let other = streams.window(b, 8).pages;
                b += u64::from(other) * PAGE;
                streams.advance(b);
                last = (window, other);
                assert_eq!(streams.window(0x7000_0000_0000 + a * 3, 32), Window { pages: 1, stride: 4096 });
            }
            assert_eq!(last, (32, 8));
        }
    }

    #[test]
    fn strides_are_found_in_both_directions() {
        for stride in [16 * 4096i64, -4096, -7 * 4096, 2 * 4096] {
            let start = 0x7000_0000_0000u64;
            let pages = || (0..4096).map(move |n| start.wrapping_add_signed(n * stride));
            let faults = walk(&mut Streams::with_strides(), pages(), 32);
            assert!(faults < 4096 / 32 + 20, "stride {stride}: {faults} faults");
            assert_eq!(walk(&mut Streams::default(), pages(), 32), 4096, "not asked for");
        }
    }

    #[test]
    fn a_stride_that_now_and_then_is_another_is_still_found() {
        let pages = (0..1000u64).map(|n| 0x10_0000 + n * 5 * PAGE + n / 4 * PAGE);
        assert!(walk(&mut Streams::with_strides(), pages, 32) < 750);
    }

    #[test]
    fn interleaved_walks_backwards_are_followed() {
        let mut streams = Streams::with_strides();
        let mut x = 88_172_645_463_325_252u64;
        let pages = (0..4096u64).flat_map(|n| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            [0x7000_0000_0000 - n * PAGE, 0x7100_0000_0000 - n * PAGE, 0x7200_0000_0000 - n * PAGE, (x >> 20) * PAGE]
        });
        let faults = walk(&mut streams, pages.collect::<Vec<_>>().into_iter(), 32) - 4096;
        assert!(faults < 3 * (4096 / 32 + 20), "{faults} faults beside those at random");
    }

    #[test]
    fn random_faults_bring_nothing_along() {
        let mut streams = Streams::with_strides();
        let mut x = 88_172_645_463_325_252u64;
        for _ in 0..10_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            assert_eq!(streams.window((x >> 20) * PAGE, 32).pages, 1);
        }
    }

    /// A program walks pages that arrive in blocks, one round trip after they were requested.
    /// Counts how often it finds that the next page was not even requested.
    fn stalls(most: u32, pages: u64) -> (u64, u32) {
        let (mut streams, mut asked, mut stalls, mut lead) = (Streams::default(), 0u64, 0, 0);
        for page in 0..pages {
            let address = page * PAGE;
            if page >= asked {
                stalls += 1;
                asked = page + u64::from(streams.window(address, 64).pages);
                streams.advance(asked * PAGE);
            }
            // The first touch of each block is seen.
            if page % 64 == 0
                && let Some(more) = streams.reached(address, most)
            {
                assert_eq!(more.from, asked * PAGE);
                asked += u64::from(more.window.pages);
                lead = lead.max((asked - page) as u32);
                streams.advance_lead(more, asked * PAGE);
            }
        }
        (stalls, lead)
    }

    #[test]
    fn a_proven_stream_is_never_without_a_lead() {
        let (stalled, lead) = stalls(1024, 100_000);
        assert!(stalled < 12, "{stalled} stalls");
        assert!((900..=1024).contains(&lead), "{lead} pages ahead");
    }

    #[test]
    fn a_fault_inside_what_was_asked_for_says_nothing_new() {
        let mut streams = Streams::default();
        let mut at = 0;
        for _ in 0..6 {
            at = at.max(PAGE) + u64::from(streams.window(at.max(PAGE), 16).pages) * PAGE;
            streams.advance(at);
        }
        let inside = at - 6 * PAGE;
        assert_eq!(streams.passed(inside, 32), Some(Window { pages: 6, stride: 4096 }));
        assert_eq!(streams.passed(inside, 4), Some(Window { pages: 4, stride: 4096 }));
        assert_eq!((streams.passed(at, 32), streams.passed(at + PAGE, 32)), (None, None));
        assert_eq!(streams.window(at, 16).pages, 16, "the stream goes on");
    }

    /// Each fault hits the first page that was not requested.
    #[test]
    fn a_lead_that_is_always_outrun_grows() {
        let (mut streams, mut at, mut asked) = (Streams::default(), 0, 0);
        for _ in 0..12 {
            let window = streams.window(at, 64);
            let next = at + u64::from(window.pages) * PAGE;
            streams.advance(next);
            if let Some(lead) = streams.reached(at, 512) {
                asked = lead.window.pages;
                streams.advance_lead(lead, next + u64::from(asked) * PAGE);
                at = next + u64::from(asked) * PAGE;
            } else {
                at = next;
            }
        }
        assert!(asked >= 400, "{asked} pages");
    }

    #[test]
    fn a_lead_that_nobody_touches_halves_and_random_faults_have_none() {
        let mut streams = Streams::default();
        let mut at = 0;
        for _ in 0..8 {
            let window = streams.window(at, 64);
            at += u64::from(window.pages) * PAGE;
            streams.advance(at);
        }
        let first = at - 64 * PAGE;
        let lead = streams.reached(first, 1024).expect("a lead");
        assert_eq!(lead.from, at);
        streams.advance_lead(lead, at + u64::from(lead.window.pages) * PAGE);
        assert_eq!(streams.reached(first, 1024), None, "it has one");
        assert_eq!(streams.reached(first + 32 * PAGE + 1, 1024), None, "that is no page of it");
        streams.missed(at);
        assert!(streams.streams.iter().any(|stream| stream.lead == lead.window.pages / 2 || stream.window == 32));
        for page in [1u64 << 40, 3 << 40, 1 << 45] {
            streams.window(page, 64);
            assert_eq!(streams.reached(page, 1024), None);
        }
    }

    /// A program walks a range and turns back before its end, again and again: the pages that the
    /// last walk requested at its end and never touched are still known to its stream, but are
    /// evicted by now.
    #[test]
    fn a_second_walk_is_not_answered_from_what_the_first_left() {
        let mut streams = Streams::default();
        for walk in 0..40 {
            let mut at = 0;
            while at < 600 * PAGE {
                assert_eq!(streams.passed(at, 32), None, "walk {walk}: the page at {at:#x} is not on its way");
                let window = streams.window(at, 64);
                at += u64::from(window.pages) * PAGE;
                streams.advance(at);
                if let Some(lead) = streams.reached(at - PAGE, 400) {
                    assert_eq!((lead.from, lead.ahead), (at, 1), "walk {walk}: the lead is the new stream's");
                    at = lead.from + u64::from(lead.window.pages) * PAGE;
                    streams.advance_lead(lead, at);
                }
            }
            assert!(streams.streams.iter().filter(|stream| stream.next == at).count() == 1, "one goes on there");
        }
    }

    /// A stream that never faults, since its lead is long enough, does not count as the one left
    /// longest ago.
    #[test]
    fn random_faults_do_not_end_a_stream_that_runs_on_its_lead() {
        let (mut streams, mut at) = (Streams::default(), 0);
        for _ in 0..8 {
            at += u64::from(streams.window(at, 64).pages) * PAGE;
            streams.advance(at);
        }
        let mut here = at - PAGE;
        for far in 0..100u64 {
            let lead = streams.reached(here, 256).expect("it goes on");
            assert_eq!(lead.from, at);
            at += u64::from(lead.window.pages) * PAGE;
            streams.advance_lead(lead, at);
            here = at - 64 * PAGE;
            streams.window((1 << 40) + far * (1 << 33), 64);
        }
    }

    #[test]
    fn records_of_two_pages_bring_nothing_along_and_runs_of_four_take_three_faults() {
        let mut x = 88_172_645_463_325_252u64;
        for (length, faults) in [(2, 2), (4, 3), (8, 4)] {
            let mut streams = Streams::with_strides();
            for _ in 0..1000 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let start = (x >> 20) * PAGE;
                let mut brought = 0;
                let run = (0..length).map(|n| start + n * PAGE);
                let seen = walk_counted(&mut streams, run, &mut brought);
                assert_eq!(seen, faults, "{length}");
                assert!(brought <= length, "{brought} of {length}");
            }
        }
    }

    /// As `walk`, and counts the pages that were brought.
    fn walk_counted(streams: &mut Streams, pages: impl Iterator<Item = u64>, brought: &mut u64) -> usize {
        let (mut end, mut faults) = (0, 0);
        for page in pages {
            if page >= end {
                let window = streams.window(page, 32).pages;
                end = page + u64::from(window) * PAGE;
                streams.advance(end);
                (faults, *brought) = (faults + 1, *brought + u64::from(window));
            }
        }
        faults
    }

    #[test]
    fn faults_far_apart_are_no_stride() {
        let pages = (0..200u64).map(|n| 0x10_0000 + n * (1 << 30));
        assert_eq!(walk(&mut Streams::with_strides(), pages, 32), 200);
    }
}
