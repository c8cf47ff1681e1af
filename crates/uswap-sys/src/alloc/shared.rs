//! Memory shared with another process through a memfd, and files that exist only as descriptors.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{check, check_int};

/// An unnamed file in memory, close-on-exec.
///
/// # Errors
/// ENOMEM, EMFILE.
pub fn memfd(name: &std::ffi::CStr) -> io::Result<File> {
    // SAFETY: the name is a C string.
    let fd = check_int(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: a new fd that nobody else owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// An unnamed file in memory with this content.
///
/// # Errors
/// As [`memfd`].
pub fn memfd_with(name: &std::ffi::CStr, content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = memfd(name)?;
    file.write_all(content)?;
    Ok(file.into())
}

/// A value made of atomics, in memory shared with another process.
///
/// `T` must be valid for every bit pattern and change only through atomics; [`SharedLayout`] is the
/// promise of that.
#[derive(Debug)]
pub struct SharedValue<T: SharedLayout> {
    value: &'static T,
    length: usize,
    file: Option<File>,
}

/// # Safety
/// The type is `repr(C)`, consists of atomics only, and all-zero bytes are a valid initial value.
pub unsafe trait SharedLayout: Sync + 'static {}

// SAFETY: repr(C) structures of atomics; zero is an open gate, an empty queue and idle trays.
unsafe impl SharedLayout for uswap_abi::ring::Ring {}

impl<T: SharedLayout> SharedValue<T> {
    /// Makes and maps a memfd of the size of `T`; all bytes are zero.
    ///
    /// # Errors
    /// ENOMEM, EMFILE.
    pub fn new(name: &std::ffi::CStr) -> io::Result<Self> {
        let file = memfd(name)?;
        let length = size_of::<T>().next_multiple_of(4096);
        file.set_len(length as u64)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh shared mapping of a file that is that long and that only we can truncate.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        check(if address == libc::MAP_FAILED { -1 } else { 0 })?;
        // SAFETY: mapped until drop, page aligned, valid by the trait's promise.
        Ok(Self { value: unsafe { &*address.cast::<T>() }, length, file: Some(file) })
    }

    /// The file, for handing it to the other process; `None` once it is closed.
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Closes the file, once the other process has it.
    pub fn close_file(&mut self) {
        self.file = None;
    }
}

impl<T: SharedLayout> std::ops::Deref for SharedValue<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T: SharedLayout> Drop for SharedValue<T> {
    fn drop(&mut self) {
        // SAFETY: our mapping, and the reference ends with us.
        unsafe { libc::munmap(std::ptr::from_ref(self.value).cast_mut().cast(), self.length) };
    }
}

/// A page of memory that keeper and engine share for messages to each other.
#[repr(C)]
#[derive(Debug)]
pub struct ControlPage {
    /// Process id of the command, once it is running.
    pub command: std::sync::atomic::AtomicU32,
    /// 1 once the run has ended normally.
    pub finished: std::sync::atomic::AtomicU32,
    /// Exit status for the user, once finished.
    pub status: std::sync::atomic::AtomicU32,
    /// 1 while the command is stopped.
    pub stopped: std::sync::atomic::AtomicU32,
    /// Signal by which the user asked the run to end after its command had already ended, or to
    /// release the program that it was attached to.
    pub end_requested: std::sync::atomic::AtomicU32,
    /// 1 while memory of an attached program may be in the engine.
    pub holds: std::sync::atomic::AtomicU32,
}

// SAFETY: repr(C), atomics only, zero means "not yet".
unsafe impl SharedLayout for ControlPage {}
