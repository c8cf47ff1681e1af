//! From a message of the kernel to the page that a program gets.

pub mod changes;
pub mod install;
pub mod served;
pub mod soft_fault;
pub mod soft_fault_cost;
pub mod swap_in;
pub mod throttle;
pub mod zero_fill;
