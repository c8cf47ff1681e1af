//! The compressors behind one trait; they allocate no memory for a page. A compressor is a file
//! with a [`Codec`] and a line of the registry below; names, errors, help, tests and the figures of
//! the benchmarks follow from the registry.
//!
//! ```text
//! object in the pool:     | id: u32 | codec: u8 | compressed bytes ... |
//! object on a device:               | codec: u8 | compressed bytes ... |      4096 bytes: a page as it is, no codec
//! ```
//! The codec byte says which compressor expands an object, so the compressor may change while
//! objects of another are stored.
//!
//! A compressing thread owns its contexts ([`Compressor`]).

mod choice;

use uswap_core::{PAGE_SIZE, PageBuf};

pub use choice::Compression;

/// Compressed pages longer than this, codec byte included, save too little to be worth their memory
/// in the pool and a decompression.
pub(crate) const MAX_COMPRESSED: usize = PAGE_SIZE * 3 / 4;

/// Bytes before the compressed ones in the pool: the object's id, so that a moved object is found.
pub(crate) const TAG: usize = 4;

/// Room for the worst case of all compressors.
const OUTPUT: usize = TAG + 1 + max_output(REGISTRY);

/// A compressor. A value of the type is the memory of one compressing thread. It is made before the
/// thread's first page, so that no page allocates. Memory that a C library allocates once for a
/// thread may wait for the first page.
trait Codec: Default {
    /// The codec byte with which its objects begin; no other codec has the same.
    const ID: u8;
    /// The name as users write it, without a colon.
    const NAME: &'static str;
    /// The levels; `None`: there are none to choose from.
    const LEVELS: Option<Levels>;
    /// The text of the man page about it, behind its name.
    const HELP: &'static str;
    /// The reason to choose it, in short, for the help of commands.
    const IN_SHORT: Option<&'static str> = None;
    /// The most bytes to which it compresses a page.
    const MAX_OUTPUT: usize;

    /// Makes the memory that any thread needs in order to expand its objects. Called before the
    /// first is stored.
    ///
    /// # Errors
    /// For the user: no memory.
    fn prepare() -> Result<(), String> {
        Ok(())
    }

    /// Compresses into `out`, which has room for the worst case; returns the length, `None` when it
    /// failed.
    fn compress(&mut self, page: &PageBuf, level: u8, out: &mut [u8]) -> Option<usize>;

    /// Fills `out` with the page; false if `bytes` are not a page. Bytes from a device may be
    /// anything.
    fn expand(bytes: &[u8], out: &mut PageBuf) -> bool;
}

/// The levels of a compressor.
#[derive(Clone, Copy)]
struct Levels {
    /// The lowest, at least 1, and the highest.
    all: (u8, u8),
    /// The level of a name without a level.
    usual: u8,
    /// The levels whose costs are worth a table.
    compared: &'static [u8],
}

/// The constants and functions of a codec, independent of its type.
struct Info {
    id: u8,
    name: &'static str,
    levels: Option<Levels>,
    help: &'static str,
    in_short: Option<&'static str>,
    max_output: usize,
    prepare: fn() -> Result<(), String>,
}

impl Info {
    const fn of<C: Codec>() -> Self {
        Self {
            id: C::ID,
            name: C::NAME,
            levels: C::LEVELS,
            help: C::HELP,
            in_short: C::IN_SHORT,
            max_output: C::MAX_OUTPUT,
            prepare: C::prepare,
        }
    }
}

impl Compression {
    /// The codec's byte, then the level. Only the running store keeps this number: an object has
    /// only the codec's byte.
    pub(crate) fn to_bits(self) -> u16 {
        u16::from_be_bytes([self.id, self.level])
    }

    /// The inverse of [`Compression::to_bits`].
    pub(crate) fn from_bits(bits: u16) -> Self {
        let [id, level] = bits.to_be_bytes();
        Self { id, level }
    }

    /// Makes the memory that any thread needs in order to expand pages of this compressor. To be
    /// called before the first is stored.
    ///
    /// # Errors
    /// For the user: no memory.
    pub(crate) fn prepare(self) -> Result<(), String> {
        (self.info().prepare)()
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
    contexts: Contexts,
    output: Box<[u8; OUTPUT]>,
}

impl Compressor {
    pub fn new() -> Self {
        Self { contexts: Contexts::default(), output: Box::new([0; OUTPUT]) }
    }

    /// The page that was compressed last, from its codec byte on.
    pub fn output(&self) -> &[u8] {
        &self.output[TAG..]
    }

    /// The compressed form of `page` after [`TAG`] bytes left to the caller.
    pub fn compress(&mut self, page: &PageBuf, by: Compression) -> Result<&mut [u8], Reject> {
        let output = &mut self.output[TAG..];
        output[0] = by.id;
        match self.contexts.compress(page, by, &mut output[1..]).map(|length| 1 + length) {
            Some(length) if length <= MAX_COMPRESSED => Ok(&mut self.output[..TAG + length]),
            Some(_) => Err(Reject::Poor),
            None => Err(Reject::Fail),
        }
    }
}

/// Expands `bytes` (a whole page is copied as it is) into `out`; false if they are not a page.
pub(crate) fn expand(bytes: &[u8], out: &mut PageBuf) -> bool {
    if let Ok(raw) = <&PageBuf>::try_from(bytes) {
        *out = *raw;
        return true;
    }
    bytes.split_first().is_some_and(|(&id, bytes)| expand_by(id, bytes, out))
}

/// Fills `out` with one word repeated.
pub(crate) fn fill(out: &mut PageBuf, word: u64) {
    out.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
}

const fn max_output(registry: &[Info]) -> usize {
    let (mut max, mut i) = (0, 0);
    while i < registry.len() {
        if registry[i].max_output > max {
            max = registry[i].max_output;
        }
        i += 1;
    }
    max
}

const fn ids_differ(registry: &[Info]) -> bool {
    let mut i = 0;
    while i < registry.len() {
        let mut j = 0;
        while j < i {
            if registry[i].id == registry[j].id {
                return false;
            }
            j += 1;
        }
        i += 1;
    }
    true
}

const _: () = assert!(ids_differ(REGISTRY), "two codecs have the same id");

/// Makes the registry: the modules of the codecs, their `Info`s, a thread's memory for them, and
/// the dispatch to each.
macro_rules! codecs {
    ($($(#[$only:meta])? $file:ident::$codec:ident,)+) => {
        $($(#[$only])? mod $file;)+

        /// The codecs in the order in which the help lists them; the first is the default.
        const REGISTRY: &[Info] = &[$($(#[$only])? Info::of::<$file::$codec>()),+];

        /// A thread's memory for each codec.
        #[derive(Default)]
        struct Contexts {
            $($(#[$only])? $file: $file::$codec,)+
        }

        impl Contexts {
            fn compress(&mut self, page: &PageBuf, by: Compression, out: &mut [u8]) -> Option<usize> {
                match by.id {
                    $($(#[$only])? $file::$codec::ID => self.$file.compress(page, by.level, out),)+
                    _ => None,
                }
            }
        }

        fn expand_by(id: u8, bytes: &[u8], out: &mut PageBuf) -> bool {
            match id {
                $($(#[$only])? $file::$codec::ID => $file::$codec::expand(bytes, out),)+
                _ => false,
            }
        }
    };
}

// One line each: FILE::TYPE. `make lint` formats the files, which cargo fmt does not find here.
codecs! {
    lz4::Lz4,
    zstd::Zstd,
    #[cfg(test)] run_length::RunLength,
}

#[cfg(test)]
mod tests;
