//! `uswap-bench`: programs in less memory than they need, by uswap and by the kernel, in one run,
//! with tables and plots.
//!
//! [`workload`] says what is run, [`system`] who runs it, [`matrix`] in which order; [`cell`] does
//! one run, with [`cgroup`] and [`kernel`] as guards of what has to be put back. [`report`],
//! [`tables`] and [`plots`] make [`results`] readable. [`figures`] measures what has a requirement,
//! [`compare`] judges two builds, [`packing`], [`zswap`] and [`fault_latency`] are questions of
//! their own, [`locks`] tells what the locks of the store cost; [`sample`] takes pages of programs
//! for [`codecs`] and [`units`]; [`own_memory`] counts what the engine's tables take.
#![forbid(unsafe_code)]

pub mod command_line;
pub mod matrix;
pub mod measure;
pub mod report;
pub mod studies;
pub mod system;
pub mod workload;
