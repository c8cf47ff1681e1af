//! Utilities that every other folder uses: ranked locks, lent buffers, histograms, sizes, and the
//! rules for a thread's allocations.

pub mod growth;
pub(crate) mod histogram;
pub(crate) mod rank;
pub(crate) mod reserve;
pub mod size;
pub(crate) mod sync;
