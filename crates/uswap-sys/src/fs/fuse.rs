//! The FUSE device and mounts.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::io::socket::receive_descriptor;
use crate::{check, check_int};

/// FUSE_DEV_IOC_CLONE: `_IOR(229, 0, u32)`.
const CLONE: libc::c_ulong = 0x8004_e500;

/// Opens the FUSE device.
///
/// # Errors
/// ENOENT: the kernel has no FUSE; EACCES, EPERM: not permitted.
pub fn open() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/fuse")
}

/// Another descriptor of the same connection. A request that is read from it is to be answered on
/// it.
///
/// # Errors
/// As open(2) and ioctl(2).
pub fn clone(device: &File) -> io::Result<File> {
    let (other, original) = (open()?, device.as_raw_fd());
    // SAFETY: a descriptor number that lives during the call.
    check_int(unsafe { libc::ioctl(other.as_raw_fd(), CLONE, &raw const original) })?;
    Ok(other)
}

/// Mounts the connection of the device, as root.
///
/// # Errors
/// As mount(2).
pub fn mount(source: &CStr, target: &CStr, options: &CStr) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: four C strings.
    let rc = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), c"fuse.uswap".as_ptr(), flags, options.as_ptr().cast())
    };
    check_int(rc).map(drop)
}

/// Ends a mount. `lazily`: it leaves the tree of folders at once, and ends when nobody uses it any
/// more.
///
/// # Errors
/// As umount2(2): EBUSY, EINVAL (nothing is mounted there), EPERM.
pub fn unmount(target: &CStr, lazily: bool) -> io::Result<()> {
    let flags = libc::UMOUNT_NOFOLLOW | if lazily { libc::MNT_DETACH } else { 0 };
    // SAFETY: a C string.
    check_int(unsafe { libc::umount2(target.as_ptr(), flags) }).map(drop)
}

/// The connection that the helper fusermount3 has mounted and sends back through its socket.
///
/// # Errors
/// The helper sent none.
pub fn from_helper(socket: &UnixStream) -> io::Result<File> {
    receive_descriptor(socket.as_fd()).map(File::from)
}

/// A copy of a descriptor that programs executed from now on inherit.
///
/// # Errors
/// EMFILE.
pub fn inheritable(of: &impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = check(libc::c_long::from(unsafe { libc::fcntl(of.as_fd().as_raw_fd(), libc::F_DUPFD, 10) }))?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
