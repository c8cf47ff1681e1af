//! Readahead: how many pages to bring with the one that faulted, decided per stream of faults.
//!
//! A fault at the place where the last batch of some stream ended proves a run: the window doubles. A fault
//! elsewhere starts a stream anew with a window of one. Several streams are followed at once, so that threads that
//! each walk their own array do not spoil each other's windows (linux keeps one word per mapping for the
//! same reason, `vma->swap_readahead_info`).

/// Streams followed at a time.
const STREAMS: usize = 16;

#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    next: u64,
    window: u32,
    used: u64,
}

/// The streams of one space.
#[derive(Clone, Default, Debug)]
pub struct Streams {
    streams: [Stream; STREAMS],
    clock: u64,
}

impl Streams {
    /// The window in pages (1 to `most`) for a fault on the page at `address`.
    pub fn window(&mut self, address: u64, most: u32) -> u32 {
        self.clock += 1;
        let clock = self.clock;
        if let Some(stream) = self.streams.iter_mut().find(|s| s.used != 0 && s.next == address) {
            stream.window = (stream.window * 2).clamp(2, most.max(1));
            stream.used = clock;
            return stream.window;
        }
        let oldest = self.streams.iter_mut().min_by_key(|s| s.used).expect("there are streams");
        *oldest = Stream { next: address + 4096, window: 1, used: clock };
        1
    }

    /// The batch that a fault at `address` brought ends at `end`: that is where the stream's next fault comes.
    pub fn advance(&mut self, address: u64, end: u64) {
        let clock = self.clock;
        if let Some(stream) = self.streams.iter_mut().find(|s| s.used == clock) {
            debug_assert!(end > address);
            stream.next = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn two_interleaved_runs_both_grow_and_a_random_fault_gets_one_page() {
        let mut streams = Streams::default();
        let (mut a, mut b) = (0x10_0000, 0x9000_0000);
        let mut last = (0, 0);
        for _ in 0..6 {
            let window = streams.window(a, 32);
            streams.advance(a, a + u64::from(window) * PAGE);
            a += u64::from(window) * PAGE;
            let other = streams.window(b, 8);
            streams.advance(b, b + u64::from(other) * PAGE);
            b += u64::from(other) * PAGE;
            last = (window, other);
            assert_eq!(streams.window(0x7000_0000_0000 + a * 3, 32), 1);
        }
        assert_eq!(last, (32, 8));
    }
}
