//! Another process as an address space of the pager: its agent, its mappings, its events.
#![forbid(unsafe_code)]
// Only commands speak to the user, and the standard streams are the programs'.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod address_space;
pub mod agent;
pub mod as_address_space;
pub mod detach;
pub mod detach_progress;
pub mod events;
pub mod exclusive;
pub mod fd_budget;
pub mod identity;
pub mod inject;
pub mod parts;
pub mod process_tree;
pub mod scan;
pub mod sched;
pub mod settle;
pub mod shared;
pub mod stacks;

use address_space::Remote;

/// A pager of other processes' memory.
pub type Pager = uswap_pager::event_loop::Pager<Remote>;
/// The pager's state of another process's memory.
pub type Space = uswap_pager::space::Space<Remote>;
/// State that the threads of an engine share.
pub type EngineContext = uswap_pager::context::EngineContext<Remote>;
/// Mailbox of a pager thread.
pub type Mailbox = uswap_pager::context::Mailbox<Remote>;
/// A message to a pager thread.
pub type Message = uswap_pager::context::Message<Remote>;
