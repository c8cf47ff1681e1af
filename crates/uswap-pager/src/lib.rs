//! The pager: pages, their faults and their reclaim; each space belongs to one pager thread. The
//! pager uses its memory through the trait [`address_space::AddressSpace`], and depends neither on
//! processes, nor on /proc, nor on the agent.
#![forbid(unsafe_code)]
// Only commands speak to the user, and the standard streams are the programs'.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod accounting;
pub mod address_space;
pub mod balance_state;
pub mod context;
pub mod counters;
pub mod event_loop;
#[cfg(test)]
mod fake;
pub mod fault;
pub mod fault_points;
pub mod idle_priority;
pub mod io;
pub mod latency;
pub mod load_control;
pub mod reclaim;
pub mod record;
pub mod runner;
pub mod space;

// The agent is compiled without uswap-core and has the size from uswap-abi.
const _: () = assert!(uswap_abi::layout::PAGE == uswap_core::PAGE);
