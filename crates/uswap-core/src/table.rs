//! The page table of one space: page words by address.
//!
//! Two levels: regions of 1 MiB by address in a tree, chunks of 16 pages in an array. A program may reserve terabytes
//! and touch little: what was never seen costs nothing, and a page touched alone costs 300 bytes, not a page. A program
//! that uses its memory has a sixteenth as many regions as chunks, so that the tree above them stays shallow.

use std::collections::BTreeMap;

use crate::PAGE_SIZE;
use crate::growth::{Growth, during};
use crate::word::PageWord;

const CHUNK_PAGES: usize = 16;
const PAGE: u64 = PAGE_SIZE as u64;
const CHUNK_BYTES: u64 = CHUNK_PAGES as u64 * PAGE;
const REGION_CHUNKS: usize = 16;
const REGION_BYTES: u64 = REGION_CHUNKS as u64 * CHUNK_BYTES;

type Chunk = [PageWord; CHUNK_PAGES];

#[derive(Clone, Debug)]
struct Region {
    chunks: Box<[Option<Box<Chunk>>; REGION_CHUNKS]>,
    used: u32,
}

impl Region {
    fn new() -> Self {
        Self { chunks: Box::new([const { None }; REGION_CHUNKS]), used: 0 }
    }

    fn chunk_or_new(&mut self, index: usize) -> &mut Chunk {
        let used = &mut self.used;
        self.chunks[index].get_or_insert_with(|| {
            *used += 1;
            during(Growth::PageTables, || Box::new([PageWord::UNTOUCHED; CHUNK_PAGES]))
        })
    }
}

/// Page words by page address.
#[derive(Clone, Default, Debug)]
pub struct PageTable {
    regions: BTreeMap<u64, Region>,
}

/// Region, chunk in it, page in that.
fn split(address: u64) -> (u64, usize, usize) {
    let (chunk, page) = (address % REGION_BYTES / CHUNK_BYTES, address % CHUNK_BYTES / PAGE);
    (address / REGION_BYTES, chunk as usize, page as usize)
}

impl PageTable {
    /// The word of the page at `address`.
    pub fn get(&self, address: u64) -> PageWord {
        let (region, chunk, page) = split(address);
        let words = self.regions.get(&region).and_then(|region| region.chunks[chunk].as_deref());
        words.map_or(PageWord::UNTOUCHED, |words| words[page])
    }

    /// Replaces the word of the page at `address`.
    pub fn set(&mut self, address: u64, word: PageWord) {
        let (region, chunk, page) = split(address);
        if word == PageWord::UNTOUCHED {
            let known = self.regions.get_mut(&region).and_then(|region| region.chunks[chunk].as_deref_mut());
            known.into_iter().for_each(|words| words[page] = word);
        } else {
            let region = match self.regions.get_mut(&region) {
                Some(region) => region,
                None => during(Growth::PageTables, || self.regions.entry(region).or_insert_with(Region::new)),
            };
            region.chunk_or_new(chunk)[page] = word;
        }
    }

    /// Takes every word that is not untouched out of the range, in order, and hands it to `taken`.
    pub fn take_range(&mut self, start: u64, end: u64, mut taken: impl FnMut(u64, PageWord)) {
        let mut from = start / REGION_BYTES;
        while let Some((&key, region)) = self.regions.range_mut(from..end.div_ceil(REGION_BYTES).max(from)).next() {
            from = key + 1;
            let base = key * REGION_BYTES;
            let first = start.saturating_sub(base) / CHUNK_BYTES;
            let last = (end - base).div_ceil(CHUNK_BYTES).min(REGION_CHUNKS as u64);
            for index in first as usize..last as usize {
                take_from_chunk(region, index, base + index as u64 * CHUNK_BYTES, (start, end), &mut taken);
            }
            if region.used == 0 {
                self.regions.remove(&key);
            }
        }
    }

    /// Every word that is not untouched, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, PageWord)> + '_ {
        let chunks = self.regions.iter().flat_map(|(key, region)| {
            let chunks = region.chunks.iter().enumerate();
            chunks.filter_map(move |(i, words)| Some((key * REGION_BYTES + i as u64 * CHUNK_BYTES, words.as_deref()?)))
        });
        chunks.flat_map(|(base, words)| {
            let pages = words.iter().enumerate().map(move |(i, word)| (base + i as u64 * PAGE, *word));
            pages.filter(|(_, word)| *word != PageWord::UNTOUCHED)
        })
    }

    /// Changes every word that is not untouched.
    pub fn for_each_mut(&mut self, mut change: impl FnMut(u64, &mut PageWord)) {
        for (key, region) in &mut self.regions {
            for (index, words) in region.chunks.iter_mut().enumerate() {
                let base = key * REGION_BYTES + index as u64 * CHUNK_BYTES;
                for (i, word) in words.iter_mut().flat_map(|words| words.iter_mut().enumerate()) {
                    if *word != PageWord::UNTOUCHED {
                        change(base + i as u64 * PAGE, word);
                    }
                }
            }
        }
    }

    /// Bytes that the table itself takes.
    pub fn bytes(&self) -> u64 {
        let chunks: u64 = self.regions.values().map(|region| u64::from(region.used)).sum();
        chunks * size_of::<Chunk>() as u64 + self.regions.len() as u64 * (REGION_CHUNKS as u64 * 8 + 32)
    }
}

/// Takes the words of one chunk that lie in the range, and the chunk itself once it is empty.
fn take_from_chunk(
    region: &mut Region,
    index: usize,
    base: u64,
    (start, end): (u64, u64),
    taken: &mut impl FnMut(u64, PageWord),
) {
    let Some(words) = region.chunks[index].as_deref_mut() else { return };
    for (page, word) in words.iter_mut().enumerate() {
        let address = base + page as u64 * PAGE;
        if (start..end).contains(&address) && *word != PageWord::UNTOUCHED {
            taken(address, std::mem::take(word));
        }
    }
    if words.iter().all(|word| *word == PageWord::UNTOUCHED) {
        region.chunks[index] = None;
        region.used -= 1;
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
        assert_eq!(table.regions.len(), 2);
        let mut taken = Vec::new();
        table.take_range(0x2000, 0x3000, |address, _| taken.push(address));
        assert_eq!(taken, [0x2000]);
        assert_eq!(table.get(0x2000), PageWord::UNTOUCHED);
        assert_eq!(table.iter().map(|(a, _)| a).collect::<Vec<_>>(), [0x1000, 0x3000, 1 << 41]);
        table.take_range(0, u64::MAX / 2, |_, _| {});
        assert_eq!(table.regions.len(), 0);
        assert_eq!(table.bytes(), 0);
    }
}
