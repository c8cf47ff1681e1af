//! Studies: each answers one question by measurement.

pub mod codecs;
pub mod compare;
pub mod fault_latency;
pub mod locks;
pub mod own_memory;
pub mod packing;
pub(crate) mod pool_locks;
pub mod units;
pub mod zswap;
