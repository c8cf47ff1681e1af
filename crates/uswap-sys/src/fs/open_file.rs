//! Calls on open files that the standard library does not have.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::{check, check_int};

/// Reads at an offset into several buffers; returns the bytes read. `passing`: the kernel need not
/// keep them in its own cache.
///
/// # Errors
/// As preadv2(2).
pub fn read_at(file: BorrowedFd<'_>, buffers: &mut [IoSliceMut<'_>], offset: u64, passing: bool) -> io::Result<usize> {
    /// The pages that this read brings into the kernel's cache leave it when the read ends (Linux
    /// 6.14, in file systems that can).
    const RWF_DONTCACHE: libc::c_int = 0x80;
    let flags = if passing { RWF_DONTCACHE } else { 0 };
    let (vectors, count) = (buffers.as_mut_ptr().cast::<libc::iovec>(), buffers.len() as libc::c_int);
    // SAFETY: an IoSliceMut has the layout of an iovec (std promises it), and the buffers live
    // during the call.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), vectors, count, offset as libc::off_t, flags) };
    check(read as libc::c_long).map(|read| read as usize)
}

/// Tells the kernel that a range of the file will not be read again soon, so that its own cache may
/// drop it.
pub fn forget(file: BorrowedFd<'_>, offset: u64, length: u64) {
    // SAFETY: no pointers. It is advice, and need not work.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), offset as libc::off_t, length as libc::off_t, libc::POSIX_FADV_DONTNEED)
    };
}

/// Allocates, frees or moves room of a file; the mode as of fallocate(2).
///
/// # Errors
/// As fallocate(2).
pub fn allocate(file: BorrowedFd<'_>, mode: u32, offset: u64, length: u64) -> io::Result<()> {
    let (offset, length) = (offset as libc::off_t, length as libc::off_t);
    // SAFETY: no pointers.
    check_int(unsafe { libc::fallocate(file.as_raw_fd(), mode as libc::c_int, offset, length) }).map(drop)
}

/// Finds data or holes (SEEK_DATA, SEEK_HOLE).
///
/// # Errors
/// As lseek(2).
pub fn seek(file: BorrowedFd<'_>, offset: u64, whence: u32) -> io::Result<u64> {
    // SAFETY: no pointers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, whence as libc::c_int) };
    check(found).map(|found| found as u64)
}

/// Copies within and between files without reading them; returns the bytes copied.
///
/// # Errors
/// As copy_file_range(2).
pub fn copy_range(from: (BorrowedFd<'_>, u64), to: (BorrowedFd<'_>, u64), length: u64) -> io::Result<usize> {
    let (mut source, mut target) = (from.1 as libc::off64_t, to.1 as libc::off64_t);
    // SAFETY: two offsets that live during the call.
    let copied = unsafe {
        libc::copy_file_range(
            from.0.as_raw_fd(),
            &raw mut source,
            to.0.as_raw_fd(),
            &raw mut target,
            length as usize,
            0,
        )
    };
    check(copied as libc::c_long).map(|copied| copied as usize)
}

/// Writes the file system that has the file to its device (syncfs(2)).
///
/// # Errors
/// As syncfs(2).
pub fn sync_volume(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    check_int(unsafe { libc::syncfs(file.as_raw_fd()) }).map(drop)
}
