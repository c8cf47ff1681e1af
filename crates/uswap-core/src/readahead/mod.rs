//! How many pages are brought beside the one that faulted, and which.

pub mod locality;
pub mod streams;
