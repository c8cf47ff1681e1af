//! Compression of one page, without allocating.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use uswap_core::{PAGE_SIZE, PageBuf};

/// Compressed pages longer than this save too little to be worth the pool's memory and a decompression.
pub(crate) const MAX_COMPRESSED: usize = PAGE_SIZE * 3 / 4;

/// Bytes before the compressed ones in the pool: the object's id, so that a moved object is found.
pub(crate) const TAG: usize = 4;

const OUTPUT: usize = TAG + get_maximum_output_size(PAGE_SIZE);

/// The working memory of a compressing thread.
pub(crate) struct Compressor {
    table: CompressTable,
    output: Box<[u8; OUTPUT]>,
}

impl Compressor {
    pub fn new() -> Self {
        Self { table: CompressTable::default(), output: Box::new([0; OUTPUT]) }
    }

    /// The compressed form of `page` after [`TAG`] bytes left to the caller, or `None` when it is longer than
    /// [`MAX_COMPRESSED`].
    pub fn compress(&mut self, page: &PageBuf) -> Option<&mut [u8]> {
        let output = &mut self.output[TAG..];
        let length = compress_into_with_table(page, output, &mut self.table).expect("the output is large enough");
        (length <= MAX_COMPRESSED).then(|| &mut self.output[..TAG + length])
    }
}

/// Expands `bytes` (a whole page is taken as it is) into `out`; false when they are no page.
pub(crate) fn expand(bytes: &[u8], out: &mut PageBuf) -> bool {
    match <&PageBuf>::try_from(bytes) {
        Ok(raw) => {
            *out = *raw;
            true
        }
        Err(_) => decompress_into(bytes, out).is_ok_and(|n| n == PAGE_SIZE),
    }
}

/// Fills `out` with one word repeated.
pub(crate) fn fill(out: &mut PageBuf, word: u64) {
    out.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_rejection() {
        let mut codec = Compressor::new();
        let mut page = [0; PAGE_SIZE];
        page.iter_mut().enumerate().for_each(|(i, b)| *b = (i / 7 % 50) as u8);
        let mut back = [1; PAGE_SIZE];
        assert!(expand(&codec.compress(&page).unwrap()[TAG..], &mut back));
        assert_eq!(back, page);

        let mut state = 1u64;
        page.iter_mut().for_each(|b| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *b = (state >> 56) as u8;
        });
        assert!(codec.compress(&page).is_none());
        assert!(expand(&page, &mut back));
        assert_eq!(back, page);
    }

    #[test]
    fn garbage_is_refused_not_trusted() {
        let mut back = [0; PAGE_SIZE];
        assert!(!expand(&[], &mut back));
        for seed in 0..200u8 {
            let bytes: Vec<u8> = (0..100).map(|i: u8| i.wrapping_mul(seed).rotate_left(3) ^ seed).collect();
            assert!(!expand(&bytes, &mut back));
        }
    }
}
