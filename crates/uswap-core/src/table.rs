//! The page table of one space: page words by address, sparse in chunks of 16 pages (64 KiB).
//!
//! A program may reserve terabytes and touch little: what was never seen has no chunk and costs nothing, and a page
//! touched alone costs 128 bytes, not a page.

use std::collections::BTreeMap;

use crate::PAGE_SIZE;
use crate::word::PageWord;

const CHUNK_PAGES: usize = 16;
const PAGE: u64 = PAGE_SIZE as u64;
const CHUNK_BYTES: u64 = CHUNK_PAGES as u64 * PAGE;

type Chunk = [PageWord; CHUNK_PAGES];

/// Page words by page address.
#[derive(Clone, Default, Debug)]
pub struct PageTable {
    chunks: BTreeMap<u64, Box<Chunk>>,
}

fn split(address: u64) -> (u64, usize) {
    (address / CHUNK_BYTES, (address % CHUNK_BYTES / PAGE) as usize)
}

impl PageTable {
    /// The word of the page at `address`.
    pub fn get(&self, address: u64) -> PageWord {
        let (chunk, index) = split(address);
        self.chunks.get(&chunk).map_or(PageWord::UNTOUCHED, |words| words[index])
    }

    /// Replaces the word of the page at `address`.
    pub fn set(&mut self, address: u64, word: PageWord) {
        let (chunk, index) = split(address);
        if word == PageWord::UNTOUCHED && !self.chunks.contains_key(&chunk) {
            return;
        }
        self.chunks.entry(chunk).or_insert_with(|| Box::new([PageWord::UNTOUCHED; CHUNK_PAGES]))[index] = word;
    }

    /// Takes every word that is not untouched out of the range, in order, and hands it to `taken`.
    pub fn take_range(&mut self, start: u64, end: u64, mut taken: impl FnMut(u64, PageWord)) {
        let keys: Vec<u64> =
            self.chunks.range(start / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES)).map(|(k, _)| *k).collect();
        for key in keys {
            let base = key * CHUNK_BYTES;
            let words = self.chunks.get_mut(&key).expect("key just seen");
            for (index, word) in words.iter_mut().enumerate() {
                let address = base + index as u64 * PAGE;
                if (start..end).contains(&address) && *word != PageWord::UNTOUCHED {
                    taken(address, std::mem::take(word));
                }
            }
            if words.iter().all(|word| *word == PageWord::UNTOUCHED) {
                self.chunks.remove(&key);
            }
        }
    }

    /// Every word that is not untouched, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, PageWord)> + '_ {
        self.chunks.iter().flat_map(|(key, words)| {
            let base = key * CHUNK_BYTES;
            let pages = words.iter().enumerate().map(move |(i, word)| (base + i as u64 * PAGE, *word));
            pages.filter(|(_, word)| *word != PageWord::UNTOUCHED)
        })
    }

    /// Changes every word that is not untouched.
    pub fn for_each_mut(&mut self, mut change: impl FnMut(u64, &mut PageWord)) {
        for (key, words) in &mut self.chunks {
            let base = key * CHUNK_BYTES;
            for (i, word) in words.iter_mut().enumerate() {
                if *word != PageWord::UNTOUCHED {
                    change(base + i as u64 * PAGE, word);
                }
            }
        }
    }

    /// Bytes that the table itself takes.
    pub fn bytes(&self) -> u64 {
        self.chunks.len() as u64 * (size_of::<Chunk>() as u64 + 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terabytes_apart_cost_two_chunks_and_ranges_cut_exactly() {
        let mut table = PageTable::default();
        let resident = PageWord::UNTOUCHED.resident();
        for page in [0x1000, 0x3000, 0x2000, 1 << 41] {
            table.set(page, resident);
        }
        table.set(1 << 42, PageWord::UNTOUCHED);
        assert_eq!(table.chunks.len(), 2);
        let mut taken = Vec::new();
        table.take_range(0x2000, 0x3000, |address, _| taken.push(address));
        assert_eq!(taken, [0x2000]);
        assert_eq!(table.get(0x2000), PageWord::UNTOUCHED);
        assert_eq!(table.iter().map(|(a, _)| a).collect::<Vec<_>>(), [0x1000, 0x3000, 1 << 41]);
        table.take_range(0, u64::MAX / 2, |_, _| {});
        assert_eq!(table.chunks.len(), 0);
    }
}
