//! A page of memory as bytes: its size, its 128-bit hash and the same-filled test.
//!
//! The hash serves twice: half of it is the checksum of a stored page, and also shows whether the
//! program has changed a page since it came back; from the other half tables by content take the
//! place where they look first. It is keyed with a secret drawn once per run, so that no program
//! can construct two pages that collide.

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;
/// The same, for addresses.
pub const PAGE: u64 = PAGE_SIZE as u64;

/// The bytes of one page.
pub type PageBuf = [u8; PAGE_SIZE];

/// A 128-bit keyed hash of one page's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct PageHash(pub u128);

impl PageHash {
    /// The half that is stored with a page, as its checksum.
    pub fn check(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// The other half, from which a table by content may take bits for its places. Since it is
    /// independent of the checksum, a page found by its place agrees with a checksum by chance no
    /// more often than any other page.
    pub fn place(self) -> u64 {
        self.0 as u64
    }
}

/// Hashes pages under the secret of this run.
#[derive(Clone, Copy, Debug)]
pub struct PageHasher {
    secret: u64,
}

impl PageHasher {
    /// A hasher whose key is `secret` (random, drawn once per run).
    pub fn new(secret: u64) -> Self {
        Self { secret }
    }

    /// The hash of `page`.
    pub fn hash(&self, page: &PageBuf) -> PageHash {
        PageHash(xxh3_128_with_seed(page, self.secret))
    }
}

/// The word with which the whole page is filled, if it is one word repeated (zswap's same-filled
/// pages).
///
/// The last word is compared first: a page that differs from its first word mostly does so at its
/// end too (linux `mm/zswap.c`).
pub fn same_filled(page: &PageBuf) -> Option<u64> {
    let word_at = |i: usize| u64::from_ne_bytes(page[i..i + 8].try_into().expect("eight bytes"));
    let first = word_at(0);
    if word_at(PAGE_SIZE - 8) != first {
        return None;
    }
    let pattern = first.to_ne_bytes();
    page.as_chunks::<8>().0.iter().all(|w| *w == pattern).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_filled_sees_every_single_byte() {
        let mut page = [0xAB; PAGE_SIZE];
        assert_eq!(same_filled(&page), Some(0xABAB_ABAB_ABAB_ABAB));
        for i in 0..PAGE_SIZE {
            page[i] ^= 1;
            assert_eq!(same_filled(&page), None, "byte {i}");
            page[i] ^= 1;
        }
    }

    #[test]
    fn hash_depends_on_content_and_secret() {
        let hasher = PageHasher::new(1);
        let mut page = [0; PAGE_SIZE];
        let before = hasher.hash(&page);
        assert_eq!(before, hasher.hash(&page));
        assert_ne!(before, PageHasher::new(2).hash(&page));
        page[PAGE_SIZE - 1] = 1;
        assert_ne!(before, hasher.hash(&page));
    }
}
