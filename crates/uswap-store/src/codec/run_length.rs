//! A toy compressor for the tests: encodes runs of one byte. A new compressor needs one file like
//! this, and one line of the registry.
//!
//! ```text
//! | 0x00..=0x7f: n | n + 1 bytes as they are ... |      | 0x80..=0xff: n | the byte of a run of n - 126 |
//! ```

use uswap_core::{PAGE_SIZE, PageBuf};

use super::{Codec, Levels};

/// The most literal bytes behind one header, and the possible lengths of a run.
const MAX_PLAIN: usize = 128;
const RUN: std::ops::RangeInclusive<usize> = 2..=129;

#[derive(Default)]
pub(super) struct RunLength;

impl Codec for RunLength {
    const ID: u8 = 200;
    const NAME: &'static str = "run-length";
    const LEVELS: Option<Levels> = None;
    const HELP: &'static str = "is a toy";
    const MAX_OUTPUT: usize = PAGE_SIZE + PAGE_SIZE / MAX_PLAIN;

    fn compress(&mut self, page: &PageBuf, _: u8, out: &mut [u8]) -> Option<usize> {
        let (mut at, mut length) = (0, 0);
        while at < PAGE_SIZE {
            let run = run_at(&page[at..]);
            if RUN.contains(&run) {
                out[length..length + 2].copy_from_slice(&[(run + 126) as u8, page[at]]);
                (at, length) = (at + run, length + 2);
            } else {
                let plain = (1..MAX_PLAIN.min(PAGE_SIZE - at)).take_while(|n| run_at(&page[at + n..]) < 3).count() + 1;
                out[length] = (plain - 1) as u8;
                out[length + 1..][..plain].copy_from_slice(&page[at..at + plain]);
                (at, length) = (at + plain, length + 1 + plain);
            }
        }
        Some(length)
    }

    fn expand(mut bytes: &[u8], out: &mut PageBuf) -> bool {
        let mut at = 0;
        while let Some((&header, rest)) = bytes.split_first() {
            let (taken, length) =
                if header < 0x80 { (header as usize + 1, header as usize + 1) } else { (1, header as usize - 126) };
            let (Some(part), Some(place)) = (rest.get(..taken), out.get_mut(at..at + length)) else { return false };
            if taken == length {
                place.copy_from_slice(part)
            } else {
                place.fill(part[0])
            }
            (bytes, at) = (&rest[taken..], at + length);
        }
        at == PAGE_SIZE
    }
}

/// How often the first byte is repeated, as far as one header can encode it.
fn run_at(bytes: &[u8]) -> usize {
    bytes.iter().take(*RUN.end()).take_while(|byte| **byte == bytes[0]).count()
}
