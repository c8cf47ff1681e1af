//! Readahead: how many pages to bring with the one that faulted, and how far apart, decided per stream of faults.
//!
//! A fault at the place where the last batch of some stream ended proves the stream: its window doubles. A fault
//! elsewhere starts a stream anew with a window of one. Several streams are followed at once, so that threads that
//! each walk their own array do not spoil each other's windows (linux keeps one word per mapping for the
//! same reason, `vma->swap_readahead_info`).
//!
//! A new stream is taken to go on with the next page, unless most of the last faults that belonged to no stream were
//! equally far apart: then that is its stride, which may be negative (a walk along the columns of a matrix, or backwards).
//! The vote is that of Leap (Al Maruf and Chowdhury, USENIX ATC 2020, section 4.1): the majority of a window of
//! differences, found by Boyer and Moore's algorithm and then counted. If the guess is wrong, at most one page too many
//! is brought, and the stream is not proven.

/// Streams followed at a time.
const STREAMS: usize = 16;
/// Faults whose distances vote on the stride of a new stream, and how many distances must be the same.
const VOTERS: usize = 9;
const MAJORITY: usize = 5;
/// Pages further apart than this have nothing to do with each other, in bytes.
const MOST_STRIDE: i64 = 4 << 20;
const PAGE: i64 = 4096;

#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    next: u64,
    stride: i64,
    window: u32,
    used: u64,
}

/// What to bring: so many pages from the faulting one on, each `stride` bytes after the one before.
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
    streams: [Stream; STREAMS],
    clock: u64,
    /// The last faults that belonged to no stream, oldest first. Only kept where strides are wanted.
    voters: Option<[u64; VOTERS]>,
}

impl Streams {
    /// Streams that may go in strides. Those made by `default` go from page to page.
    pub fn with_strides() -> Self {
        Self { voters: Some([0; VOTERS]), ..Self::default() }
    }

    /// The window (1 to `most` pages) for a fault on the page at `address`.
    pub fn window(&mut self, address: u64, most: u32) -> Window {
        self.clock += 1;
        let clock = self.clock;
        if let Some(stream) = self.streams.iter_mut().find(|s| s.used != 0 && s.next == address) {
            stream.window = (stream.window * 2).clamp(2, most.max(1));
            stream.used = clock;
            return Window { pages: stream.window, stride: stream.stride };
        }
        let guessed = self.vote(address).filter(|stride| *stride != PAGE);
        let (window, stride) = guessed.map_or((1, PAGE), |stride| (2.min(most), stride));
        let oldest = self.streams.iter_mut().min_by_key(|s| s.used).expect("there are streams");
        *oldest = Stream { next: address.wrapping_add_signed(stride), stride, window, used: clock };
        Window { pages: window, stride }
    }

    /// The stream that was asked for last goes on at `next`: behind what was brought.
    pub fn advance(&mut self, next: u64) {
        let clock = self.clock;
        if let Some(stream) = self.streams.iter_mut().find(|s| s.used == clock) {
            stream.next = next;
        }
    }

    /// The distance that most of the last lonely faults had, this one included.
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
        (votes >= MAJORITY && candidate != 0 && candidate.abs() <= MOST_STRIDE).then_some(candidate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// Faults as an engine would see them that brings each window whole; returns how many there were.
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
            for _ in 0..6 {
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

    #[test]
    fn faults_far_apart_are_no_stride() {
        let pages = (0..200u64).map(|n| 0x10_0000 + n * (1 << 30));
        assert_eq!(walk(&mut Streams::with_strides(), pages, 32), 200);
    }
}
