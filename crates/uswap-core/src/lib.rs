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
pub mod table;
pub mod word;
pub mod working_set;

pub use histogram::{Histogram, HistogramSnapshot};
pub use page::{PAGE_SIZE, PageBuf, PageHash, PageHasher, same_filled};
pub use pool::{Backing, Handle, MAX_OBJECT, Pool, SLAB_SIZE};
pub use rank::{RankedGuard, RankedMutex};
pub use slots::{CLUSTER_SLOTS, Run, Slots};
