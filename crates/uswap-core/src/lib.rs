//! The policies and data structures of uswap: no I/O, no clock, no unsafe code. All of them also
//! run inside the lab.
#![forbid(unsafe_code)]
// Only commands speak to the user, and the standard streams are the programs'.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod load_control;
pub mod page;
mod pool;
pub mod readahead;
pub mod reclaim;
mod slots;
pub mod util;

pub use page::bytes::{PAGE, PAGE_SIZE, PageBuf, PageHash, PageHasher, same_filled};
pub use pool::{AllocError, Allocator, Handle, MAX_OBJECT, OneLock, PoolPiece, SLAB_SIZE, Slabs, Supply, Usage, Zbud};
pub use slots::blocks::Blocks;
pub use slots::living::Living;
pub use slots::{BATCH_SLOTS, CLUSTER_SLOTS, Locking, SlotRun, Slots, worker_number};
pub use util::histogram::{Histogram, HistogramSnapshot};
pub use util::rank::{LockWaits, RankedGuard, RankedMutex, ranks};
#[cfg(not(all(test, loom)))]
pub use util::rank::{RankedReadGuard, RankedRwLock};
pub use util::reserve::{Lease, Need, Reserve, ReserveUse};
