//! A run of `uswap run` or `uswap attach`: its processes, threads, measurements and orders.

pub mod attach;
pub mod config;
pub mod control;
pub mod keeper;
pub mod load_control;
pub mod measure;
pub mod shared;
pub mod supervisor;
pub mod threads;
