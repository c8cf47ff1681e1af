//! LZ4, block format. A thread's hash table is part of its working memory from the start.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use uswap_core::{PAGE_SIZE, PageBuf};

use super::{Codec, Levels};

#[derive(Default)]
pub(super) struct Lz4(CompressTable);

impl Codec for Lz4 {
    const ID: u8 = 1;
    const NAME: &'static str = "lz4";
    const LEVELS: Option<Levels> = None;
    const HELP: &'static str = "is fast";
    const MAX_OUTPUT: usize = get_maximum_output_size(PAGE_SIZE);

    fn compress(&mut self, page: &PageBuf, _: u8, out: &mut [u8]) -> Option<usize> {
        compress_into_with_table(page, out, &mut self.0).ok()
    }

    fn expand(bytes: &[u8], out: &mut PageBuf) -> bool {
        decompress_into(bytes, out).is_ok_and(|n| n == PAGE_SIZE)
    }
}
