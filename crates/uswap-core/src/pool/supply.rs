//! A supply of pieces of memory under a limit, for the allocators of the pool.
//!
//! A piece is lent to one allocator at a time, and comes back empty: its memory has then gone back
//! to the system. The limit counts touched pages and not lent pieces, so a piece of which little is
//! used costs little. The limit is never exceeded, not even by one page, except after it was
//! lowered.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::PAGE_SIZE;
use crate::util::rank::{RankedMutex, ranks};

/// Memory that never moves.
pub trait PoolPiece: Send {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, for writing.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Gives the memory of `range`, whole pages, back to the system. Its contents are lost; it may
    /// be written again.
    fn release(&mut self, range: Range<usize>);
}

/// The memory of an allocator.
pub struct Supply<P> {
    idle: RankedMutex<Idle<P>>,
    total_pages: u64,
    limit_pages: AtomicU64,
    used_pages: AtomicU64,
    most_pages: AtomicU64,
}

/// Pieces that are not lent.
struct Idle<P> {
    /// Pieces that came back; the last is lent next. The vector has room for all pieces.
    returned: Vec<P>,
    /// Pieces that were never lent. The iterator makes each only when it is needed, so the start
    /// does no work for them.
    fresh: Box<dyn Iterator<Item = P> + Send>,
}

impl<P: PoolPiece> Supply<P> {
    /// A supply of `pieces`, each of `piece_bytes`, of which at most `limit_bytes` are touched at a
    /// time (rounded down to whole pages).
    pub fn new<I>(pieces: I, piece_bytes: usize, limit_bytes: u64) -> Self
    where
        I: ExactSizeIterator<Item = P> + Send + 'static,
    {
        let total_pages = (pieces.len() * piece_bytes / PAGE_SIZE) as u64;
        let idle = Idle { returned: Vec::with_capacity(pieces.len()), fresh: Box::new(pieces) };
        let supply = Self {
            idle: RankedMutex::new(ranks::SUPPLY, idle),
            total_pages,
            limit_pages: AtomicU64::new(0),
            used_pages: AtomicU64::new(0),
            most_pages: AtomicU64::new(0),
        };
        supply.set_limit(limit_bytes);
        supply
    }

    pub(super) fn set_limit(&self, bytes: u64) {
        self.limit_pages.store((bytes / PAGE_SIZE as u64).min(self.total_pages), Relaxed);
    }

    /// Charges pages that are about to be touched; false if the limit does not allow them.
    pub(super) fn charge(&self, pages: u32) -> bool {
        let limit = self.limit_pages.load(Relaxed);
        let charged = |used| Some(used + u64::from(pages)).filter(|used| *used <= limit);
        match self.used_pages.fetch_update(Relaxed, Relaxed, charged) {
            Ok(before) => {
                self.most_pages.fetch_max(before + u64::from(pages), Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    pub(super) fn uncharge(&self, pages: u32) {
        self.used_pages.fetch_sub(u64::from(pages), Relaxed);
    }

    /// Lends a piece, of which no page is charged yet.
    pub(super) fn lend(&self) -> Option<P> {
        let mut idle = self.idle.lock();
        idle.returned.pop().or_else(|| idle.fresh.next())
    }

    /// Takes a piece back, of which the first `pages` were charged.
    pub(super) fn take_back(&self, mut piece: P, pages: u32) {
        piece.release(0..pages as usize * PAGE_SIZE);
        self.uncharge(pages);
        self.idle.lock().returned.push(piece);
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_pages.load(Relaxed) * PAGE_SIZE as u64
    }

    pub(super) fn used_max_bytes(&self) -> u64 {
        self.most_pages.load(Relaxed) * PAGE_SIZE as u64
    }

    pub(super) fn limit_bytes(&self) -> u64 {
        self.limit_pages.load(Relaxed) * PAGE_SIZE as u64
    }
}
