//! The only room with unsafe code besides the agent: one type per kernel interface, safe to use from outside.
//!
//! Results are the kernel's own errno, wrapped in [`std::io::Error`] or, where callers decide by it, in named variants.

pub mod affinity;
mod aligned;
pub mod events;
mod file;
mod guard;
pub mod heap;
pub mod interrupt;
pub mod kill_on_close;
pub mod loan;
pub mod maps;
pub mod memory;
pub mod net;
pub mod pagemap;
pub mod process;
pub mod procfs;
mod read_ring;
mod reservation;
mod ring;
pub mod shared;
pub mod signal;
pub mod socket;
pub mod spares;
pub mod terminal;
pub mod thread;
pub mod trace;
pub mod userfaultfd;
pub mod vmread;
pub mod zeroed;

pub use aligned::AlignedBuf;
pub use file::{can_be_executed, direct_alignment, free_bytes, is_memory_file_system, punch_hole};
pub use guard::GuardedAllocator;
pub use read_ring::{FinishedRead, ReadRing};
pub use reservation::Reservation;
pub use ring::{Ring, RingOp};

use std::io;

/// The result of a call that reports failure as -1 and errno.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The same for the int-returning calls.
fn check_int(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
