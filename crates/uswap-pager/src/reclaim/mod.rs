//! Reclaim: from the choice of a page to its place in the store.

pub mod cow_copies;
pub mod evict;
pub mod fork_dedup;
pub mod press;
pub mod staging;
pub mod store_worker;
