//! Policy and data structures of uswap: no I/O, no clock, no unsafe. Everything here also runs inside the lab.
#![forbid(unsafe_code)]

pub mod challenge;
mod histogram;
pub mod lists;
mod page;
mod pool;
mod rank;
pub mod readahead;
pub mod size;
mod slots;
mod sync;
pub mod table;
pub mod word;
pub mod working_set;

pub use histogram::{Histogram, HistogramSnapshot};
pub use page::{PAGE_SIZE, PageBuf, PageHash, PageHasher, same_filled};
pub use pool::{Backing, Handle, MAX_OBJECT, Pool, SLAB_SIZE};
pub use rank::{LockWaits, RankedGuard, RankedMutex, ranks};
pub use slots::{BATCH_SLOTS, CLUSTER_SLOTS, Locking, Run, Slots, worker_number};
