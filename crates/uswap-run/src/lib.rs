//! A run of `uswap run` or `uswap attach`: its processes, threads, measurements and orders.
#![forbid(unsafe_code)]

mod attach;
pub mod config;
pub mod control;
pub mod keeper;
mod load_control;
mod measure;
mod shared;
mod supervisor;
mod threads;

pub use uswap_pager::accounting::group;
pub use uswap_pager::io::page_answer;
pub use uswap_pager::{fault_points, record};
pub use uswap_remote::agent::handshake::{EVENT_FEATURES, STAGING_FEATURES};
pub use uswap_remote::inject::reason;
pub use uswap_remote::sched::boost;
pub use uswap_remote::{fd_budget, process_tree};

pub use crate::attach::eligibility;
pub use crate::control::swapon;
pub use crate::measure::{cgroup, heap_limits};
