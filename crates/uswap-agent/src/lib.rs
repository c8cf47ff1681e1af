//! The agent: the library that is preloaded into every program of a process tree. It is
//! freestanding: raw system calls, no libc, no allocation.
//!
//! Its constructor reserves the area (see `uswap_abi::layout`), makes a process that shares the
//! program's memory (see `birth`) and returns; that process has a file table of its own, so the
//! program neither sees its fds nor can close them. It connects to the engine, hands over two
//! userfaultfds and from then on executes orders from the ring. Everything it touches is in the
//! area or on its own stack, and neither is ever managed: the agent can never wait for a page that
//! only it could move.
#![no_std]
#![allow(missing_docs)]

#[path = "../../uswap-abi/src/gate.rs"]
pub mod gate;
#[path = "../../uswap-abi/src/hand_over.rs"]
pub mod hand_over;
#[path = "../../uswap-abi/src/layout.rs"]
pub mod layout;
#[path = "../../uswap-abi/src/message.rs"]
pub mod message;
#[path = "../../uswap-abi/src/queue.rs"]
pub mod queue;
#[path = "../../uswap-abi/src/ring.rs"]
pub mod ring;
#[path = "../../uswap-abi/src/thread_list.rs"]
pub mod thread_list;
/// The atomic types, where the shared sources look for them.
pub mod atomic {
    pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

mod birth;
mod hooks;
mod link;
mod locking;
#[cfg(uswap_freestanding)]
mod memory;
mod orders;
mod remapping;
mod start;
mod syscall;
mod threads;

#[cfg(uswap_freestanding)]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    syscall::kill_process()
}
