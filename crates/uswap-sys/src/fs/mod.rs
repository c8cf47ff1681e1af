//! The FUSE device, and calls on files that are named by a descriptor and not by a path, for a file
//! system in user space.

pub mod credentials;
pub mod directory;
pub mod fuse;
pub mod inode;
pub mod open_file;
pub mod xattr;

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The path by which this process reaches a file that it has open, also one opened with O_PATH.
fn path_of(file: BorrowedFd<'_>) -> CString {
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zero in it")
}
