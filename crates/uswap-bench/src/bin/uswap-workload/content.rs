//! The content of pages, and how a wrong page is recognised.
//!
//! The first and the last word of a page hold the page's number and how often the page was written,
//! the second word holds the next page of a chain; all other words are a function of the page's
//! number and the kind of content. So a page that comes back as another page, as zeros, or as an
//! older version of itself is recognised by two of its words, and a torn page by all of them.

use clap::ValueEnum;

/// Number of words in a page of 4 KiB.
pub const WORDS: usize = 512;
const LAST: usize = WORDS - 1;
/// Index of the word that links pages into a chain.
pub const LINK: usize = 1;

/// What pages are filled with.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentKind {
    /// Words of text; lz4 makes about a third of it
    Text,
    /// Nothing but zeros, written
    Zero,
    /// Random words
    Incompressible,
    /// One half random, one half text
    Half,
}

/// Eight letters each, from which text is made.
const PIECES: [&[u8; 8]; 16] = [
    b"the page",
    b" of that",
    b" region ",
    b"is cold;",
    b" faults ",
    b"bring it",
    b" back to",
    b" memory ",
    b"and when",
    b" written",
    b" it goes",
    b" again, ",
    b"slot by ",
    b"slot or ",
    b"in batch",
    b" reads..",
];

/// A number spread over all 64 bits (splitmix64).
pub fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl ContentKind {
    /// The value of an inner word of a page.
    fn word(self, page: u64, word: usize) -> u64 {
        let random = || mix((page << 9) + word as u64);
        match self {
            Self::Zero => 0,
            Self::Incompressible => random(),
            Self::Half if word < WORDS / 2 => random(),
            Self::Text | Self::Half if word.is_multiple_of(8) => page << 16 ^ word as u64,
            Self::Text | Self::Half => {
                u64::from_le_bytes(*PIECES[(mix(page * 64 + word as u64 / 3) as usize + word) % PIECES.len()])
            }
        }
    }

    /// The value of the first and the last word.
    fn identity(self, page: u64, version: u8) -> u64 {
        if self == Self::Zero { 0 } else { mix(page) << 8 | u64::from(version) }
    }

    /// Writes a whole page.
    pub fn fill(self, memory: &mut [u64], page: u64, link: u64) {
        for (at, word) in memory.iter_mut().enumerate() {
            // Hidden from the optimizer, which would leave zeros over fresh memory unwritten.
            *word = std::hint::black_box(self.word(page, at));
        }
        if self != Self::Zero {
            memory[LINK] = link;
        }
        self.stamp(memory, page, 0);
    }

    /// Writes the version of a page into the page.
    pub fn stamp(self, memory: &mut [u64], page: u64, version: u8) {
        memory[0] = self.identity(page, version);
        memory[LAST] = self.identity(page, version);
    }

    /// Checks the identity and one inner word of a page.
    pub fn check(self, memory: &[u64], page: u64, version: u8, word: usize) -> Result<(), String> {
        let identity = self.identity(page, version);
        expect(page, 0, memory[0], identity)?;
        expect(page, LAST, memory[LAST], identity)?;
        if word == LINK || word == 0 || word == LAST {
            return Ok(());
        }
        expect(page, word, memory[word], self.word(page, word))
    }

    /// Checks every word of a page.
    pub fn check_all(self, memory: &[u64], page: u64, version: u8) -> Result<(), String> {
        (0..WORDS).try_for_each(|word| self.check(memory, page, version, word))
    }
}

fn expect(page: u64, word: usize, found: u64, expected: u64) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("page {page}, word {word}: found {found:#x}, expected {expected:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_passes_its_own_check_and_tells_a_foreign_an_old_and_a_torn_page() {
        for kind in [ContentKind::Text, ContentKind::Incompressible, ContentKind::Half] {
            let mut page = [0; WORDS];
            kind.fill(&mut page, 7, 3);
            kind.check_all(&page, 7, 0).unwrap();
            assert!(kind.check(&page, 8, 0, 5).is_err());
            kind.stamp(&mut page, 7, 1);
            assert!(kind.check(&page, 7, 0, 5).is_err());
            page[300] ^= 1;
            assert!(kind.check(&page, 7, 1, 5).is_ok() && kind.check_all(&page, 7, 1).is_err());
            assert!(kind.check(&[0; WORDS], 7, 1, 5).is_err());
        }
        let mut zero = [1; WORDS];
        ContentKind::Zero.fill(&mut zero, 7, 3);
        assert_eq!(zero, [0; WORDS]);
    }
}
