//! The pager without a kernel: memory that is a map of pages, and the tests on it.

pub mod memory;
mod tests;
