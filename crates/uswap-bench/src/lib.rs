//! `uswap-bench`: programs in less memory than they need, by uswap and by the kernel, in one run, with tables and plots.
//!
//! [`workload`] says what is run, [`system`] who runs it, [`matrix`] in which order; [`cell`] does one run, with
//! [`cgroup`] and [`kernel`] as guards of what has to be put back. [`report`], [`tables`] and [`plots`] make
//! [`results`] readable. [`figures`] measures what has a requirement, [`compare`] judges two builds, [`packing`], [`zswap`] and
//! [`fault_latency`] are questions of their own, [`locks`] tells what the
//! locks of the store cost; [`sample`] takes pages of programs for [`codecs`] and [`units`];
//! [`own_memory`] counts what the engine's tables take.
#![forbid(unsafe_code)]

pub mod cell;
pub mod cgroup;
pub mod codecs;
pub mod command_line;
pub mod compare;
pub mod ctree;
pub mod fault_latency;
pub mod figures;
pub mod kernel;
pub mod launch;
pub mod locks;
pub mod machine;
pub mod matrix;
pub mod own_memory;
pub mod packing;
pub mod page_commands;
pub mod plots;
mod pool_locks;
pub mod proc_text;
pub mod real;
pub mod report;
pub mod results;
pub mod sample;
pub mod statistics;
pub mod system;
pub mod tables;
pub mod units;
pub mod workload;
pub mod zswap;
