//! Types of the store's interface: configuration, object names, errors.

use std::sync::Arc;
use std::{error, fmt, io};

use uswap_core::{Locking, PageHasher};
use uswap_device::{Device, Errno};

use crate::codec::Compression;

/// Shards of the table of objects. The kernel cuts its swap cache into pieces of 64 MiB because it
/// is a tree by slot; this table is an array by object, and the worker that stores an object
/// chooses the shard: each worker has [`GROUP`] shards of its own.
const SHARDS: u32 = 256;
/// Shards that a worker fills in turn. Each has an LRU list of its own: with more of them the lists
/// of a small pool would be too short to tell hot from cold.
pub(crate) const GROUP: u32 = 8;

/// The configuration of a store.
pub struct StoreConfig {
    /// The most memory the pool may take, in bytes (rounded down to whole pages).
    pub pool_limit_bytes: u64,
    /// Address space reserved for the pool, in bytes: the highest limit that can be set later.
    pub pool_reserve_bytes: u64,
    /// Computes the hashes given to `put`, and verifies what is loaded.
    pub hasher: PageHasher,
    /// Devices for the pages that the pool does not take, with priorities: a device of higher
    /// priority is used first, devices of equal priority take turns. May be empty.
    pub devices: Vec<(Box<dyn Device>, i32)>,
    /// How finely the store is locked.
    pub concurrency: Concurrency,
    /// How the store keeps pages in memory.
    pub tier: Tier,
}

/// The configuration of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tier {
    /// The allocator of the pool's memory.
    pub allocator: AllocatorKind,
    /// The compressor to begin with.
    pub compression: Compression,
}

/// The pool's allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AllocatorKind {
    /// Dense slabs of size classes.
    #[default]
    Slab,
    /// At most two objects in a page, for comparison.
    Zbud,
}

impl std::str::FromStr for AllocatorKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "slab" => Ok(Self::Slab),
            "zbud" => Ok(Self::Zbud),
            _ => Err(format!("there is no allocator {text:?}; there is: slab, zbud")),
        }
    }
}

/// How finely a store is locked. The default is used; the other settings exist for comparison
/// (`uswap-bench locks`).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Concurrency {
    /// The slots of each device.
    pub slots: Locking,
    /// Shards of the table of objects: 1 to 256.
    pub shards: u32,
    /// One lock around the pool.
    pub one_pool_lock: bool,
}

impl Default for Concurrency {
    fn default() -> Self {
        Self { slots: Locking::Caches, shards: SHARDS, one_pool_lock: false }
    }
}

/// Names a stored page for as long as it has references.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId(pub(crate) u32);

impl ObjectId {
    /// The id as a number, for packed page words.
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// The id whose number is `bits`.
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// Why no store could be made.
#[derive(Debug)]
pub enum StoreError {
    /// The pool's address space could not be reserved.
    Reserve(io::Error),
    /// More than 255 devices.
    TooManyDevices,
    /// The compressor could not be set up.
    Compressor(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserve(e) => write!(f, "address space for the pool could not be reserved: {e}"),
            Self::TooManyDevices => write!(f, "more than 255 swap devices"),
            Self::Compressor(why) => write!(f, "the compressor cannot be set up: {why}"),
        }
    }
}

impl error::Error for StoreError {}

/// Why a page was not stored.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PutError {
    /// Neither the pool nor any device could take it: the caller keeps the page in RAM.
    Full,
}

impl fmt::Display for PutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "neither the pool nor any device has room")
    }
}

impl error::Error for PutError {}

/// The answer of [`Store::load`](crate::Store::load).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Load {
    /// The page is in the buffer and its checksum was right.
    Ready,
    /// It must be read from a device: call `load_blocking` where waiting is allowed.
    OnDevice,
}

/// Why a page could not be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoadError {
    /// The device failed to read.
    Io {
        /// Name of the device.
        device: Arc<str>,
        /// Slot of the page.
        slot: u32,
        /// The errno that the device returned.
        errno: i32,
    },
    /// The bytes read are not the stored ones, also after a second read.
    Checksum {
        /// Name of the device, `None` for the pool.
        device: Option<Arc<str>>,
        /// Slot of the page, 0 for the pool.
        slot: u32,
    },
    /// The copy was given up: only cached references are left.
    Gone,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { device, slot, errno } => write!(f, "{device}: slot {slot} cannot be read: {}", Errno(*errno)),
            Self::Checksum { device: Some(device), slot } => write!(f, "{device}: slot {slot} has a wrong checksum"),
            Self::Checksum { device: None, .. } => write!(f, "a page in the compressed pool has a wrong checksum"),
            Self::Gone => write!(f, "the stored copy was given up"),
        }
    }
}

impl error::Error for LoadError {}
