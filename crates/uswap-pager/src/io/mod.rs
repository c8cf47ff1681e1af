//! Reads from devices, and pages that are brought in without a fault.

pub mod bounded_queue;
pub mod direct_reads;
pub mod page_answer;
pub mod page_query;
pub mod prepage;
pub mod readahead_cache;
pub mod reader;
pub mod unuse;
