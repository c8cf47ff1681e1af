//! Policy and data structures of uswap: no I/O, no clock, no unsafe. Everything here also runs inside the lab.
#![forbid(unsafe_code)]

pub mod age_test;
mod blocks;
pub mod growth;
mod histogram;
pub mod lists;
mod living;
pub mod load_control;
pub mod locality;
mod page;
mod pool;
pub mod programs;
mod rank;
pub mod readahead;
mod reserve;
pub mod size;
mod slab;
mod slots;
pub mod staging;
mod sync;
pub mod table;
pub mod thrash_guard;
pub mod word;
pub mod working_set;

pub use blocks::Blocks;
pub use histogram::{Histogram, HistogramSnapshot};
pub use living::Living;
pub use page::{PAGE_SIZE, PageBuf, PageHash, PageHasher, same_filled};
pub use pool::{AllocError, Allocator, Handle, MAX_OBJECT, OneLock, Piece, SLAB_SIZE, Slabs, Supply, Usage, Zbud};
pub use rank::{LockWaits, RankedGuard, RankedMutex, ranks};
#[cfg(not(all(test, loom)))]
pub use rank::{RankedReadGuard, RankedRwLock};
pub use reserve::{Lease, Need, Reserve, ReserveUse};
pub use slots::{BATCH_SLOTS, CLUSTER_SLOTS, Locking, Run, Slots, worker_number};
