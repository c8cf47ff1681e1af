//! Stored pages: a compressed tier in memory and swap devices below it, behind one face.
//!
//! ```text
//!            put                          load              load_blocking
//!             |                            ^                      ^
//!   same-filled? -> value only             |                      |
//!   compresses?  -> pool (LRU) --------- copy out, decompress     |
//!   else / full  -> device <- writeback from the pool's tail      |
//!                      '----------------------------------- read, decompress
//! ```
//! An **object** is one stored page with a number of references. An *authoritative* reference says: the page is here
//! and nowhere else. A *cached* one says: the page is resident again and the copy is kept in case it does not change.
//! When all references of an object are cached its copy may be **given up**; a tombstone stays until they are gone.
//!
//! # Lock ranks
//! Taken in rising order only; a debug build panics at the first violation (`uswap_core::RankedMutex`, numbers in `uswap_core::ranks`).
//!
//! | rank | lock | protects |
//! |---|---|---|
//! | 10 | shard (one at a time) | the entries of a part of the objects, and their LRU lists |
//! | 20 | pool | the compressed bytes |
//! | 31 to 33 | lane, lists, cluster of a device | which slots are in use (`uswap_core::Slots`) |
//!
//! No lock is held over device I/O, compression or decompression.
#![forbid(unsafe_code)]

mod codec;
mod compact;
mod config;
mod devices;
mod drain;
mod entry;
mod load;
mod put;
mod stats;
mod store;
mod table;
mod writeback;

pub use config::{Concurrency, Load, LoadError, ObjectId, PutError, StoreConfig, StoreError};
pub use drain::{Drain, DrainRefusal, DrainReport};
pub use put::Scratch;
pub use stats::{DeviceStatus, StoreStats};
pub use store::Store;
pub use writeback::{WritebackReport, WritebackScratch};
