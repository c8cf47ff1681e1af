//! Pieces of memory under a limit, for the allocators of the pool.
//!
//! A piece is lent to one allocator at a time, and comes back empty: its memory has then gone back to the system. The limit
//! counts pages that are touched and not pieces that are lent, so a piece of which little is used costs little. It is never
//! exceeded, not by one page, except after it was lowered.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::PAGE_SIZE;
use crate::rank::{RankedMutex, ranks};

/// Memory that never moves.
pub trait Piece: Send {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, to write.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Gives the memory of `range`, whole pages, back to the system. What it held is lost; it may be written again.
    fn release(&mut self, range: Range<usize>);
}

/// The memory of an allocator.
pub struct Supply<P> {
    /// Pieces not lent; the next one is the last.
    idle: RankedMutex<Vec<P>>,
    total_pages: u64,
    limit_pages: AtomicU64,
    used_pages: AtomicU64,
    most_pages: AtomicU64,
}

impl<P: Piece> Supply<P> {
    /// A supply of `pieces`, of which at most `limit_bytes` are touched at a time (rounded down to whole pages).
    pub fn new(mut pieces: Vec<P>, limit_bytes: u64) -> Self {
        let total_pages = pieces.iter().map(|piece| piece.bytes().len() / PAGE_SIZE).sum::<usize>() as u64;
        pieces.reverse();
        let supply = Self {
            idle: RankedMutex::new(ranks::SUPPLY, pieces),
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

    /// Counts pages that are about to be touched; false when the limit does not allow them.
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

    /// Lends a piece, of which nothing is charged yet.
    pub(super) fn lend(&self) -> Option<P> {
        self.idle.lock().pop()
    }

    /// Takes a piece back, of which the first `pages` were charged.
    pub(super) fn take_back(&self, mut piece: P, pages: u32) {
        piece.release(0..pages as usize * PAGE_SIZE);
        self.uncharge(pages);
        self.idle.lock().push(piece);
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
