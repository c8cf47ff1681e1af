//! Finds the pages that only one process maps, by reading a block of pages at a time.

use std::time::{Duration, Instant};

use uswap_abi::layout::PAGE;
use uswap_core::util::growth::{Growth, during};
use uswap_sys::procfs::pagemap::{BLOCK_PAGES, EXCLUSIVE, IN_MEMORY, Pagemap};

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
    /// Whether no other process shares the page: only this one maps it, or none does. Also true
    /// when nothing can be read.
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
        let word = self.words[((address - start) / PAGE) as usize];
        word & EXCLUSIVE != 0 || word & IN_MEMORY == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that was given back to the kernel is shared with nobody. While it counted as shared
    /// it stayed set aside for ever, and its process was never asked for pages.
    #[test]
    fn what_is_not_in_memory_is_not_shared() {
        let pagemap = Pagemap::open(std::process::id()).expect("the pagemap");
        let mut memory = uswap_sys::Reservation::new(2 * PAGE as usize).expect("address space");
        memory.bytes_mut()[0] = 1;
        let start = memory.bytes().as_ptr() as u64;
        let mut exclusive = Exclusive::default();
        assert!(exclusive.is_exclusive(&pagemap, start), "its own page");
        assert!(exclusive.is_exclusive(&pagemap, start + PAGE), "a page that is not there");
    }
}
