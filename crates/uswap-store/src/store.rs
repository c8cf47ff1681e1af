//! The store itself: its parts, references to objects, and the pool's limit.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use uswap_core::util::growth::{Growth, during};
use uswap_core::{
    Allocator, Handle, OneLock, PAGE_SIZE, PageHasher, PoolPiece, RankedMutex, SLAB_SIZE, Slabs, Supply, Zbud, ranks,
};
use uswap_sys::Reservation;

use crate::background::repack::Repacker;
use crate::codec::{Compression, TAG};
use crate::config::{AllocatorKind, GROUP, ObjectId, StoreConfig, StoreError};
use crate::device::SwapDevices;
use crate::device::extent::Extent;
use crate::faults::StoreFaults;
use crate::object::table::{EntryList, ObjectPlace, Shard};
use crate::stats::{StoreCounters, StoreStats, add};

/// Copies that are given up each time a shard is locked.
const FREED_AT_ONCE: usize = 16;

/// A piece of the reserved range below the pool.
pub struct PoolMemory(pub Reservation);

impl PoolPiece for PoolMemory {
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

/// The pool's allocator on memory of its own: `reserve` bytes, or `limit` if address space is
/// limited (RLIMIT_AS, strict overcommit).
fn make_pool(config: &StoreConfig) -> Result<Box<dyn Allocator>, StoreError> {
    let (limit, reserve) = (config.pool_limit_bytes, config.pool_reserve_bytes);
    let (piece, more) = match config.tier.allocator {
        AllocatorKind::Slab => (SLAB_SIZE, Slabs::<PoolMemory>::CLASSES * SLAB_SIZE),
        AllocatorKind::Zbud => (PAGE_SIZE, 0),
    };
    let pieces = |bytes: u64| Reservation::in_pieces((bytes as usize).next_multiple_of(piece) + more, piece);
    let pieces = pieces(reserve).or_else(|_| pieces(limit)).map_err(StoreError::Reserve)?;
    let supply = Supply::new(pieces.map(PoolMemory), piece, limit);
    Ok(match config.tier.allocator {
        AllocatorKind::Slab if config.concurrency.one_pool_lock => Box::new(OneLock::new(Slabs::new(supply))),
        AllocatorKind::Slab => Box::new(Slabs::new(supply)),
        AllocatorKind::Zbud => Box::new(Zbud::new(supply)),
    })
}

/// Stored pages in a compressed pool and on devices. Shared by all threads of an engine.
///
/// ```
/// use uswap_core::PageHasher;
/// use uswap_store::{Concurrency, Load, Scratch, Store, StoreConfig, Tier};
///
/// let hasher = PageHasher::new(42);
/// let (pool_limit_bytes, pool_reserve_bytes) = (1 << 20, 1 << 30);
/// let (devices, concurrency, tier) = (vec![], Concurrency::default(), Tier::default());
/// let config = StoreConfig { pool_limit_bytes, pool_reserve_bytes, hasher, devices, concurrency, tier };
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
    pub(crate) pool: Box<dyn Allocator>,
    pub(crate) devices: SwapDevices,
    pub(crate) counters: StoreCounters,
    /// Fault points for tests.
    pub faults: StoreFaults,
    /// The bits of a [`Compression`].
    compression: AtomicU16,
    pub(crate) pool_limit: AtomicU64,
    /// Writeback has started and goes on until the low mark.
    pub(crate) writing_back: AtomicBool,
    /// Writeback found no device with room; cleared when something may have changed that.
    pub(crate) stalled: AtomicBool,
    /// The working memory for squeezing; the thread that squeezes takes it.
    pub(crate) squeezer: Mutex<Option<Repacker>>,
    /// The settings of [`Tuning`].
    tuning: AtomicU8,
    delay: AtomicU64,
    /// The shard whose tail is looked at next.
    pub(crate) next_shard: AtomicU32,
    /// Bit n: the nth group of shards may have objects.
    groups: AtomicU64,
}

/// Settings that tests and measurements change. The default is used otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tuning {
    /// Writeback gives each object a slot of its own.
    pub no_packing: bool,
    /// Devices read whole pages only, whatever sector size they report.
    pub whole_pages: bool,
    /// Packed objects may touch two slots also on devices that read whole pages only.
    pub crossing: bool,
    /// Writeback goes on until the pool is empty.
    pub eager_writeback: bool,
    /// All packed objects are moved again and again.
    pub eager_repack: bool,
    /// Rule off: pages are refused as soon as no slot is left, however much room is lost in packs.
    pub no_squeeze: bool,
    /// Writeback waits for this time before and after each write, while the objects that it writes
    /// are marked.
    pub delay: Duration,
}

const NO_PACKING: u8 = 1;
const EAGER_WRITEBACK: u8 = 2;
const EAGER_REPACK: u8 = 4;
const NO_SQUEEZE: u8 = 8;

impl Store {
    /// Changes how the store behaves, for tests and measurements.
    pub fn tune(&self, tuning: Tuning) {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        let bits = bit(tuning.no_packing, NO_PACKING)
            | bit(tuning.eager_writeback, EAGER_WRITEBACK)
            | bit(tuning.eager_repack, EAGER_REPACK)
            | bit(tuning.no_squeeze, NO_SQUEEZE);
        self.devices.rules.no_reserve.store(tuning.no_squeeze, Relaxed);
        self.tuning.store(bits, Relaxed);
        self.devices.rules.whole_pages.store(tuning.whole_pages, Relaxed);
        self.devices.rules.crossing.store(tuning.crossing, Relaxed);
        self.delay.store(tuning.delay.as_micros() as u64, Relaxed);
    }

    pub(crate) fn packing(&self) -> bool {
        self.tuning.load(Relaxed) & NO_PACKING == 0
    }

    pub(crate) fn eager_writeback(&self) -> bool {
        self.tuning.load(Relaxed) & EAGER_WRITEBACK != 0
    }

    pub(crate) fn eager_repack(&self) -> bool {
        self.tuning.load(Relaxed) & EAGER_REPACK != 0
    }

    pub(crate) fn squeezes_not(&self) -> bool {
        self.tuning.load(Relaxed) & NO_SQUEEZE != 0
    }

    /// Waits for the delay that a test has set.
    pub(crate) fn pause(&self) {
        let delay = self.delay.load(Relaxed);
        if delay != 0 {
            std::thread::sleep(Duration::from_micros(delay));
        }
    }

    /// An empty store.
    ///
    /// # Errors
    /// [`StoreError::Reserve`] when the address space cannot be reserved,
    /// [`StoreError::Compressor`] without memory for it.
    pub fn new(config: StoreConfig) -> Result<Self, StoreError> {
        let pool = make_pool(&config)?;
        let devices = SwapDevices::new(config.concurrency.slots);
        for (device, priority) in config.devices {
            devices.add(device, priority).ok_or(StoreError::TooManyDevices)?;
        }
        config.tier.compression.prepare().map_err(StoreError::Compressor)?;
        let shards = config.concurrency.shards.clamp(1, 256);
        Ok(Self {
            hasher: config.hasher,
            shards: (0..shards).map(|_| RankedMutex::new(ranks::SHARD, Shard::new())).collect(),
            pool_limit: AtomicU64::new(pool.usage().limit_bytes),
            pool,
            faults: StoreFaults::default(),
            compression: AtomicU16::new(config.tier.compression.to_bits()),
            devices,
            counters: StoreCounters::default(),
            writing_back: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            squeezer: Mutex::new(Some(Repacker::new())),
            tuning: AtomicU8::new(0),
            delay: AtomicU64::new(0),
            next_shard: AtomicU32::new(0),
            groups: AtomicU64::new(0),
        })
    }

    /// Where an object is in the table: its id is its index in its shard times the number of
    /// shards, plus the shard.
    pub(crate) fn split(&self, id: ObjectId) -> (usize, u32) {
        let shards = self.shards.len() as u32;
        ((id.0 % shards) as usize, id.0 / shards)
    }

    pub(crate) fn join(&self, shard: usize, index: u32) -> ObjectId {
        ObjectId(index * self.shards.len() as u32 + shard as u32)
    }

    /// Must be called before an object goes into a shard.
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

    /// The shards that may have objects, each once; each call begins with another one. `by`: by how
    /// many shards the next call begins further on.
    pub(crate) fn shards_in_turn(&self, by: u32) -> impl Iterator<Item = usize> + Clone + use<> {
        let (groups, shards) = (self.groups.load(Relaxed), self.shards.len());
        let in_use = move |shard: &usize| groups & 1 << (shard / GROUP as usize) != 0;
        let count = (0..shards).filter(in_use).count();
        let first = self.next_shard.fetch_add(by, Relaxed) as usize % count.max(1);
        (0..shards).filter(in_use).cycle().skip(first).take(count)
    }

    /// The most objects of a shard, so that each has an id of 32 bits.
    pub(crate) fn most_of_a_shard(&self) -> u32 {
        u32::MAX / self.shards.len() as u32
    }

    /// Adds an authoritative reference to an object to which the caller already has one.
    pub fn retain(&self, id: ObjectId) {
        self.add_refs(id, 1, 0);
    }

    /// Drops an authoritative reference. The last reference of any kind frees the object.
    pub fn release(&self, id: ObjectId) {
        self.add_refs(id, -1, 0);
    }

    /// An authoritative reference becomes a cached one: the page is resident again.
    pub fn make_cached(&self, id: ObjectId) {
        self.add_refs(id, 0, 1);
        self.unstall();
    }

    /// Drops a cached reference: the page was freed or changed.
    pub fn release_cached(&self, id: ObjectId) {
        self.add_refs(id, -1, -1);
    }

    /// Adds a cached reference to an object to which the caller already has a cached one.
    pub fn retain_cached(&self, id: ObjectId) {
        self.add_refs(id, 1, 1);
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
    pub(crate) fn free_copy(&self, copy: Option<ObjectPlace>) {
        match copy {
            None | Some(ObjectPlace::Gone | ObjectPlace::Vacant) => {}
            Some(ObjectPlace::Filled(_)) => {
                self.counters.same_filled_pages.fetch_sub(1, Relaxed);
            }
            Some(ObjectPlace::Pool { handle, .. }) => {
                self.free_in_pool(handle);
                self.unstall();
            }
            Some(ObjectPlace::Device(extent)) => {
                if extent.is_page() {
                    self.counters.stored_incompressible_pages.fetch_sub(1, Relaxed);
                }
                self.devices.free(&extent);
                self.unstall();
            }
        }
    }

    /// Counts a copy that lies on a device now. Called before the entry names that place.
    pub(crate) fn note_whole(&self, extent: &Extent) {
        if extent.is_page() {
            add(&self.counters.stored_incompressible_pages, 1);
        }
    }

    /// The compressor of pages that are stored now.
    pub fn compression(&self) -> Compression {
        Compression::from_bits(self.compression.load(Relaxed))
    }

    /// Sets the compressor for pages stored from now on. Objects already stored stay as they are,
    /// and are expanded by the compressor that made them.
    ///
    /// # Errors
    /// For the user: no memory. Nothing is changed then.
    pub fn set_compression(&self, compression: Compression) -> Result<(), String> {
        compression.prepare()?;
        self.compression.store(compression.to_bits(), Relaxed);
        Ok(())
    }

    /// Gives up to `count` copies up whose references are all cached; returns how many went. `list`
    /// says which tier.
    pub(crate) fn give_up_cached(&self, list: EntryList, count: u32) -> u32 {
        let mut given = 0;
        for shard in self.shards_in_turn(1) {
            while given < count {
                let taken = self.give_up_some(shard, list, count - given);
                given += taken;
                if taken < FREED_AT_ONCE as u32 {
                    break;
                }
            }
        }
        add(&self.counters.cache_given_up, given as u64);
        given
    }

    /// The same for some copies of one shard; their memory goes back after its lock is free again.
    fn give_up_some(&self, shard: usize, list: EntryList, count: u32) -> u32 {
        let mut copies = [ObjectPlace::Gone; FREED_AT_ONCE];
        let mut shard = self.shards[shard].lock();
        let mut taken = 0;
        while taken < FREED_AT_ONCE.min(count as usize)
            && let Some(index) = shard.tail(list)
        {
            copies[taken] = shard.entry(index).place;
            shard.set_place(index, ObjectPlace::Gone);
            taken += 1;
        }
        drop(shard);
        copies[..taken].iter().for_each(|copy| self.free_copy(Some(*copy)));
        taken as u32
    }

    /// Frees a copy in the pool. The pool's lists of free memory may grow.
    pub(crate) fn free_in_pool(&self, handle: Handle) {
        during(Growth::Pool, || self.pool.free(handle));
    }

    pub(crate) fn unstall(&self) {
        if self.stalled.load(Relaxed) {
            self.stalled.store(false, Relaxed);
        }
    }

    /// Memory taken by the pool, in bytes.
    pub fn pool_bytes(&self) -> u64 {
        self.pool.used_bytes()
    }

    /// Changes the most memory that the pool may take. Writeback removes what exceeds it.
    pub fn set_pool_limit(&self, bytes: u64) {
        during(Growth::Pool, || self.pool.set_limit(bytes));
        self.pool_limit.store(self.pool.usage().limit_bytes, Relaxed);
        self.unstall();
    }

    /// Memory of the table of objects, in bytes.
    pub fn table_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }

    /// All figures of the store.
    pub fn stats(&self) -> StoreStats {
        let table_bytes = self.table_bytes();
        let mut stats = StoreStats { table_bytes, devices: self.devices.status(), ..self.counters.snapshot() };
        let pool = self.pool.usage();
        stats.stored_pages = pool.objects + stats.same_filled_pages;
        stats.pool_bytes = pool.used_bytes;
        stats.pool_max_bytes = pool.used_max_bytes;
        stats.pool_limit_bytes = pool.limit_bytes;
        stats.stored_bytes = pool.stored_bytes - pool.objects * TAG as u64;
        stats.hole_bytes = pool.hole_bytes;
        stats.pages_compacted = pool.compacted_pages;
        stats.allocator = self.pool.name().into();
        stats.compressor = self.compression().to_string();
        stats
    }
}
