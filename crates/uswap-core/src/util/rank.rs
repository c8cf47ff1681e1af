//! Locks with ranks: the lock order as an assertion instead of a comment.
//!
//! A thread may take a lock only when its rank is higher than that of every lock the thread holds.
//! A debug build panics at the first violation, whether or not it would have deadlocked; a release
//! build checks nothing.
//!
//! Each thread counts how often it had to wait for such a mutex, and how long ([`LockWaits`]): it
//! reads the clock only if another thread holds the lock.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::util::sync::{Mutex, MutexGuard};

/// The ranks; the table of all locks is in docs/design/threads-and-locks.md.
pub mod ranks {
    /// A shard of the store's objects.
    pub const SHARD: u8 = 10;
    /// All of the pool; only used to compare one lock with the locks of the classes.
    pub const POOL_WHOLE: u8 = 19;
    /// A size class of the allocator of compressed bytes.
    pub const POOL: u8 = 20;
    /// The supply of memory of the pool's classes.
    pub const SUPPLY: u8 = 21;
    /// All slots of a device, if one lock is to guard them ([`Locking::Whole`](crate::Locking)).
    pub const SLOTS: u8 = 30;
    /// A lane: a worker's cache of slots.
    pub const LANE: u8 = 31;
    /// The lists of a device's clusters.
    pub const LISTS: u8 = 32;
    /// One cluster.
    pub const CLUSTER: u8 = 33;
    /// Whether a device of the store is still attached.
    pub const DEVICE: u8 = 35;
    /// A stripe of a device in memory.
    pub const STRIPE: u8 = 40;
    /// The context for expanding pages, shared by threads that have no memory for a context of
    /// their own.
    pub const DECODER: u8 = 50;
    /// A reserve of buffers ([`Reserve`](crate::Reserve)).
    pub const RESERVE: u8 = 51;
    /// Pages that relatives by fork give up together.
    pub const ROUNDS: u8 = 52;
    /// Jobs that wait for a thread of the engine.
    pub const JOBS: u8 = 54;
    /// The mailbox of a pager thread.
    pub const MAILBOX: u8 = 55;
}

thread_local! {
    /// One bit per rank held by this thread.
    static HELD: Cell<u64> = const { Cell::new(0) };
    /// Waits of this thread, and nanoseconds of them.
    static WAITS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// The waits of one thread for ranked mutexes since it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockWaits {
    /// Locks that another thread held when this thread wanted them.
    pub count: u64,
    /// Total time until the thread got them.
    pub time: Duration,
}

impl LockWaits {
    /// The waits of the calling thread.
    pub fn here() -> Self {
        let (count, nanoseconds) = WAITS.get();
        Self { count, time: Duration::from_nanos(nanoseconds) }
    }
}

const POISONED: &str = "a thread panicked while it held this lock";

/// Ranks are not checked in a loom model, whose threads share one thread of the system; loom itself
/// finds deadlocks.
const CHECKED: bool = cfg!(all(debug_assertions, not(all(test, loom))));

/// A mutex that knows its place in the lock order.
#[derive(Debug)]
pub struct RankedMutex<T> {
    rank: u8,
    inner: Mutex<T>,
}

impl<T> RankedMutex<T> {
    /// A mutex of `rank` (0 to 63); locks are taken in rising rank.
    pub fn new(rank: u8, value: T) -> Self {
        assert!(rank < 64);
        Self { rank, inner: Mutex::new(value) }
    }

    /// Locks.
    ///
    /// # Panics
    /// When a thread panicked while it held the lock: the data may be half changed. In debug builds
    /// also when this thread holds a lock of the same or a higher rank.
    pub fn lock(&self) -> RankedGuard<'_, T> {
        let held = HeldRanks::enter(self.rank);
        RankedGuard { inner: self.acquire(), _held: held }
    }

    #[cfg(not(all(test, loom)))]
    fn acquire(&self) -> MutexGuard<'_, T> {
        use std::sync::TryLockError;
        match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(_)) => panic!("{POISONED}"),
            Err(TryLockError::WouldBlock) => {
                let since = std::time::Instant::now();
                let inner = self.inner.lock().expect(POISONED);
                let (count, nanoseconds) = WAITS.get();
                WAITS.set((count + 1, nanoseconds + since.elapsed().as_nanos() as u64));
                inner
            }
        }
    }

    #[cfg(all(test, loom))]
    fn acquire(&self) -> MutexGuard<'_, T> {
        self.inner.lock().expect(POISONED)
    }
}

/// The right to use what a [`RankedMutex`] protects.
pub struct RankedGuard<'a, T> {
    inner: MutexGuard<'a, T>,
    _held: HeldRanks,
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

#[cfg(not(all(test, loom)))]
impl<T> RankedGuard<'_, T> {
    /// Gives the lock back until `bell` is notified (or wakes up spuriously), and takes it again.
    ///
    /// # Panics
    /// As [`RankedMutex::lock`]. In debug builds also when this thread holds another ranked lock,
    /// which would be held while it sleeps.
    pub fn wait(self, bell: &std::sync::Condvar) -> Self {
        let Self { inner, _held: held } = self;
        if CHECKED {
            let all = HELD.get();
            assert!(
                all == 1 << held.rank,
                "lock order: sleeps at rank {} while ranks {all:#b} (bits) are held",
                held.rank
            );
        }
        Self { inner: bell.wait(inner).expect(POISONED), _held: held }
    }
}

/// A lock for many readers or one writer that knows its place in the lock order. No thread may hold
/// two read guards of it: a writer that came between them would wait for the first, and the second
/// would wait for the writer.
#[cfg(not(all(test, loom)))]
#[derive(Debug)]
pub struct RankedRwLock<T> {
    rank: u8,
    inner: std::sync::RwLock<T>,
}

#[cfg(not(all(test, loom)))]
impl<T> RankedRwLock<T> {
    /// A lock of `rank` (0 to 63); locks are taken in rising rank.
    pub fn new(rank: u8, value: T) -> Self {
        assert!(rank < 64);
        Self { rank, inner: std::sync::RwLock::new(value) }
    }

    /// Locks for reading.
    ///
    /// # Panics
    /// As [`RankedMutex::lock`].
    pub fn read(&self) -> RankedReadGuard<'_, T> {
        let held = HeldRanks::enter(self.rank);
        RankedReadGuard { inner: self.inner.read().expect(POISONED), _held: held }
    }

    /// Changes the protected value; no thread reads it meanwhile.
    ///
    /// # Panics
    /// As [`RankedMutex::lock`].
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let _held = HeldRanks::enter(self.rank);
        change(&mut self.inner.write().expect(POISONED))
    }
}

/// The right to read what a [`RankedRwLock`] protects.
#[cfg(not(all(test, loom)))]
pub struct RankedReadGuard<'a, T> {
    inner: std::sync::RwLockReadGuard<'a, T>,
    _held: HeldRanks,
}

#[cfg(not(all(test, loom)))]
impl<T> Deref for RankedReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

/// The mark in [`HELD`], taken away on drop. Bound to its thread.
struct HeldRanks {
    rank: u8,
    _thread: PhantomData<*const ()>,
}

impl HeldRanks {
    fn enter(rank: u8) -> Self {
        if CHECKED {
            let held = HELD.get();
            assert!(held >> rank == 0, "lock order: rank {rank} asked for while ranks {held:#b} (bits) are held");
            HELD.set(held | 1 << rank);
        }
        Self { rank, _thread: PhantomData }
    }
}

impl Drop for HeldRanks {
    fn drop(&mut self) {
        if CHECKED {
            HELD.set(HELD.get() & !(1 << self.rank));
        }
    }
}

#[cfg(all(test, not(loom)))]
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
    fn a_wait_is_counted_by_the_thread_that_waited() {
        let lock = RankedMutex::new(1, ());
        let before = LockWaits::here();
        let guard = lock.lock();
        let asking = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                asking.wait();
                drop(lock.lock());
                LockWaits::here()
            });
            asking.wait();
            std::thread::sleep(Duration::from_millis(100));
            drop(guard);
            let waits = waiter.join().expect("the waiter");
            assert!(waits.count == 1 && waits.time > Duration::ZERO, "{waits:?}");
        });
        assert_eq!(LockWaits::here(), before, "nobody kept this thread waiting");
    }

    #[test]
    fn who_waits_for_a_bell_lets_others_have_the_lock() {
        let (lock, bell) = (RankedMutex::new(1, 0), std::sync::Condvar::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                *lock.lock() = 7;
                bell.notify_one();
            });
            let mut value = lock.lock();
            while *value != 7 {
                value = value.wait(&bell);
            }
        });
        assert_eq!(*lock.lock(), 7, "the mark has gone with the lock");
    }

    #[test]
    fn what_is_read_is_what_was_changed() {
        let lock = RankedRwLock::new(1, 3);
        let before = *lock.read();
        let replaced = lock.change(|value| std::mem::replace(value, 4));
        assert_eq!((before, replaced, *lock.read()), (3, 3, 4));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order: sleeps")]
    fn sleeping_with_another_lock_panics() {
        let (low, high) = (RankedMutex::new(1, ()), RankedMutex::new(2, ()));
        let _a = low.lock();
        drop(high.lock().wait(&std::sync::Condvar::new()));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order")]
    fn reading_twice_at_a_time_panics() {
        let lock = RankedRwLock::new(1, ());
        let _first = lock.read();
        drop(lock.read());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order")]
    fn changing_below_a_lock_of_higher_rank_panics() {
        let (low, high) = (RankedRwLock::new(1, ()), RankedMutex::new(2, ()));
        let _b = high.lock();
        low.change(|()| ());
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
