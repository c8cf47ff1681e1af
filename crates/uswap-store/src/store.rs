//! The store itself: what it is made of, references, and the pool's limit.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use uswap_core::{Backing, PageHash, PageHasher, Pool, RankedMutex, ranks};
use uswap_sys::Reservation;

use crate::config::{GROUP, ObjectId, StoreConfig, StoreError};
use crate::devices::Devices;
use crate::stats::{Counters, StoreStats, add};
use crate::table::{List, Place, Shard};

/// The reserved range below the pool.
pub(crate) struct PoolMemory(Reservation);

impl Backing for PoolMemory {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
    fn release(&mut self, range: Range<usize>) {
        self.0.release(range);
    }
}

/// Stored pages in a compressed pool and on devices. Shared by all threads of an engine.
///
/// ```
/// use uswap_core::PageHasher;
/// use uswap_store::{Concurrency, Load, Scratch, Store, StoreConfig};
///
/// let hasher = PageHasher::new(42);
/// let (pool_limit_bytes, pool_reserve_bytes) = (1 << 20, 1 << 30);
/// let (devices, concurrency) = (vec![], Concurrency::default());
/// let config = StoreConfig { pool_limit_bytes, pool_reserve_bytes, hasher, devices, concurrency };
/// let store = Store::new(config).unwrap();
/// let (mut scratch, page) = (Scratch::new(), [7; 4096]);
/// let id = store.put(&page, hasher.hash(&page), &mut scratch).unwrap();
/// let mut back = [0; 4096];
/// assert_eq!(store.load(id, &mut back), Ok(Load::Ready));
/// assert_eq!(back, page);
/// store.release(id);
/// ```
pub struct Store {
    pub(crate) hasher: PageHasher,
    pub(crate) shards: Box<[RankedMutex<Shard>]>,
    pub(crate) pool: RankedMutex<Pool<PoolMemory>>,
    pub(crate) devices: Devices,
    pub(crate) counters: Counters,
    /// Mirror of the pool's used bytes, to be read without its lock.
    pub(crate) pool_used: AtomicU64,
    pub(crate) pool_limit: AtomicU64,
    /// Writeback has started and goes on until the low mark.
    pub(crate) writing_back: AtomicBool,
    /// Writeback found no device with room; cleared when something may have changed that.
    pub(crate) stalled: AtomicBool,
    /// The shard whose tail is looked at next.
    pub(crate) next_shard: AtomicU32,
    /// Bit n: the nth group of shards may have objects.
    groups: AtomicU64,
}

impl Store {
    /// An empty store.
    ///
    /// # Errors
    /// [`StoreError::Reserve`] when the address space is not to be had.
    pub fn new(config: StoreConfig) -> Result<Self, StoreError> {
        let devices = Devices::new(config.concurrency.slots);
        for (device, priority) in config.devices {
            devices.add(device, priority).ok_or(StoreError::TooManyDevices)?;
        }
        // Where address space is rationed (RLIMIT_AS, strict overcommit), as much as the limit needs will do.
        let reservation = Reservation::new(config.pool_reserve_bytes as usize)
            .or_else(|_| Reservation::new(config.pool_limit_bytes as usize))
            .map_err(StoreError::Reserve)?;
        let shards = config.concurrency.shards.clamp(1, 256);
        let pool = Pool::new(PoolMemory(reservation), config.pool_limit_bytes);
        Ok(Self {
            hasher: config.hasher,
            shards: (0..shards).map(|_| RankedMutex::new(ranks::SHARD, Shard::new())).collect(),
            pool_limit: AtomicU64::new(pool.limit_bytes()),
            pool: RankedMutex::new(ranks::POOL, pool),
            devices,
            counters: Counters::default(),
            pool_used: AtomicU64::new(0),
            writing_back: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            next_shard: AtomicU32::new(0),
            groups: AtomicU64::new(0),
        })
    }

    /// Where an object is in the table: its id is its index in its shard times the number of shards, plus the shard.
    pub(crate) fn split(&self, id: ObjectId) -> (usize, u32) {
        let shards = self.shards.len() as u32;
        ((id.0 % shards) as usize, id.0 / shards)
    }

    pub(crate) fn join(&self, shard: usize, index: u32) -> ObjectId {
        ObjectId(index * self.shards.len() as u32 + shard as u32)
    }

    /// To be said before an object goes into a shard.
    pub(crate) fn note_in_use(&self, shard: usize) {
        let bit = 1 << (shard / GROUP as usize);
        if self.groups.load(Relaxed) & bit == 0 {
            self.groups.fetch_or(bit, Relaxed);
        }
    }

    /// Whether the shard may have objects.
    pub(crate) fn is_in_use(&self, shard: usize) -> bool {
        self.groups.load(Relaxed) & 1 << (shard / GROUP as usize) != 0
    }

    /// The shards that may have objects, each once, in turns: another one is first each time. `by`: how many are passed
    /// until the next call begins.
    pub(crate) fn shards_in_turn(&self, by: u32) -> impl Iterator<Item = usize> + Clone + use<> {
        let (groups, shards) = (self.groups.load(Relaxed), self.shards.len());
        let in_use = move |shard: &usize| groups & 1 << (shard / GROUP as usize) != 0;
        let count = (0..shards).filter(in_use).count();
        let first = self.next_shard.fetch_add(by, Relaxed) as usize % count.max(1);
        (0..shards).filter(in_use).cycle().skip(first).take(count)
    }

    /// Objects of a shard, at most, so that each has an id of 32 bits.
    pub(crate) fn most_of_a_shard(&self) -> u32 {
        u32::MAX / self.shards.len() as u32
    }

    /// One more authoritative reference to an object that the caller has one to.
    pub fn retain(&self, id: ObjectId) {
        self.add_refs(id, 1, 0);
    }

    /// One authoritative reference less. The last reference of any kind frees the object.
    pub fn release(&self, id: ObjectId) {
        self.add_refs(id, -1, 0);
    }

    /// An authoritative reference becomes a cached one: the page is resident again.
    pub fn make_cached(&self, id: ObjectId) {
        self.add_refs(id, 0, 1);
        self.unstall();
    }

    /// One cached reference less: the page was freed or changed.
    pub fn release_cached(&self, id: ObjectId) {
        self.add_refs(id, -1, -1);
    }

    /// One more cached reference to an object that the caller has a cached one to.
    pub fn retain_cached(&self, id: ObjectId) {
        self.add_refs(id, 1, 1);
    }

    /// The page of a cached reference is evicted again with this hash. True: the copy is there and equal, and the
    /// reference is authoritative again. False: the reference was dropped, and the page must be `put`.
    pub fn reuse_cached(&self, id: ObjectId, hash: PageHash) -> bool {
        let (shard, index) = self.split(id);
        let mut guard = self.shards[shard].lock();
        let entry = guard.entry(index);
        let equal = entry.place != Place::Gone && entry.hash == hash;
        let freed = match equal {
            true => guard.add_refs(index, 0, -1),
            false => guard.add_refs(index, -1, -1),
        };
        if equal {
            // As recent as a page just stored.
            guard.move_to_head(index);
        }
        drop(guard);
        add(if equal { &self.counters.cache_reused } else { &self.counters.cache_stale }, 1);
        self.free_copy(freed);
        equal
    }

    /// One more authoritative reference to an object the caller has none of, if it still is there with this hash.
    pub fn retain_if(&self, id: ObjectId, hash: PageHash) -> bool {
        let (shard, index) = self.split(id);
        let mut guard = self.shards[shard].lock();
        let entry = guard.entry(index);
        let there = entry.refs > 0 && !matches!(entry.place, Place::Gone | Place::Vacant { .. }) && entry.hash == hash;
        if there {
            let freed = guard.add_refs(index, 1, 0);
            debug_assert!(freed.is_none());
        }
        there
    }

    /// Slots in use on the devices of this name.
    pub fn device_pages(&self, name: &str) -> u64 {
        self.devices.status().iter().filter(|device| device.name == name).map(|device| device.slots_used).sum()
    }

    fn add_refs(&self, id: ObjectId, refs: i64, cached: i64) {
        let (shard, index) = self.split(id);
        let freed = self.shards[shard].lock().add_refs(index, refs, cached);
        self.free_copy(freed);
    }

    /// Frees a copy that no entry names any more.
    pub(crate) fn free_copy(&self, copy: Option<Place>) {
        match copy {
            None | Some(Place::Gone | Place::Vacant { .. }) => {}
            Some(Place::Filled(_)) => {
                self.counters.same_filled_pages.fetch_sub(1, Relaxed);
            }
            Some(Place::Pool { handle, .. }) => {
                self.with_pool(|pool| pool.free(handle));
                self.unstall();
            }
            Some(Place::Device { device, slot, .. }) => {
                self.devices.free((device, slot));
                self.unstall();
            }
        }
    }

    /// Works on the pool under its lock and keeps the mirror of its size.
    pub(crate) fn with_pool<R>(&self, work: impl FnOnce(&mut Pool<PoolMemory>) -> R) -> R {
        let mut pool = self.pool.lock();
        let result = work(&mut pool);
        self.pool_used.store(pool.used_bytes(), Relaxed);
        result
    }

    /// Gives up to `count` copies up whose references are all cached; returns how many went. `list` says which tier.
    pub(crate) fn give_up_cached(&self, list: List, count: u32) -> u32 {
        let mut given = 0;
        for shard in self.shards_in_turn(1) {
            let mut shard = self.shards[shard].lock();
            while given < count
                && let Some(index) = shard.tail(list)
            {
                let copy = shard.entry(index).place;
                shard.set_place(index, Place::Gone);
                self.free_copy(Some(copy));
                given += 1;
            }
        }
        add(&self.counters.cache_given_up, given as u64);
        given
    }

    pub(crate) fn unstall(&self) {
        if self.stalled.load(Relaxed) {
            self.stalled.store(false, Relaxed);
        }
    }

    /// Memory taken by the pool, in bytes.
    pub fn pool_bytes(&self) -> u64 {
        self.pool_used.load(Relaxed)
    }

    /// Changes the most memory the pool may take. What is above it goes by writeback.
    pub fn set_pool_limit(&self, bytes: u64) {
        let limit = self.with_pool(|pool| {
            pool.set_limit(bytes);
            pool.limit_bytes()
        });
        self.pool_limit.store(limit, Relaxed);
        self.unstall();
    }

    /// All figures of the store.
    pub fn stats(&self) -> StoreStats {
        let table_bytes = self.shards.iter().map(|s| s.lock().bytes()).sum();
        let mut stats = StoreStats { table_bytes, devices: self.devices.status(), ..self.counters.snapshot() };
        let pool = self.pool.lock();
        stats.stored_pages = pool.objects() + stats.same_filled_pages;
        stats.pool_bytes = pool.used_bytes();
        stats.pool_limit_bytes = pool.limit_bytes();
        stats.stored_bytes = pool.stored_bytes();
        stats
    }
}
