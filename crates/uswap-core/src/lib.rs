//! Policy and data structures of uswap: no I/O, no clock, no unsafe. Everything here also runs inside the lab.
#![forbid(unsafe_code)]

pub mod lists;
mod page;
pub mod readahead;
pub mod size;
pub mod table;
pub mod word;

pub use page::{PAGE_SIZE, PageBuf, PageHash, PageHasher, same_filled};
