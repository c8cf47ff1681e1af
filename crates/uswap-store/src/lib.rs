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
//! # Locks
//! Locks are taken in the order of their ranks, which stand in docs/design/threads-and-locks.md;
//! a debug build panics at the first violation (`uswap_core::RankedMutex`).
//!
//! No lock is held over device I/O, compression or decompression.
#![forbid(unsafe_code)]
// Only commands speak to the user, and the standard streams are the programs'.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

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
pub use object::kept::KeptObject;
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
