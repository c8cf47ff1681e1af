//! The pager: fault path, reclaim, event handling, and the processes of `uswap run`.
#![forbid(unsafe_code)]

mod audit;
pub mod budget;
pub mod callers;
mod census;
pub mod cgroup;
mod charge;
pub mod config;
pub mod control;
pub mod counters;
mod door;
mod engine;
mod event;
mod evict;
mod fault;
pub mod fault_points;
mod governor;
mod greet;
pub mod group;
mod group_orders;
pub mod groups;
mod image;
pub mod keeper;
pub mod latency;
pub mod lowered;
mod matcher;
mod notes;
mod owner;
mod placement;
pub mod procfs;
mod reader;
pub mod report;
mod scan;
mod share;
pub mod shared;
mod space;
mod swap_in;
pub mod swaps;
mod tray;
mod tree;
mod twins;
pub mod unmanaged;
mod window;
mod worker;

pub use greet::{EVENT_FEATURES, STAGING_FEATURES};
