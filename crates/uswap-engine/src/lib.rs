//! The engine of uswap, in three rooms: the pager, another process as its address space, and a run
//! as a whole.
#![forbid(unsafe_code)]

mod pager;
mod remote;
mod run;

pub use pager::io::page_answer;
pub use pager::{fault_points, record};
pub use remote::agent::handshake::{EVENT_FEATURES, STAGING_FEATURES};
pub use remote::inject::reason;
pub use remote::sched::boost;
pub use remote::{fd_budget, process_tree};
pub use run::attach::eligibility;
pub use run::control::swapon;
pub use run::measure::{cgroup, heap_limits};
pub use run::{config, control, keeper};
