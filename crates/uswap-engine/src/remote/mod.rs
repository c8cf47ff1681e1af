//! Another process as a space: its agent, its mappings, its events.

pub mod address_space;
pub mod agent;
pub mod events;
pub mod exclusive;
pub mod identity;
pub mod inject;
pub mod scan;
pub mod sched;
pub mod settle;
