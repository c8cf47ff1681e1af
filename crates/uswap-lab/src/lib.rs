//! Comparison of eviction policies on traces of page numbers.
//!
//! A trace is read twice: once to number its pages densely (and, for `opt`, to find the next use of
//! each access), once to replay it into one simulator for each policy and size. The memory that
//! this takes grows with the number of distinct pages and not with the length of the trace, except
//! for `opt`.
//!
//! There are two kinds of policies. A [`Policy`] sees every access, which a simulator can provide
//! and a pager cannot. A [`pager::FaultPolicy`] sees only faults and soft faults:
//! [`pager::SimulatedPager`] keeps the page table and answers hits itself, so such a policy cannot
//! learn of a hit.
#![forbid(unsafe_code)]

// The policy tests share their traces with the integration tests beside `src`, which use the crate
// by its name.
#[cfg(test)]
extern crate self as uswap_lab;

pub mod compact;
pub mod generate;
pub mod lackey;
pub mod links;
pub mod numbering;
pub mod pager;
pub mod plot;
pub mod policies;
pub mod policy;
pub mod record;
pub mod replay;
pub mod report;
pub mod size;
pub mod trace;

pub use policies::Kind;
pub use policy::{AccessOutcome, Policy, PolicyCounts};
pub use size::MemoryShareOf;
