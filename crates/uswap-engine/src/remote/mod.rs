//! Another process as a space: its agent, its mappings, its events.

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

use address_space::Remote;

/// A pager of other processes' memory.
pub type Pager = crate::pager::event_loop::Pager<Remote>;
/// What the pager knows of another process's memory.
pub type Space = crate::pager::space::Space<Remote>;
/// What the threads of an engine share.
pub type EngineContext = crate::pager::context::EngineContext<Remote>;
/// Where a pager gets its messages.
pub type Mailbox = crate::pager::context::Mailbox<Remote>;
/// What a pager is told.
pub type Message = crate::pager::context::Message<Remote>;
