//! `uswap-bench`: programs in less memory than they need, by uswap and by the kernel, in one run,
//! with tables and plots.
//!
//! [`workload`] says what is run, [`system`] who runs it, [`matrix`] in which order;
//! [`matrix::cell`] does one run, with [`measure::cgroup`] and [`system::kernel`] as guards of what
//! has to be put back. [`report`], [`report::tables`] and [`report::plots`] make
//! [`report::results`] readable. [`matrix::figures`] measures what has a requirement,
//! [`studies::compare`] judges two builds, [`studies::packing`], [`studies::zswap`] and
//! [`studies::fault_latency`] are questions of their own, [`studies::locks`] tells what the locks
//! of the store cost; [`measure::sample`] takes pages of programs for [`studies::codecs`] and
//! [`studies::units`]; [`studies::own_memory`] counts what the engine's tables take.
#![forbid(unsafe_code)]

pub mod command_line;
pub mod matrix;
pub mod measure;
pub mod report;
pub mod studies;
pub mod system;
pub mod workload;
