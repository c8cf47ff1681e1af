//! The lab: eviction policies compared on traces of page numbers.
//!
//! A trace is read twice: once to number its pages densely (and, for `opt`, to learn when each is
//! used next), once to replay it into one simulator for each policy and size. Memory follows the
//! number of distinct pages and not the length of the trace, except for `opt`.
//!
//! Two kinds of policies are told apart. A [`Policy`] sees every access, which is what a simulator
//! can show and a pager cannot. A [`pager::FaultPolicy`] sees faults and soft faults only:
//! [`pager::SimulatedPager`] keeps the page table and answers hits itself, so such a policy cannot
//! learn of one.
#![forbid(unsafe_code)]

// The tests of policies share their traces with the tests beside `src`, which know the crate by its
// name.
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
