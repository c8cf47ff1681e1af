//! `uswap-bench`: runs programs in less memory than they need, under uswap and under the kernel's
//! swap, in one run, with tables and plots.
//!
//! [`workload`] defines the programs, [`system`] the ways to run them, [`matrix`] the order of the
//! runs; [`matrix::cell`] does one run, with [`measure::cgroup`] and [`system::kernel`] as guards
//! that restore what the run changed. [`report`], [`report::tables`] and [`report::plots`] make
//! [`report::results`] readable. [`matrix::figures`] measures the figures that have a requirement,
//! and [`studies::compare`] compares two builds. [`studies::packing`], [`studies::zswap`] and
//! [`studies::fault_latency`] answer one question each, [`studies::locks`] measures the cost of the
//! store's locks; [`measure::sample`] takes pages of programs for [`studies::codecs`] and
//! [`studies::units`]; [`studies::own_memory`] measures the size of the engine's tables.
#![forbid(unsafe_code)]

pub mod command_line;
pub mod matrix;
pub mod measure;
pub mod report;
pub mod studies;
pub mod system;
pub mod workload;
