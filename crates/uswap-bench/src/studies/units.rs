//! Measures the gain and the cost of compressing four neighbouring pages as one unit of 16 KiB.
//!
//! A longer input compresses better. But to load one page of a unit, the part before it must be
//! decompressed (here: the whole unit), and a unit keeps its bytes until the last of its pages is
//! freed. So the table has, for each compressor: bytes of a page, alone and in a unit; time to
//! store a page and to load one page, alone and in a unit; and the bytes that a unit still costs
//! per live page when only one of its four pages is still stored (pages that came back and were
//! written to leave their bytes in the unit).
//!
//! As in the store, a single page is stored compressed if that saves a quarter, and uncompressed
//! otherwise; so is a unit.

use std::fmt::Write;
use std::time::Instant;

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use uswap_core::{PAGE_SIZE, PageBuf};
use zstd_safe::{CCtx, DCtx};

/// Number of pages in a unit.
pub const PAGES: usize = 4;
const UNIT: usize = PAGES * PAGE_SIZE;

/// A compressor and its contexts, for inputs of any length.
enum UnitCodec {
    Lz4,
    Zstd(CCtx<'static>, DCtx<'static>),
}

impl UnitCodec {
    fn zstd() -> Self {
        Self::Zstd(CCtx::create(), DCtx::create())
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd(..) => "zstd:3",
        }
    }

    fn compress(&mut self, input: &[u8], out: &mut [u8]) -> usize {
        match self {
            Self::Lz4 => compress_into(input, out).expect("room for the worst case"),
            Self::Zstd(context, _) => context.compress(out, input, 3).expect("room for the worst case"),
        }
    }

    fn expand(&mut self, bytes: &[u8], out: &mut [u8]) {
        let length = match self {
            Self::Lz4 => decompress_into(bytes, out).expect("what was compressed"),
            Self::Zstd(_, context) => context.decompress(out, bytes).expect("what was compressed"),
        };
        assert_eq!(length, out.len());
    }
}

/// The cost of storing inputs of one length.
#[derive(Default, Debug)]
struct UnitCost {
    /// Bytes per page as stored.
    bytes: f64,
    /// Microseconds to compress a page, and to load a page.
    store: f64,
    load: f64,
}

fn measure(codec: &mut UnitCodec, pages: &[PageBuf], together: usize) -> UnitCost {
    let length = together * PAGE_SIZE;
    let (mut stored, mut bytes) = (Vec::new(), 0);
    let mut out = vec![0; get_maximum_output_size(UNIT).max(zstd_safe::compress_bound(UNIT))];
    let begin = Instant::now();
    for input in pages.as_flattened().chunks_exact(length) {
        let compressed = codec.compress(input, &mut out);
        let pays = compressed <= length * 3 / 4;
        bytes += if pays { compressed } else { length };
        stored.push(pays.then(|| out[..compressed].to_vec()));
    }
    let count = (stored.len() * together) as f64;
    let store = begin.elapsed().as_secs_f64() * 1e6 / count;
    // Units are loaded in another order than they were stored: when a unit is loaded, none of it is
    // in the processor's caches.
    let step = (stored.len() * 5 / 8) | 1;
    let begin = Instant::now();
    for n in 0..stored.len() {
        if let Some(input) = &stored[n * step % stored.len()] {
            codec.expand(input, &mut out[..length]);
            std::hint::black_box(&out);
        }
    }
    let load = begin.elapsed().as_secs_f64() * 1e6 / stored.len() as f64;
    UnitCost { bytes: bytes as f64 / count, store, load }
}

/// The table for one file of pages, in Markdown.
pub fn table(name: &str, pages: &[PageBuf]) -> String {
    let pages = &pages[..pages.len() / PAGES * PAGES];
    let mut text = format!(
        "## {name}, {} units of {PAGES} pages\n\
         | compressor | bytes a page | in units | | store | in units | load one page | of a unit | bytes a live page after one died |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        pages.len() / PAGES
    );
    for mut codec in [UnitCodec::Lz4, UnitCodec::zstd()] {
        let [alone, unit] = [1, PAGES].map(|together| measure(&mut codec, pages, together));
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.0} | {:+.1} % | {:.1} us | {:.1} us | {:.1} us | {:.1} us | {:.0} |",
            codec.name(),
            alone.bytes,
            unit.bytes,
            100.0 * (unit.bytes / alone.bytes - 1.0),
            alone.store,
            unit.store,
            alone.load,
            unit.load,
            unit.bytes * PAGES as f64 / (PAGES - 1) as f64,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_neighbours_share_makes_units_smaller_and_chance_makes_neither() {
        let mut state = 1u32;
        let mut chance = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        };
        let motif: [u8; 1024] = std::array::from_fn(|_| chance());
        let alike: Vec<PageBuf> = (0..64).map(|_| std::array::from_fn(|i| motif[i % 1024])).collect();
        let noise: Vec<PageBuf> = (0..64).map(|_| std::array::from_fn(|_| chance())).collect();
        for mut codec in [UnitCodec::Lz4, UnitCodec::zstd()] {
            let [alone, unit] = [1, PAGES].map(|together| measure(&mut codec, &alike, together).bytes);
            assert!(unit < alone * 0.5, "{}: {unit} {alone}", codec.name());
            for together in [1, PAGES] {
                assert_eq!(measure(&mut codec, &noise, together).bytes, PAGE_SIZE as f64);
            }
        }
        assert_eq!(table("alike", &alike).lines().count(), 5);
    }
}
