//! From a fault message of the kernel to the installed page.

pub mod changes;
pub mod fork_room;
pub mod install;
pub mod neighbours;
pub mod served;
pub mod soft_fault;
pub mod soft_fault_cost;
pub mod swap_in;
pub mod throttle;
pub mod zero_fill;
