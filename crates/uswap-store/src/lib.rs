//! The store: keeps pages in a compressed tier in memory and on swap devices below it, behind one
//! interface.
//!
//! ```text
//!            put                          load              load_blocking
//!             |                            ^                      ^
//!   same-filled? -> value only             |                      |
//!   compresses?  -> pool (LRU) --------- copy out, decompress     |
//!   else / full  -> device <- writeback from the pool's tail      |
//!                      '----------------------------------- read, decompress
//! ```
//! An **object** is one stored page with a number of references. An *authoritative* reference means
//! that the page is here and nowhere else. A *cached* reference means that the page is resident
//! again and the copy is kept in case the page does not change. If all references of an object are
//! cached its copy may be **given up**; a tombstone stays until the references are gone.
//!
//! # Lock ranks
//! Taken in rising order only; a debug build panics at the first violation
//! (`uswap_core::RankedMutex`, numbers in `uswap_core::ranks`).
//!
//! | rank | lock | protects |
//! |---|---|---|
//! | 10 | shard (one at a time) | the entries of a part of the objects, and their LRU lists |
//! | 20 | size class of the pool (one at a time) | the compressed bytes of one size |
//! | 21 | supply of the pool | the memory that classes are given |
//! | 31 to 33 | lane, lists, cluster of a device | which slots are in use (`uswap_core::Slots`) |
//!
//! Outside this order is the mutex of the squeezing thread's working memory: it is held for a
//! single statement, in which no other lock is taken.
//!
//! No lock is held over device I/O, compression or decompression.
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as uswap_store;

mod background;
mod codec;
mod config;
mod device;
mod faults;
mod object;
mod path;
mod stats;
mod store;

pub use background::drain::{Drain, DrainRefusal, DrainReport, DrainRoom};
pub use background::repack::RepackReport;
pub use background::writeback::{WritebackReport, WritebackScratch};
pub use codec::Compression;
pub use config::{AllocatorKind, Concurrency, Load, LoadError, ObjectId, PutError, StoreConfig, StoreError, Tier};
pub use faults::{OneIn, StoreFaults};
pub use path::load::{LoadScratch, Spot};
pub use path::load_pages::PageLoad;
pub use path::put::Scratch;
pub use path::queued::QueuedLoad;
pub use stats::{DeviceStatus, StoreStats};
pub use store::{PoolMemory, Store, Tuning};

/// The model test is included here as well, where it can use the compressor that exists only in
/// tests.
#[cfg(test)]
#[path = "../tests/model.rs"]
mod model;
