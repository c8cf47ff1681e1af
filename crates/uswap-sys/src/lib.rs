//! The only crate with unsafe code besides the agent: one type per kernel interface, with a safe
//! interface.
//!
//! Results are the kernel's own errno, wrapped in [`std::io::Error`], or in named variants where
//! callers act on it.

pub mod alloc;
pub mod fs;
pub mod io;
pub mod process;
pub mod procfs;
pub mod userfaultfd;

pub use alloc::guard::GuardedAllocator;
pub use alloc::reservation::Reservation;
pub use io::aligned::AlignedBuf;
pub use io::file::{can_be_executed, direct_alignment, free_bytes, is_memory_file_system, punch_hole};
pub use io::read_ring::{FinishedRead, ReadRing};
pub use io::ring::{IoRing, RingOp};

use std::io::{Error, Result};

/// Converts the result of a call that reports failure as -1 and errno.
fn check(result: libc::c_long) -> Result<libc::c_long> {
    if result == -1 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// The same for calls that return an int.
fn check_int(result: libc::c_int) -> Result<libc::c_int> {
    if result == -1 { Err(Error::last_os_error()) } else { Ok(result) }
}
