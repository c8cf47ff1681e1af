//! File system calls that the standard library does not have.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Releases the space of `length` bytes from `offset` on; they read as zero, and the file keeps its
/// size. On a block device this is a discard.
///
/// # Errors
/// The error of fallocate(2): EOPNOTSUPP where the file system or the device cannot do it.
pub fn punch_hole(file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the call takes numbers and a descriptor that is open for the whole call.
    let rc = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, length as libc::off_t) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether programs may map `file` as code; they may not on a file system mounted with `noexec`.
pub fn can_be_executed(file: &std::fs::File) -> bool {
    const LENGTH: usize = 4096;
    let (access, descriptor) = (libc::PROT_READ | libc::PROT_EXEC, file.as_raw_fd());
    // SAFETY: a fresh mapping where the kernel likes it, which nobody looks at and which is taken
    // away again.
    unsafe {
        let address = libc::mmap(std::ptr::null_mut(), LENGTH, access, libc::MAP_PRIVATE, descriptor, 0);
        address != libc::MAP_FAILED && libc::munmap(address, LENGTH) == 0
    }
}

/// Whether `file` lies on a file system that keeps its content in memory (tmpfs or ramfs).
///
/// # Errors
/// The error of fstatfs(2).
pub fn is_memory_file_system(file: BorrowedFd<'_>) -> io::Result<bool> {
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    let mut answer = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `answer` has room for the structure that the call fills, and the descriptor is open.
    if unsafe { libc::fstatfs(file.as_raw_fd(), answer.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed is a valid value of this structure of integers, and the call succeeded.
    let kind = unsafe { answer.assume_init() }.f_type as u32;
    Ok(kind == libc::TMPFS_MAGIC as u32 || kind == RAMFS_MAGIC)
}

/// Size in bytes to whose multiples the buffers, offsets and lengths of direct transfers of `file`
/// must be aligned; `None` when the kernel (before 6.1) or the file system does not report it.
///
/// # Errors
/// The error of statx(2).
pub fn direct_alignment(file: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty C string, `answer` has room for the structure that the call
    // fills, the descriptor is open.
    let rc = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, answer.as_mut_ptr())
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed is a valid value of this structure of integers, and the call succeeded.
    let answer = unsafe { answer.assume_init() };
    let told = answer.stx_mask & libc::STATX_DIOALIGN != 0 && answer.stx_dio_offset_align != 0;
    Ok(told.then_some(answer.stx_dio_offset_align.max(answer.stx_dio_mem_align)))
}

/// Bytes that an ordinary user can still write to the file system of `file`.
///
/// # Errors
/// The error of fstatvfs(2).
pub fn free_bytes(file: BorrowedFd<'_>) -> io::Result<u64> {
    let mut answer = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: as in `is_memory_file_system`.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), answer.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed is a valid value of this structure of integers, and the call succeeded.
    let answer = unsafe { answer.assume_init() };
    Ok(answer.f_bavail.saturating_mul(answer.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn proc_is_not_a_memory_file_system_and_shm_is() {
        assert!(!is_memory_file_system(File::open("/proc").unwrap().as_fd()).unwrap());
        if let Ok(shm) = File::open("/dev/shm") {
            assert!(is_memory_file_system(shm.as_fd()).unwrap());
        }
    }
}
