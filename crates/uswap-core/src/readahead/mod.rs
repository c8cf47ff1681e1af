//! Readahead: which pages are brought together with the one that faulted.

pub mod locality;
pub mod neighbours;
pub mod streams;
