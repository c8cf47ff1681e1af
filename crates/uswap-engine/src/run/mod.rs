//! A run of `uswap run` or `uswap attach`: its processes, threads, measurements and orders.

pub mod attach;
pub mod config;
pub mod control;
pub mod fd_budget;
pub mod keeper;
pub mod measure;
pub mod record;
pub mod supervisor;
pub mod threads;
