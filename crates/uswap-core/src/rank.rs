//! Mutexes with ranks: the lock order as an assertion instead of a comment.
//!
//! A thread may take a lock only when its rank is higher than that of every lock the thread holds. A debug build
//! panics at the first violation, whether or not it would have deadlocked; a release build checks nothing.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

thread_local! {
    /// One bit per rank held by this thread.
    static HELD: Cell<u64> = const { Cell::new(0) };
}

/// A mutex that knows its place in the lock order.
#[derive(Debug)]
pub struct RankedMutex<T> {
    rank: u8,
    inner: Mutex<T>,
}

impl<T> RankedMutex<T> {
    /// A mutex of `rank` (0 to 63); locks are taken in rising rank.
    pub const fn new(rank: u8, value: T) -> Self {
        assert!(rank < 64);
        Self { rank, inner: Mutex::new(value) }
    }

    /// Locks.
    ///
    /// # Panics
    /// When a thread panicked while it held the lock: the data may be half changed. In debug builds also when this
    /// thread holds a lock of the same or a higher rank.
    pub fn lock(&self) -> RankedGuard<'_, T> {
        let held = Held::enter(self.rank);
        let inner = self.inner.lock().expect("a thread panicked while it held this lock");
        RankedGuard { inner, _held: held }
    }
}

/// The right to use what a [`RankedMutex`] protects.
pub struct RankedGuard<'a, T> {
    inner: MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// The mark in [`HELD`], taken away on drop. Bound to its thread.
struct Held {
    rank: u8,
    _thread: PhantomData<*const ()>,
}

impl Held {
    fn enter(rank: u8) -> Self {
        if cfg!(debug_assertions) {
            let held = HELD.get();
            assert!(held >> rank == 0, "lock order: rank {rank} asked for while ranks {held:#b} (bits) are held");
            HELD.set(held | 1 << rank);
        }
        Self { rank, _thread: PhantomData }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.set(HELD.get() & !(1 << self.rank));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rising_ranks_are_allowed_and_released() {
        let (low, high) = (RankedMutex::new(1, 1), RankedMutex::new(2, 2));
        for _ in 0..2 {
            let a = low.lock();
            let mut b = high.lock();
            *b += *a;
            drop(a);
        }
        assert_eq!(*high.lock(), 4);
        assert_eq!(*low.lock(), 1);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order")]
    fn falling_rank_panics() {
        let (low, high) = (RankedMutex::new(1, ()), RankedMutex::new(2, ()));
        let _b = high.lock();
        let _a = low.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order")]
    fn same_rank_panics() {
        let (one, two) = (RankedMutex::new(3, ()), RankedMutex::new(3, ()));
        let _a = one.lock();
        let _b = two.lock();
    }
}
