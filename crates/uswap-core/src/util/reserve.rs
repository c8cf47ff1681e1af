//! A reserve: buffers that are made once and lent, so that moving a page to or from a device
//! allocates no memory.
//!
//! Swap over a network needs memory to free memory. So the buffers for requests and answers are
//! there from the start. A thread that finds no buffer left waits for an answer, which frees a
//! buffer, and never for memory.
//!
//! Buffers come in sizes. Each is lent to a *holder* (a group of processes, or one process), and
//! the half of the reserve that is free when things go well is what keeps holders from starving one
//! another:
//!
//! ```text
//! 0 ............................ half ............................ all
//!   every holder, as long as        holders below their fair share;
//!   others have their share         faults inside system calls
//! ```
//! With `n` holders that hold or want something, the *fair share* of each is `half / n`. Above
//! half, or above its fair share while others wait, a holder is refused until something of its own
//! comes back. A holder below its fair share is not refused: the others hold at most `half` if they
//! exceed their shares, and all shares together are `half`. Requests for pages ahead of their
//! faults are refused from three eighths on, as the programs can do without them.
//!
//! A lease gives its buffer back when it is dropped. Neither lending nor giving back allocates.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::util::rank::{RankedMutex, ranks};

/// Number of holders that are told apart; further holders share the places of these.
const HOLDERS: usize = 64;

/// How urgently a buffer is needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Need {
    /// For pages that no thread waits for.
    Ahead,
    /// For a page that a thread waits for.
    Fault,
    /// The thread is inside a system call and holds locks that others may want.
    System,
}

/// Buffers of several sizes, lent to many threads.
#[derive(Debug)]
pub struct Reserve<B> {
    inner: Arc<Inner<B>>,
}

impl<B> Clone for Reserve<B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

#[derive(Debug)]
struct Inner<B> {
    state: RankedMutex<ReserveState<B>>,
    total: AtomicU32,
    used: AtomicU32,
    peak: AtomicU32,
    refused: AtomicU64,
}

#[derive(Debug)]
struct ReserveState<B> {
    /// By rising size.
    sizes: Vec<ReserveSize<B>>,
    /// Pages that each holder has.
    held: [u32; HOLDERS],
    /// Bit n: holder n was refused and has got nothing since.
    wanting: u64,
}

#[derive(Debug)]
struct ReserveSize<B> {
    pages: u32,
    free: Vec<B>,
}

/// The use of a reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReserveUse {
    /// Pages of all buffers.
    pub total: u32,
    /// Pages of those that are lent.
    pub used: u32,
    /// The most pages that were ever lent.
    pub peak: u32,
    /// Grows when a holder was refused, including requests for reading ahead.
    pub refused: u64,
}

/// A lent buffer; goes back when it is dropped.
#[derive(Debug)]
pub struct Lease<B> {
    buffer: Option<B>,
    size: usize,
    pages: u32,
    holder: usize,
    reserve: Arc<Inner<B>>,
}

impl<B> Reserve<B> {
    /// A reserve of these buffers: for each size, in rising order, the pages of a buffer and the
    /// buffers.
    pub fn new(sizes: Vec<(u32, Vec<B>)>) -> Self {
        debug_assert!(sizes.is_sorted_by_key(|(pages, _)| *pages));
        let total = sizes.iter().map(|(pages, buffers)| pages * buffers.len() as u32).sum();
        let sizes = sizes.into_iter().map(|(pages, free)| ReserveSize { pages, free }).collect();
        let state = ReserveState { sizes, held: [0; HOLDERS], wanting: 0 };
        let inner = Inner {
            state: RankedMutex::new(ranks::RESERVE, state),
            total: AtomicU32::new(total),
            used: AtomicU32::new(0),
            peak: AtomicU32::new(0),
            refused: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Adds buffers of an existing size, for a device that came later.
    pub fn add(&self, pages: u32, buffers: Vec<B>) {
        let mut state = self.inner.state.lock();
        if let Some(size) = state.sizes.iter_mut().find(|size| size.pages == pages) {
            self.inner.total.fetch_add(pages * buffers.len() as u32, Relaxed);
            size.free.extend(buffers);
        }
    }

    /// Lends a buffer of at least `pages`, or the largest that is free if none is as large; `None`:
    /// the holder must wait.
    pub fn take(&self, holder: usize, pages: u32, need: Need) -> Option<Lease<B>> {
        let holder = holder % HOLDERS;
        let inner = &self.inner;
        let mut state = inner.state.lock();
        let (used, total) = (inner.used.load(Relaxed), inner.total.load(Relaxed));
        let allowed = state.allowed(holder, used, total, need);
        let found = state.fitting(pages, allowed);
        let Some(size) = found else {
            if need != Need::Ahead {
                state.wanting |= 1 << holder;
            }
            inner.refused.fetch_add(1, Relaxed);
            return None;
        };
        let buffer = state.sizes[size].free.pop();
        let pages = state.sizes[size].pages;
        state.held[holder] += pages;
        state.wanting &= !(1 << holder);
        inner.used.store(used + pages, Relaxed);
        inner.peak.fetch_max(used + pages, Relaxed);
        Some(Lease { buffer, size, pages, holder, reserve: inner.clone() })
    }

    /// Forgets which holders were refused. To be called now and then: a holder that still wants a
    /// buffer is refused again, and one that has ended no longer keeps others waiting.
    pub fn forget_wants(&self) {
        self.inner.state.lock().wanting = 0;
    }

    /// Whether half of the reserve is lent: then threads that can wait should.
    pub fn is_tight(&self) -> bool {
        self.inner.used.load(Relaxed) * 2 >= self.inner.total.load(Relaxed)
    }

    /// The present use of the reserve.
    pub fn usage(&self) -> ReserveUse {
        let inner = &self.inner;
        ReserveUse {
            total: inner.total.load(Relaxed),
            used: inner.used.load(Relaxed),
            peak: inner.peak.load(Relaxed),
            refused: inner.refused.load(Relaxed),
        }
    }
}

impl<B> ReserveState<B> {
    /// Pages that the holder may get now.
    fn allowed(&self, holder: usize, used: u32, total: u32, need: Need) -> u32 {
        let half = total / 2;
        let others = |n: &usize| *n != holder && (self.held[*n] > 0 || self.wanting >> n & 1 == 1);
        let fair = half / (1 + (0..HOLDERS).filter(others).count() as u32);
        let others_wait = self.wanting & !(1 << holder) != 0;
        let below_share = fair.saturating_sub(self.held[holder]);
        match need {
            Need::System => total - used,
            Need::Ahead if others_wait => 0,
            Need::Ahead => (half - half / 4).saturating_sub(used),
            // Every holder gets its first buffer, however small the shares are.
            Need::Fault if self.held[holder] == 0 => total - used,
            Need::Fault if others_wait => below_share,
            Need::Fault => below_share.max(half.saturating_sub(used)),
        }
    }

    /// The smallest size with a free buffer of at least `pages`, else the largest below, of
    /// `allowed` pages at most.
    fn fitting(&self, pages: u32, allowed: u32) -> Option<usize> {
        let has = |(_, size): &(usize, &ReserveSize<B>)| !size.free.is_empty() && size.pages <= allowed;
        let sizes = || self.sizes.iter().enumerate().filter(has);
        let enough = sizes().find(|(_, size)| size.pages >= pages);
        enough.or_else(|| sizes().next_back()).map(|(index, _)| index)
    }
}

impl<B> Lease<B> {
    /// Pages that the buffer counts for.
    pub fn pages(&self) -> u32 {
        self.pages
    }
}

impl<B> Deref for Lease<B> {
    type Target = B;
    fn deref(&self) -> &B {
        self.buffer.as_ref().expect("a lease has its buffer until it is dropped")
    }
}

impl<B> DerefMut for Lease<B> {
    fn deref_mut(&mut self) -> &mut B {
        self.buffer.as_mut().expect("a lease has its buffer until it is dropped")
    }
}

impl<B> Drop for Lease<B> {
    fn drop(&mut self) {
        let mut state = self.reserve.state.lock();
        state.held[self.holder] -= self.pages;
        self.reserve.used.fetch_sub(self.pages, Relaxed);
        // The vector has room, since the buffer came from it.
        state.sizes[self.size].free.extend(self.buffer.take());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn reserve() -> Reserve<u32> {
        Reserve::new(vec![(1, (0..16).collect()), (4, (100..112).collect()), (16, (200..204).collect())])
    }

    #[test]
    fn a_lease_comes_back_and_none_is_lent_twice() {
        let reserve = reserve();
        let mut seen = std::collections::HashSet::new();
        let mut leases = Vec::new();
        while let Some(lease) = reserve.take(1, 1, Need::System) {
            assert!(seen.insert(*lease), "lent twice");
            leases.push(lease);
        }
        assert_eq!((seen.len(), reserve.usage().used, reserve.usage().total), (32, 128, 128));
        drop(leases);
        assert_eq!((reserve.usage().used, reserve.usage().peak, reserve.usage().refused), (0, 128, 1));
        assert_eq!(reserve.take(1, 16, Need::Fault).map(|lease| lease.pages()), Some(16));
    }

    #[test]
    fn a_single_holder_gets_half_and_reading_ahead_less() {
        let reserve = reserve();
        let mut held = Vec::new();
        held.extend(std::iter::from_fn(|| reserve.take(1, 1, Need::Ahead)));
        let ahead = reserve.usage().used;
        assert!((32..64).contains(&ahead), "{ahead}");
        held.extend(std::iter::from_fn(|| reserve.take(1, 1, Need::Fault)));
        assert_eq!(reserve.usage().used, 64);
        assert!(reserve.is_tight() && reserve.take(1, 1, Need::Fault).is_none());
        assert!(reserve.take(1, 1, Need::System).is_some(), "inside a system call nobody waits for that");
    }

    /// Tests the promise that fairness rests on, for holders that take and give back at random and
    /// always want more.
    #[test]
    fn whoever_is_below_its_fair_share_is_never_refused() {
        let reserve = Reserve::new(vec![(1, (0..256u32).collect())]);
        let mut held: Vec<Vec<Lease<u32>>> = (0..4).map(|_| Vec::new()).collect();
        let mut random = 1u64;
        for _ in 0..50_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let holder = (random >> 60) as usize % 4;
            if random >> 40 & 3 == 0 {
                let last = held[holder].len();
                held[holder].truncate(last / 2);
                continue;
            }
            let below = held[holder].len() < 256 / 2 / 4;
            match reserve.take(holder, 1, Need::Fault) {
                Some(lease) => held[holder].push(lease),
                None => assert!(!below, "holder {holder} has {}", held[holder].len()),
            }
            assert!(held.iter().map(Vec::len).sum::<usize>() <= 256);
        }
    }

    #[test]
    fn the_greedy_one_gives_way_to_one_that_wants_its_share() {
        let reserve = Reserve::new(vec![(1, (0..64u32).collect())]);
        let mut greedy: Vec<_> = std::iter::from_fn(|| reserve.take(1, 1, Need::Fault)).collect();
        assert_eq!(greedy.len(), 32, "alone it has half");
        let modest: Vec<_> = std::iter::from_fn(|| reserve.take(2, 1, Need::Fault)).collect();
        assert_eq!(modest.len(), 16, "the other one gets its share all the same");
        greedy.truncate(20);
        assert!(reserve.take(1, 1, Need::Fault).is_none(), "it is above its share, and the other one waits");
        assert!(reserve.take(2, 1, Need::Fault).is_none(), "and so is this one");
        greedy.truncate(10);
        assert!(reserve.take(1, 1, Need::Fault).is_some());
    }

    #[test]
    fn a_size_that_is_gone_is_replaced_by_another() {
        let reserve = reserve();
        let big: Vec<_> = (0..4).filter_map(|_| reserve.take(1, 16, Need::System)).collect();
        assert_eq!(big.len(), 4);
        assert_eq!(reserve.take(1, 16, Need::System).map(|lease| lease.pages()), Some(4), "less is better than none");
        reserve.add(16, vec![300]);
        assert_eq!(reserve.take(1, 2, Need::System).map(|lease| lease.pages()), Some(4), "the smallest that fits");
        assert_eq!(reserve.take(1, 5, Need::System).map(|lease| lease.pages()), Some(16));
    }
}
