//! The store below the cache: the pool of compressed pages, and the devices.
//!
//! Pages that leave memory are offered to a thread that stores them. It takes what it can: an
//! offered page that finds it busy is dropped, and is read from the source when it is asked for
//! again. Where the store is full the oldest pages make room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uswap_core::{PageBuf, PageHash, PageHasher};
use uswap_device::Device;
use uswap_store::{Concurrency, ObjectId, Scratch, Store, StoreConfig, StoreError, Tier, WritebackScratch};

use crate::cache::FileCache;
use crate::cache::pages::Leaving;

/// Pages that wait to be stored, at most.
const OFFERED: usize = 256;
/// Pages that are stored together.
const BATCH: usize = 64;
/// Pages that make room together where the store is full.
const OLDEST: usize = 128;
/// The part of all memory that the tables of stored pages take at most.
const TABLE_SHARE: u64 = 4;

/// The store, and the pages on their way there.
pub struct StoreBelow {
    store: Store,
    /// The key of the checksums.
    seed: u64,
    hasher: PageHasher,
    offered: SyncSender<Leaving>,
    waiting: Mutex<Option<Receiver<Leaving>>>,
    /// Keys and objects in the order in which they were stored; some have left since.
    order: Mutex<VecDeque<(u64, ObjectId)>>,
    /// Pages that were offered and not stored.
    pub refused: AtomicU64,
}

impl StoreBelow {
    /// A store with a pool of at most `pool` bytes and with these devices.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn new(pool: u64, devices: Vec<(Box<dyn Device>, i32)>, tier: Tier, seed: u64) -> Result<Self, StoreError> {
        let hasher = PageHasher::new(seed);
        let store = Store::new(StoreConfig {
            pool_limit_bytes: pool,
            pool_reserve_bytes: pool.max(1 << 30),
            hasher,
            devices,
            concurrency: Concurrency::default(),
            tier,
        })?;
        let (offered, waiting) = sync_channel(OFFERED);
        let (waiting, order) = (Mutex::new(Some(waiting)), Mutex::default());
        let refused = AtomicU64::new(0);
        Ok(Self { store, seed, hasher, offered, waiting, order, refused })
    }

    /// The store itself.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The key of the checksums.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Memory of pool and tables in bytes.
    pub fn memory(&self) -> u64 {
        self.store.pool_bytes() + self.table_bytes()
    }

    fn table_bytes(&self) -> u64 {
        let order = self.order.lock().expect("order").capacity() * size_of::<(u64, ObjectId)>();
        self.store.table_bytes() + order as u64
    }

    /// Whether more pages may be stored in a mount of `ram` bytes: tables take a quarter of it at
    /// most.
    pub fn has_table_room(&self, ram: u64) -> bool {
        self.table_bytes() < ram / TABLE_SHARE
    }

    /// Adds pages that were stored before this mount to the order in which they go.
    pub fn note_order(&self, stored: &[(u64, ObjectId)]) {
        self.order.lock().expect("order").extend(stored);
    }

    /// Keeps an object until it is released.
    pub fn retain(&self, object: ObjectId) {
        self.store.retain(object);
    }

    /// Releases objects.
    pub fn release(&self, objects: &[ObjectId]) {
        objects.iter().for_each(|object| self.store.release(*object));
    }

    /// Offers a page that leaves memory; does not wait.
    pub fn offer(&self, page: Leaving) {
        if self.offered.try_send(page).is_err() {
            self.refused.fetch_add(1, Relaxed);
        }
    }

    /// Stores offered pages until `stop` is set. For a thread of its own.
    pub fn store_offered(cache: &FileCache, stop: &AtomicBool) {
        let Some(below) = cache.below() else { return };
        let Some(waiting) = below.waiting.lock().expect("offered pages").take() else { return };
        let (mut scratch, mut batch) = (Scratch::new(), Vec::with_capacity(BATCH));
        while !stop.load(SeqCst) {
            match waiting.recv_timeout(Duration::from_millis(100)) {
                Ok(page) => batch.push(page),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            }
            batch.extend(waiting.try_iter().take(BATCH - 1));
            below.put(cache, &mut batch, &mut scratch);
            if cache.has_grown() {
                cache.balance();
            }
        }
    }

    /// Stores pages that leave memory. Where there is no room the oldest pages make some.
    pub fn put(&self, cache: &FileCache, batch: &mut Vec<Leaving>, scratch: &mut Scratch) {
        let pages: Vec<(&PageBuf, PageHash)> =
            batch.iter().map(|page| (&*page.frame, self.hasher.hash(&page.frame))).collect();
        let mut results = Vec::with_capacity(pages.len());
        self.store.put_batch(&pages, &mut results, scratch);
        let full = results.iter().filter(|result| result.is_err()).count();
        let makes_room = full > 0 || !self.has_table_room(cache.ram());
        let mut unwanted = Vec::new();
        let mut order = self.order.lock().expect("order");
        let mut tables = cache.lock();
        for (page, result) in batch.drain(..).zip(results) {
            match result {
                Ok(object) if tables.pages.note_stored(&page, object) => order.push_back((page.key, object)),
                Ok(object) => unwanted.push(object),
                Err(_) => {}
            }
        }
        self.refused.fetch_add(full as u64, Relaxed);
        if makes_room {
            let mut left = OLDEST;
            while left > 0
                && let Some((key, object)) = order.pop_front()
            {
                if tables.pages.drop_stored(key, object) {
                    unwanted.push(object);
                    left -= 1;
                }
            }
        }
        drop((tables, order));
        self.release(&unwanted);
    }

    /// Drops entries of pages that have left, if they are many. To be called now and then.
    pub fn tidy(&self, cache: &FileCache) {
        let mut order = self.order.lock().expect("order");
        let tables = cache.lock();
        if order.len() as u64 > tables.pages.stored() * 2 + 1024 {
            order.retain(|(key, object)| tables.pages.is_stored_as(*key, *object));
        }
    }

    /// Drops all pages that lie on this device: the source has them.
    pub fn drop_on(&self, cache: &FileCache, device: u8) {
        let order = self.order.lock().expect("order");
        let lies_there = |object: &ObjectId| self.store.spot_of(*object).is_some_and(|spot| spot.device() == device);
        let there: Vec<(u64, ObjectId)> = order.iter().filter(|(_, object)| lies_there(object)).copied().collect();
        drop(order);
        for some in there.chunks(OLDEST) {
            let mut tables = cache.lock();
            // An entry may be older than its page's object, whose number another page has now.
            let dropped = some.iter().filter(|(key, object)| tables.pages.drop_stored(*key, *object));
            let unwanted: Vec<ObjectId> = dropped.map(|(_, object)| *object).collect();
            drop(tables);
            self.release(&unwanted);
        }
    }

    /// Writes pages of the pool to devices until `stop` is set. For a thread of its own.
    pub fn write_back(cache: &Arc<FileCache>, stop: &AtomicBool) {
        let Some(below) = cache.below() else { return };
        let mut scratch = WritebackScratch::new();
        while !stop.load(SeqCst) {
            let progressed = below.store.needs_writeback() && below.store.writeback(&mut scratch).progressed();
            if !progressed {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
