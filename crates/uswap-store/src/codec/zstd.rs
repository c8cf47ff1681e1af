//! Zstandard. Its contexts come from the C library.
//!
//! The context of a compressing thread is made when the thread meets its first page for zstd, and
//! serves every level; if there is no memory for it the page counts as one whose compression
//! failed, and goes to a device as it is. Expanding needs a context too (94 KiB): each thread makes
//! one when it meets its first such page; if it cannot, it uses the shared context that was made
//! when zstd was chosen, waiting for it if need be.

use std::cell::RefCell;
use std::sync::OnceLock;

use uswap_core::{PAGE_SIZE, PageBuf, RankedMutex, ranks};
use zstd_safe::{CCtx, CParameter, DCtx};

use super::{Codec, Levels};

thread_local! {
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}
/// The context of threads that have no memory for one of their own.
static SHARED_DECODER: OnceLock<RankedMutex<DCtx<'static>>> = OnceLock::new();

/// The context, once it is made, and the level it is set to.
#[derive(Default)]
pub(super) struct Zstd(Option<(CCtx<'static>, u8)>);

impl Zstd {
    /// The context, made or set to another level if necessary.
    fn at_level(&mut self, level: u8) -> Option<&mut CCtx<'static>> {
        if self.0.is_none() {
            self.0 = Some((new_context(level)?, level));
        }
        let (context, current) = self.0.as_mut()?;
        if *current != level {
            context.set_parameter(CParameter::CompressionLevel(level.into())).ok()?;
            *current = level;
        }
        Some(context)
    }
}

fn new_context(level: u8) -> Option<CCtx<'static>> {
    let mut context = CCtx::try_create()?;
    // The length of a page is known, and the store verifies pages itself.
    context.set_parameter(CParameter::ContentSizeFlag(false)).ok()?;
    context.set_parameter(CParameter::ChecksumFlag(false)).ok()?;
    context.set_parameter(CParameter::CompressionLevel(level.into())).ok()?;
    Some(context)
}

impl Codec for Zstd {
    const ID: u8 = 2;
    const NAME: &'static str = "zstd";
    const LEVELS: Option<Levels> = Some(Levels { all: (1, 22), usual: 3, compared: &[1, 3, 9, 19] });
    const HELP: &'static str = "makes pages smaller and takes two to three times as long at low levels";
    const IN_SHORT: Option<&'static str> = Some("smaller and slower");
    /// `ZSTD_COMPRESSBOUND` of `zstd.h`, whose function is not `const` here.
    const MAX_OUTPUT: usize = PAGE_SIZE + (PAGE_SIZE >> 8) + (((128 << 10) - PAGE_SIZE) >> 11);

    fn prepare() -> Result<(), String> {
        if SHARED_DECODER.get().is_none() {
            let context = DCtx::try_create().ok_or("no memory for zstd")?;
            // Another thread may have set it first, which is as good.
            let _ = SHARED_DECODER.set(RankedMutex::new(ranks::DECODER, context));
        }
        Ok(())
    }

    fn compress(&mut self, page: &PageBuf, level: u8, out: &mut [u8]) -> Option<usize> {
        self.at_level(level)?.compress2(out, page).ok()
    }

    fn expand(bytes: &[u8], out: &mut PageBuf) -> bool {
        let by =
            |context: &mut DCtx<'static>, out: &mut PageBuf| context.decompress(&mut out[..], bytes) == Ok(PAGE_SIZE);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_case_is_that_of_the_library() {
        assert_eq!(Zstd::MAX_OUTPUT, zstd_safe::compress_bound(PAGE_SIZE));
    }
}
