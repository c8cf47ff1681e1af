//! Compressors behind one trait, without an allocation for each page.
//!
//! ```text
//! object in the pool:     | id: u32 | codec: u8 | compressed bytes ... |
//! object on a device:               | codec: u8 | compressed bytes ... |      4096 bytes: a page as it is, no codec
//! ```
//! The codec byte says who expands an object, so the compressor may change while objects of the one before are stored.
//!
//! A compressing thread owns its contexts. That of zstd is made when the thread meets its first page for zstd, and serves every
//! level; where there is no memory for it the page counts as one whose compression failed, and goes to a device as it is.
//! Expanding with zstd needs a context too (94 KiB): each thread makes one when it meets its first such page, and
//! where it cannot it waits for the one that was made when zstd was chosen.

use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use uswap_core::{PAGE_SIZE, PageBuf, RankedMutex, ranks};
use zstd_safe::{CCtx, CParameter, DCtx};

/// Compressed pages longer than this, codec byte included, save too little to be worth the pool's memory and a
/// decompression.
pub(crate) const MAX_COMPRESSED: usize = PAGE_SIZE * 3 / 4;

/// Bytes before the compressed ones in the pool: the object's id, so that a moved object is found.
pub(crate) const TAG: usize = 4;

/// Room for the worst case of both: that of LZ4 is the larger one.
const OUTPUT: usize = TAG + 1 + get_maximum_output_size(PAGE_SIZE);
const LEVELS: std::ops::RangeInclusive<u8> = 1..=22;
const USUAL_LEVEL: u8 = 3;

/// Codec bytes.
const LZ4: u8 = 1;
const ZSTD: u8 = 2;

/// Which compressor stores pages from now on.
///
/// ```
/// use uswap_store::Compression;
///
/// assert_eq!("zstd".parse(), Ok(Compression::zstd(3).unwrap()));
/// assert_eq!(Compression::zstd(19).unwrap().to_string(), "zstd:19");
/// assert!("zstd:23".parse::<Compression>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// LZ4, block format.
    #[default]
    Lz4,
    /// Zstandard with a level from 1 to 22.
    Zstd(Level),
}

/// A level of zstd that exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level(u8);

impl Compression {
    /// Zstandard; `None` for a level that does not exist.
    pub fn zstd(level: u8) -> Option<Self> {
        LEVELS.contains(&level).then_some(Self::Zstd(Level(level)))
    }

    pub(crate) fn to_bits(self) -> u8 {
        match self {
            Self::Lz4 => 0,
            Self::Zstd(Level(level)) => level,
        }
    }

    pub(crate) fn from_bits(bits: u8) -> Self {
        Self::zstd(bits).unwrap_or(Self::Lz4)
    }

    /// Makes what any thread needs in order to expand pages of this compressor. To be done before the first is stored.
    ///
    /// # Errors
    /// For the user: no memory.
    pub(crate) fn prepare(self) -> Result<(), String> {
        match self {
            Self::Lz4 => Ok(()),
            Self::Zstd(_) if SHARED_DECODER.get().is_some() => Ok(()),
            Self::Zstd(_) => {
                let context = DCtx::try_create().ok_or("no memory for zstd")?;
                // Another one may have been faster, which is as good.
                let _ = SHARED_DECODER.set(RankedMutex::new(ranks::DECODER, context));
                Ok(())
            }
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lz4 => write!(f, "lz4"),
            Self::Zstd(Level(level)) => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for Compression {
    type Err = String;

    /// `lz4` or `zstd[:LEVEL]`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, level) = text.split_once(':').map_or((text, None), |(name, level)| (name, Some(level)));
        match (name, level) {
            ("lz4", None) => Ok(Self::Lz4),
            ("lz4", Some(_)) => Err("lz4 has no levels".into()),
            ("zstd", None) => Ok(Self::Zstd(Level(USUAL_LEVEL))),
            ("zstd", Some(level)) => level.parse().ok().and_then(Self::zstd).ok_or_else(|| {
                format!("{level:?} is no level of zstd: they go from {} to {}", LEVELS.start(), LEVELS.end())
            }),
            _ => Err(format!("there is no compressor {name:?}; there is: lz4, zstd[:LEVEL]")),
        }
    }
}

/// The compressing half of a codec, with its working memory.
trait Codec {
    /// What its objects begin with.
    const BYTE: u8;

    /// Compresses into `out`, which has room for the worst case; returns the length, `None` when it failed.
    fn compress(&mut self, page: &PageBuf, out: &mut [u8]) -> Option<usize>;
}

struct Lz4(CompressTable);

impl Codec for Lz4 {
    const BYTE: u8 = LZ4;

    fn compress(&mut self, page: &PageBuf, out: &mut [u8]) -> Option<usize> {
        compress_into_with_table(page, out, &mut self.0).ok()
    }
}

/// The context, and the level it is set to.
struct Zstd(CCtx<'static>, Level);

impl Zstd {
    fn new(level: Level) -> Option<Self> {
        let mut context = CCtx::try_create()?;
        // The length of a page is known, and so is who verifies it.
        context.set_parameter(CParameter::ContentSizeFlag(false)).ok()?;
        context.set_parameter(CParameter::ChecksumFlag(false)).ok()?;
        context.set_parameter(CParameter::CompressionLevel(level.0.into())).ok()?;
        Some(Self(context, level))
    }

    /// The context in `slot`, made or set to another level where need be.
    fn at_level(slot: &mut Option<Self>, level: Level) -> Option<&mut Self> {
        if slot.is_none() {
            *slot = Self::new(level);
        }
        let zstd = slot.as_mut()?;
        if zstd.1 != level {
            zstd.0.set_parameter(CParameter::CompressionLevel(level.0.into())).ok()?;
            zstd.1 = level;
        }
        Some(zstd)
    }
}

impl Codec for Zstd {
    const BYTE: u8 = ZSTD;

    fn compress(&mut self, page: &PageBuf, out: &mut [u8]) -> Option<usize> {
        self.0.compress2(out, page).ok()
    }
}

/// Why a page is not stored compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reject {
    /// It would be longer than [`MAX_COMPRESSED`].
    Poor,
    /// The compressor failed.
    Fail,
}

/// The working memory of a compressing thread.
pub(crate) struct Compressor {
    lz4: Lz4,
    zstd: Option<Zstd>,
    output: Box<[u8; OUTPUT]>,
}

impl Compressor {
    pub fn new() -> Self {
        Self { lz4: Lz4(CompressTable::default()), zstd: None, output: Box::new([0; OUTPUT]) }
    }

    /// What was compressed last, from its codec byte on.
    pub fn output(&self) -> &[u8] {
        &self.output[TAG..]
    }

    /// The compressed form of `page` after [`TAG`] bytes left to the caller.
    pub fn compress(&mut self, page: &PageBuf, by: Compression) -> Result<&mut [u8], Reject> {
        let output = &mut self.output[TAG..];
        let length = match by {
            Compression::Lz4 => with_byte(&mut self.lz4, page, output),
            Compression::Zstd(level) => {
                Zstd::at_level(&mut self.zstd, level).and_then(|zstd| with_byte(zstd, page, output))
            }
        };
        match length {
            Some(length) if length <= MAX_COMPRESSED => Ok(&mut self.output[..TAG + length]),
            Some(_) => Err(Reject::Poor),
            None => Err(Reject::Fail),
        }
    }
}

/// The codec byte and what the codec makes of the page; the length of both.
fn with_byte<C: Codec>(codec: &mut C, page: &PageBuf, output: &mut [u8]) -> Option<usize> {
    output[0] = C::BYTE;
    codec.compress(page, &mut output[1..]).map(|length| 1 + length)
}

/// Expands `bytes` (a whole page is taken as it is) into `out`; false when they are no page.
pub(crate) fn expand(bytes: &[u8], out: &mut PageBuf) -> bool {
    if let Ok(raw) = <&PageBuf>::try_from(bytes) {
        *out = *raw;
        return true;
    }
    match bytes.split_first() {
        Some((&LZ4, bytes)) => decompress_into(bytes, out).is_ok_and(|n| n == PAGE_SIZE),
        Some((&ZSTD, bytes)) => expand_zstd(bytes, out),
        _ => false,
    }
}

thread_local! {
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}
/// For threads that have no memory for one of their own.
static SHARED_DECODER: OnceLock<RankedMutex<DCtx<'static>>> = OnceLock::new();

fn expand_zstd(bytes: &[u8], out: &mut PageBuf) -> bool {
    let by = |context: &mut DCtx<'static>, out: &mut PageBuf| context.decompress(&mut out[..], bytes) == Ok(PAGE_SIZE);
    DECODER.with_borrow_mut(|own| {
        if own.is_none() {
            *own = DCtx::try_create();
        }
        match (own, SHARED_DECODER.get()) {
            (Some(context), _) => by(context, out),
            (None, Some(shared)) => by(&mut shared.lock(), out),
            (None, None) => false,
        }
    })
}

/// Fills `out` with one word repeated.
pub(crate) fn fill(out: &mut PageBuf, word: u64) {
    out.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Compression> {
        [Compression::Lz4].into_iter().chain(LEVELS.filter_map(Compression::zstd))
    }

    fn noise(page: &mut PageBuf) {
        let mut state = 1u64;
        page.iter_mut().for_each(|b| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *b = (state >> 56) as u8;
        });
    }

    /// Every level after every other one: the context is the same.
    #[test]
    fn round_trip_and_rejection() {
        let mut codec = Compressor::new();
        let mut page = [0; PAGE_SIZE];
        for by in all().chain(all()) {
            page.iter_mut().enumerate().for_each(|(i, b)| *b = (i / 7 % 50) as u8);
            let mut back = [1; PAGE_SIZE];
            assert!(expand(&codec.compress(&page, by).unwrap()[TAG..], &mut back), "{by}");
            assert_eq!(back, page);
            noise(&mut page);
            assert_eq!(codec.compress(&page, by), Err(Reject::Poor), "{by}");
        }
        let mut back = [0; PAGE_SIZE];
        assert!(expand(&page, &mut back));
        assert_eq!(back, page);
    }

    #[test]
    fn garbage_is_refused_not_trusted() {
        let mut back = [0; PAGE_SIZE];
        assert!(!expand(&[], &mut back));
        for seed in 0..200u8 {
            let mut bytes: Vec<u8> = (0..100).map(|i: u8| i.wrapping_mul(seed).rotate_left(3) ^ seed).collect();
            for codec in [0, LZ4, ZSTD, ZSTD + 1, 255] {
                bytes[0] = codec;
                assert!(!expand(&bytes, &mut back));
            }
        }
    }

    /// What is cut, lengthened or flipped is no page, or another one, which its hash tells; it is never out of bounds.
    #[test]
    fn damaged_objects_are_no_panic() {
        let (mut codec, mut back) = (Compressor::new(), [0; PAGE_SIZE]);
        let mut page = [7; PAGE_SIZE];
        noise((&mut page[..]).try_into().unwrap());
        page[1500..].fill(9);
        for by in [Compression::Lz4, Compression::zstd(1).unwrap(), Compression::zstd(22).unwrap()] {
            let bytes = codec.compress(&page, by).unwrap()[TAG..].to_vec();
            for length in 0..bytes.len() {
                assert!(!expand(&bytes[..length], &mut back), "{by} cut to {length}");
            }
            for bit in (0..8 * bytes.len()).step_by(3) {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let _ = expand(&bytes, &mut back);
            }
        }
    }

    #[test]
    fn names_are_read_and_written() {
        for by in all() {
            assert_eq!(by.to_string().parse(), Ok(by));
            assert_eq!(Compression::from_bits(by.to_bits()), by);
        }
        for bad in
            ["", "lzo", "LZ4", "lz4:1", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "zstd:3:4", "zstd:x", "zstd:300"]
        {
            assert!(bad.parse::<Compression>().is_err(), "{bad}");
        }
    }
}
