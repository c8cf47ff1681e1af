//! The data that the engine and the agent share: the ring, the gate, the staging layout and the
//! messages of their socket.
//!
//! The agent is freestanding and is compiled from this very source, so nothing here needs `std`.
//! The engine writes orders into a [`ring::Ring`] (a memfd mapped by both); the agent executes them
//! inside its process. The program can overwrite the ring, so the engine masks everything that it
//! reads back from it and trusts none of it.
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]

pub mod gate;
pub mod hand_over;
pub mod layout;
pub mod message;
#[cfg(all(test, loom))]
mod models;
pub mod queue;
pub mod ring;
pub mod thread_list;
#[cfg(all(test, not(loom)))]
mod thread_list_tests;

/// The atomic types, loom's in the models (`models.rs`).
pub mod atomic {
    #[cfg(not(all(test, loom)))]
    pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    #[cfg(all(test, loom))]
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
