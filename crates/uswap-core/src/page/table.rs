//! The page table of one space: page words by address.
//!
//! A tree holds regions of 1 MiB by address, and each region has chunks of 16 pages; regions and
//! chunks have numbers of 4 bytes and lie side by side in [`IndexSlab`]s. A program may reserve
//! terabytes and touch little: memory that it never touched costs nothing, and a page touched alone
//! costs 250 bytes, not a page of table. A program that uses all its memory has a sixteenth as many
//! regions as chunks, so that the tree stays shallow, and pays 8.5 bytes a page.
//!
//! **Names of 4 bytes.** A list names a page by the number of its region and its place there
//! ([`PageIndex`]). Each region counts the list entries that name its pages, and its number is
//! given to another region only when none is left. So an old entry names its own page, or that page
//! after the table has forgotten it, and never another page. A region that is kept only for its
//! entries has no chunks.

use crate::PAGE;
use std::collections::BTreeMap;

use crate::page::slab::IndexSlab;
use crate::page::word::PageWord;
use crate::util::growth::{Growth, during};

const CHUNK_PAGES: usize = 16;
const CHUNK_BYTES: u64 = CHUNK_PAGES as u64 * PAGE;
const REGION_CHUNKS: usize = 16;
const REGION_BYTES: u64 = REGION_CHUNKS as u64 * CHUNK_BYTES;
const REGION_PAGES: u32 = (REGION_CHUNKS * CHUNK_PAGES) as u32;
/// Regions that can have a name: 16 million, of 1 MiB each.
const NAMED: u32 = u32::MAX / REGION_PAGES + 1;
/// No chunk.
const NONE: u32 = u32::MAX;

type TableChunk = [PageWord; CHUNK_PAGES];

/// A page, by the number of its region (24 bits) and its place there (8).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageIndex(u32);

impl PageIndex {
    fn region(self) -> u32 {
        self.0 / REGION_PAGES
    }

    /// Chunk, and page in it.
    fn within(self) -> (usize, usize) {
        let page = (self.0 % REGION_PAGES) as usize;
        (page / CHUNK_PAGES, page % CHUNK_PAGES)
    }
}

#[derive(Clone, Copy, Debug)]
struct TableRegion {
    /// Its address divided by its length.
    key: u64,
    chunks: [u32; REGION_CHUNKS],
    /// Chunks that exist.
    used: u32,
    /// Entries of lists that name pages here.
    listed: u32,
}

impl TableRegion {
    fn chunk(&self, index: usize) -> Option<u32> {
        Some(self.chunks[index]).filter(|number| *number != NONE)
    }

    fn is_needed(&self) -> bool {
        self.used > 0 || self.listed > 0
    }
}

/// Page words by page address.
#[derive(Clone, Default, Debug)]
pub struct PageTable {
    by_address: BTreeMap<u64, u32>,
    regions: IndexSlab<TableRegion>,
    chunks: IndexSlab<TableChunk>,
}

/// Region, chunk in it, page in that.
fn split(address: u64) -> (u64, usize, usize) {
    let (chunk, page) = (address % REGION_BYTES / CHUNK_BYTES, address % CHUNK_BYTES / PAGE);
    (address / REGION_BYTES, chunk as usize, page as usize)
}

impl PageTable {
    /// The word of the page at `address`.
    pub fn get(&self, address: u64) -> PageWord {
        let (key, chunk, page) = split(address);
        let region = self.by_address.get(&key);
        region.map_or(PageWord::UNTOUCHED, |region| self.word_in(*region, chunk, page))
    }

    /// Replaces the word of the page at `address`.
    pub fn set(&mut self, address: u64, word: PageWord) {
        let (key, chunk, page) = split(address);
        if word != PageWord::UNTOUCHED {
            let region = self.region_or_new(key);
            self.set_in(region, chunk, page, word);
        } else if let Some(region) = self.by_address.get(&key) {
            self.set_in(*region, chunk, page, word);
        }
    }

    /// Gives the page at `address` a name, until [`unname`](Self::unname) takes it back. `None`:
    /// there are too many regions.
    pub fn name(&mut self, address: u64) -> Option<PageIndex> {
        let (key, chunk, page) = split(address);
        let region = self.region_or_new(key);
        if region >= NAMED {
            return None;
        }
        self.regions.get_mut(region).listed += 1;
        Some(PageIndex(region * REGION_PAGES + (chunk * CHUNK_PAGES + page) as u32))
    }

    /// The address of a page that has a name.
    pub fn address(&self, index: PageIndex) -> u64 {
        let (chunk, page) = index.within();
        self.regions.get(index.region()).key * REGION_BYTES + chunk as u64 * CHUNK_BYTES + page as u64 * PAGE
    }

    /// The word of a page that has a name.
    pub fn word(&self, index: PageIndex) -> PageWord {
        let (chunk, page) = index.within();
        self.word_in(index.region(), chunk, page)
    }

    /// Replaces the word of a page that has a name.
    pub fn set_word(&mut self, index: PageIndex, word: PageWord) {
        let (chunk, page) = index.within();
        self.set_in(index.region(), chunk, page, word);
    }

    /// A list has dropped an entry that names the page. If the region was kept only for its entries
    /// and this was the last, the region goes.
    pub fn unname(&mut self, index: PageIndex) {
        self.regions.get_mut(index.region()).listed -= 1;
        self.end_if_empty(index.region());
    }

    /// Entries of lists that name pages here.
    pub fn names(&self) -> usize {
        self.by_address.values().map(|region| self.regions.get(*region).listed as usize).sum()
    }

    fn word_in(&self, region: u32, chunk: usize, page: usize) -> PageWord {
        let chunk = self.regions.get(region).chunk(chunk);
        chunk.map_or(PageWord::UNTOUCHED, |chunk| self.chunks.get(chunk)[page])
    }

    fn set_in(&mut self, region: u32, chunk: usize, page: usize, word: PageWord) {
        let region = self.regions.get_mut(region);
        let number = match region.chunk(chunk) {
            Some(number) => number,
            None if word == PageWord::UNTOUCHED => return,
            None => {
                region.chunks[chunk] =
                    during(Growth::PageTables, || self.chunks.insert([PageWord::UNTOUCHED; CHUNK_PAGES]));
                region.used += 1;
                region.chunks[chunk]
            }
        };
        self.chunks.get_mut(number)[page] = word;
    }

    fn region_or_new(&mut self, key: u64) -> u32 {
        if let Some(region) = self.by_address.get(&key) {
            return *region;
        }
        during(Growth::PageTables, || {
            let region = self.regions.insert(TableRegion { key, chunks: [NONE; REGION_CHUNKS], used: 0, listed: 0 });
            self.by_address.insert(key, region);
            region
        })
    }

    fn end_if_empty(&mut self, number: u32) {
        let region = self.regions.get(number);
        if !region.is_needed() {
            self.by_address.remove(&region.key);
            during(Growth::PageTables, || self.regions.remove(number));
        }
    }

    /// Takes the word of every page in the range that is not `Untouched` out of the table, in
    /// order, and hands it to `taken`.
    pub fn take_range(&mut self, start: u64, end: u64, mut taken: impl FnMut(u64, PageWord)) {
        let mut from = start / REGION_BYTES;
        while let Some((&key, &number)) = self.by_address.range(from..end.div_ceil(REGION_BYTES).max(from)).next() {
            from = key + 1;
            let base = key * REGION_BYTES;
            let first = start.saturating_sub(base) / CHUNK_BYTES;
            let last = (end - base).div_ceil(CHUNK_BYTES).min(REGION_CHUNKS as u64);
            for index in first as usize..last as usize {
                self.take_from_chunk(number, index, base + index as u64 * CHUNK_BYTES, (start, end), &mut taken);
            }
            self.end_if_empty(number);
        }
    }

    /// Takes the words of one chunk that lie in the range, and the chunk itself once it is empty.
    fn take_from_chunk(
        &mut self,
        region: u32,
        index: usize,
        base: u64,
        (start, end): (u64, u64),
        taken: &mut impl FnMut(u64, PageWord),
    ) {
        let region = self.regions.get_mut(region);
        let Some(number) = region.chunk(index) else { return };
        let words = self.chunks.get_mut(number);
        for (page, word) in words.iter_mut().enumerate() {
            let address = base + page as u64 * PAGE;
            if (start..end).contains(&address) && *word != PageWord::UNTOUCHED {
                taken(address, std::mem::take(word));
            }
        }
        if words.iter().all(|word| *word == PageWord::UNTOUCHED) {
            during(Growth::PageTables, || self.chunks.remove(number));
            region.chunks[index] = NONE;
            region.used -= 1;
        }
    }

    /// Numbers of chunks and the addresses where they begin, in order, from the one on in which
    /// `start` lies.
    fn chunks_from(&self, start: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.by_address.range(start / REGION_BYTES..).flat_map(move |(key, region)| {
            let chunks = self.regions.get(*region).chunks.iter().enumerate();
            let there = chunks.filter(|(_, number)| **number != NONE);
            let places = there.map(move |(index, number)| (key * REGION_BYTES + index as u64 * CHUNK_BYTES, *number));
            places.filter(move |(base, _)| base + (CHUNK_BYTES - 1) >= start)
        })
    }

    /// Every word that is not `Untouched`, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, PageWord)> + '_ {
        self.iter_from(0)
    }

    /// The same for the pages at `start` and above.
    pub fn iter_from(&self, start: u64) -> impl Iterator<Item = (u64, PageWord)> + '_ {
        self.chunks_from(start).flat_map(move |(base, number)| {
            let words = self.chunks.get(number).iter().enumerate();
            let pages = words.map(move |(page, word)| (base + page as u64 * PAGE, *word));
            pages.filter(move |(page, word)| *page >= start && *word != PageWord::UNTOUCHED)
        })
    }

    /// Changes every word that is not `Untouched`.
    pub fn for_each_mut(&mut self, mut change: impl FnMut(u64, &mut PageWord)) {
        for (key, region) in &self.by_address {
            for (index, number) in self.regions.get(*region).chunks.iter().enumerate().filter(|(_, n)| **n != NONE) {
                let base = key * REGION_BYTES + index as u64 * CHUNK_BYTES;
                let words = self.chunks.get_mut(*number).iter_mut().enumerate();
                for (page, word) in words.filter(|(_, word)| **word != PageWord::UNTOUCHED) {
                    change(base + page as u64 * PAGE, word);
                }
            }
        }
    }

    /// Memory of the table in bytes; an estimate for the tree.
    pub fn bytes(&self) -> usize {
        // A leaf of the tree has room for 11 entries; 6 are in use if addresses come in order.
        self.chunks.bytes() + self.regions.bytes() + self.by_address.len() * 27
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn terabytes_apart_cost_two_chunks_and_ranges_cut_exactly() {
        let mut table = PageTable::default();
        let resident = PageWord::UNTOUCHED.resident();
        for page in [0x1000, 0x3000, 0x2000, 1 << 41] {
            table.set(page, resident);
        }
        table.set(1 << 42, PageWord::UNTOUCHED);
        assert_eq!((table.by_address.len(), table.regions.len(), table.chunks.len()), (2, 2, 2));
        let mut taken = Vec::new();
        table.take_range(0x2000, 0x3000, |address, _| taken.push(address));
        assert_eq!(taken, [0x2000]);
        assert_eq!(table.get(0x2000), PageWord::UNTOUCHED);
        assert_eq!(table.iter().map(|(a, _)| a).collect::<Vec<_>>(), [0x1000, 0x3000, 1 << 41]);
        table.take_range(0, u64::MAX / 2, |_, _| {});
        assert_eq!((table.by_address.len(), table.regions.len(), table.chunks.len()), (0, 0, 0));
    }

    /// While a list holds a name, no other region gets the region's number; afterwards one may.
    #[test]
    fn an_old_name_names_its_own_page_or_none() {
        let mut table = PageTable::default();
        let word = PageWord::UNTOUCHED.resident();
        let old = table.name(5 * REGION_BYTES + 0x7000).expect("a name");
        table.set_word(old, word);
        table.take_range(0, u64::MAX / 2, |_, _| {});
        for region in 6..100 {
            let page = region * REGION_BYTES + 0x7000;
            let other = table.name(page).expect("a name");
            table.set_word(other, word);
            assert!(other != old && table.address(other) == page);
        }
        assert_eq!((table.address(old), table.word(old)), (5 * REGION_BYTES + 0x7000, PageWord::UNTOUCHED));
        // The page comes back: the old name is its name again.
        table.set(5 * REGION_BYTES + 0x7000, word);
        assert_eq!(table.word(old), word);
        table.take_range(5 * REGION_BYTES, 6 * REGION_BYTES, |_, _| {});
        table.unname(old);
        assert_eq!((table.regions.len(), table.names()), (94, 94));
        let other = table.name(200 * REGION_BYTES).expect("a name");
        assert_eq!((other.region(), table.address(other)), (old.region(), 200 * REGION_BYTES));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(u64),
        Name(u64),
        Unname(usize),
        Take(u64, u64),
    }

    /// Some pages of some regions, close together and far apart.
    fn page() -> impl Strategy<Value = u64> {
        (0u64..12, 0u64..40)
            .prop_map(|(region, page)| region * region * region * 7 * REGION_BYTES + page * 7 % 256 * PAGE)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => page().prop_map(Step::Set),
            4 => page().prop_map(Step::Name),
            2 => any::<usize>().prop_map(Step::Unname),
            2 => (page(), 0u64..4 << 20).prop_map(|(start, length)| Step::Take(start, start + length)),
        ]
    }

    proptest! {
        /// Words by address are those of a map, and a name leads to the page that was named, and to
        /// no other.
        #[test]
        fn means_what_a_map_means(steps in prop::collection::vec(step(), 0..300)) {
            let (mut table, mut plain, mut names) = (PageTable::default(), BTreeMap::new(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                let word = PageWord::UNTOUCHED.stored(number as u32, 1);
                match step {
                    Step::Set(page) => {
                        table.set(page, word);
                        plain.insert(page, word);
                    }
                    Step::Name(page) => {
                        let index = table.name(page).expect("a name");
                        names.push((index, page));
                        table.set_word(index, word);
                        plain.insert(page, word);
                    }
                    Step::Unname(which) if !names.is_empty() => {
                        let (index, page) = names.swap_remove(which % names.len());
                        prop_assert_eq!(table.address(index), page);
                        table.unname(index);
                    }
                    Step::Unname(_) => {}
                    Step::Take(start, end) => {
                        let (start, end) = (start & !0xfff, end & !0xfff);
                        let mut taken = Vec::new();
                        table.take_range(start, end, |address, word| taken.push((address, word)));
                        let expected: Vec<_> = plain.extract_if(start..end, |_, _| true).collect();
                        prop_assert_eq!(taken, expected);
                    }
                }
                for (index, page) in &names {
                    prop_assert_eq!(table.address(*index), *page);
                    prop_assert_eq!(table.word(*index), plain.get(page).copied().unwrap_or_default());
                }
            }
            prop_assert_eq!(table.names(), names.len());
            let all: Vec<_> = plain.into_iter().collect();
            prop_assert_eq!(table.iter().collect::<Vec<_>>(), all.clone());
            for from in all.iter().flat_map(|(page, _)| [*page, *page + PAGE]) {
                let above: Vec<_> = all.iter().copied().filter(|(page, _)| *page >= from).collect();
                prop_assert_eq!(table.iter_from(from).collect::<Vec<_>>(), above);
            }
            names.iter().for_each(|(index, _)| table.unname(*index));
            table.take_range(0, u64::MAX / 2, |_, _| {});
            prop_assert_eq!((table.by_address.len(), table.regions.len(), table.chunks.len()), (0, 0, 0));
        }
    }
}
