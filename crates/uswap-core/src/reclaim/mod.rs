//! Which page is evicted next: the two lists, refault distance, and the test of age.

pub mod age_test;
pub mod lists;
pub mod staging;
pub mod thrash_guard;
pub mod working_set;
