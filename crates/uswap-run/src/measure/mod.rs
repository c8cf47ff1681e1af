//! Measures the memory that the tree uses, and steers how much it may use.

pub mod census_state;
pub mod cgroup;
pub mod cow_accounting;
pub mod cow_plausibility;
pub mod governor;
pub mod heap_limits;
pub mod idle_sampling;
pub mod outgrown;
pub mod shared_memory;
pub mod unmanaged;
