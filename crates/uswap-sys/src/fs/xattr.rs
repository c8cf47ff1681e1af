//! Extended attributes of the file that a descriptor names.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;

use crate::fs::path_of;
use crate::{check, check_int};

/// Reads an attribute into the buffer; returns its length. An empty buffer asks for the length.
///
/// # Errors
/// As getxattr(2).
pub fn get(file: BorrowedFd<'_>, name: &CStr, value: &mut [u8]) -> io::Result<usize> {
    let path = path_of(file);
    // SAFETY: C strings, and a buffer with its length.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    check(length as libc::c_long).map(|length| length as usize)
}

/// Sets an attribute; flags as of setxattr(2).
///
/// # Errors
/// As setxattr(2).
pub fn set(file: BorrowedFd<'_>, name: &CStr, value: &[u8], flags: u32) -> io::Result<()> {
    let path = path_of(file);
    // SAFETY: as above.
    let rc = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags as libc::c_int)
    };
    check_int(rc).map(drop)
}

/// Lists the names of attributes, each ended by a zero byte; returns their length.
///
/// # Errors
/// As listxattr(2).
pub fn list(file: BorrowedFd<'_>, names: &mut [u8]) -> io::Result<usize> {
    let path = path_of(file);
    // SAFETY: a C string, and a buffer with its length.
    let length = unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    check(length as libc::c_long).map(|length| length as usize)
}

/// Removes an attribute.
///
/// # Errors
/// As removexattr(2).
pub fn remove(file: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let path = path_of(file);
    // SAFETY: C strings.
    check_int(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).map(drop)
}
