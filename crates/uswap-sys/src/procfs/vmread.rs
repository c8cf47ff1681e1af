//! process_vm_readv(2): reading many pages of another process in one call.

use std::io;

/// A range in the other process.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RemoteRange {
    /// Address of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Maximum number of ranges in one call (IOV_MAX).
pub const MAX_RANGES: usize = 1024;

/// Reads `ranges` of process `pid` one after the other into `buffer`, whose length is the sum of
/// theirs. All are read from the same address space. Returns the number of bytes read: fewer than
/// asked for when a page could not be read.
///
/// # Errors
/// ESRCH: no such process; EPERM: no permission to read; EFAULT: the first page could not be read.
pub fn read(pid: u32, ranges: &[RemoteRange], buffer: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the local vector is the caller's buffer; RemoteRange has the layout of an iovec; the
    // remote side is checked by the kernel.
    let n = unsafe {
        libc::process_vm_readv(
            pid as libc::pid_t,
            &raw const local,
            1,
            ranges.as_ptr().cast(),
            ranges.len() as libc::c_ulong,
            0,
        )
    };
    crate::check(n as libc::c_long).map(|n| n as usize)
}

/// The same into two buffers, one after the other.
///
/// # Errors
/// As [`read`].
pub fn read_after(pid: u32, ranges: &[RemoteRange], first: &mut [u8], then: &mut [u8]) -> io::Result<usize> {
    let part = |buffer: &mut [u8]| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let local = [part(first), part(then)];
    // SAFETY: the local vectors are the caller's buffers; RemoteRange has the layout of an iovec;
    // the remote side is checked by the kernel.
    let n = unsafe {
        libc::process_vm_readv(
            pid as libc::pid_t,
            local.as_ptr(),
            2,
            ranges.as_ptr().cast(),
            ranges.len() as libc::c_ulong,
            0,
        )
    };
    crate::check(n as libc::c_long).map(|n| n as usize)
}
