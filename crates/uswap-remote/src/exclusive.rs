//! Finds the pages that only one process maps, by reading a block of pages at a time.

use std::time::{Duration, Instant};

use uswap_abi::layout::PAGE;
use uswap_core::util::growth::{Growth, during};
use uswap_sys::procfs::pagemap::{BLOCK_PAGES, EXCLUSIVE, Pagemap};

/// How long a reading of a block is valid.
const FRESH: Duration = Duration::from_millis(2);

/// A recent reading of one block: which of its pages no other process maps. One block is enough,
/// since callers ask about pages in order.
#[derive(Debug, Default)]
pub struct Exclusive {
    block: Option<(u64, Instant)>,
    words: Vec<u64>,
}

impl Exclusive {
    /// Whether only this process maps the page. Also true when nothing can be read: then no other
    /// process shares the page any more.
    pub fn is_exclusive(&mut self, pagemap: &Pagemap, address: u64) -> bool {
        let start = address & !(BLOCK_PAGES as u64 * PAGE - 1);
        if !self.block.is_some_and(|(known, at)| known == start && at.elapsed() < FRESH) {
            let mut words = [0; BLOCK_PAGES];
            if pagemap.words(start, &mut words).is_err() {
                return true;
            }
            self.block = Some((start, Instant::now()));
            self.words.clear();
            during(Growth::Lists, || self.words.extend(words));
        }
        self.words[((address - start) / PAGE) as usize] & EXCLUSIVE != 0
    }
}
