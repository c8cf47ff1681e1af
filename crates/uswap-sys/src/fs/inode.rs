//! Files by a descriptor that was opened with O_PATH: it names the file, wherever it is moved to,
//! and is no open file.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::fs::path_of;
use crate::{check, check_int};

/// The metadata of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileStatus {
    /// The file system that has it.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// For device files: the device.
    pub special: u32,
    /// Size in bytes.
    pub size: u64,
    /// Size of a block for I/O in bytes.
    pub block_size: u32,
    /// Memory in use, in units of 512 bytes.
    pub blocks: u64,
    /// Last access, in seconds and nanoseconds.
    pub accessed: (i64, u32),
    /// Last change of the content.
    pub modified: (i64, u32),
    /// Last change of content or metadata.
    pub changed: (i64, u32),
}

impl FileStatus {
    /// The type, of the values S_IFREG, S_IFDIR and so on.
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }
}

/// Opens a file by its name in a folder, as a name only. A symbolic link is not followed.
///
/// # Errors
/// As open(2).
pub fn look_up(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    open_at(folder, name, libc::O_PATH | libc::O_NOFOLLOW, 0)
}

fn open_at(folder: BorrowedFd<'_>, name: &CStr, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    // SAFETY: a C string and an open descriptor.
    let fd = check_int(unsafe { libc::openat(folder.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, mode) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a file in a folder and opens it.
///
/// # Errors
/// As open(2) with O_CREAT.
pub fn create(folder: BorrowedFd<'_>, name: &CStr, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    open_at(folder, name, flags | libc::O_CREAT | libc::O_NOFOLLOW, mode)
}

/// Makes a file without a name in a folder, and opens it (O_TMPFILE in open(2)).
///
/// # Errors
/// As open(2).
pub fn create_unnamed(folder: BorrowedFd<'_>, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    open_at(folder, c".", flags | libc::O_TMPFILE, mode)
}

/// Opens the file that a descriptor names.
///
/// # Errors
/// As open(2).
pub fn open(file: BorrowedFd<'_>, flags: i32) -> io::Result<OwnedFd> {
    let flags = flags & !(libc::O_NOFOLLOW | libc::O_CREAT | libc::O_EXCL) | libc::O_CLOEXEC;
    // SAFETY: a C string.
    let fd = check_int(unsafe { libc::open(path_of(file).as_ptr(), flags) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Closes a file and reports the error of that.
///
/// # Errors
/// As close(2): that of an earlier write, in some file systems.
pub fn close(file: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is ours, and is not used again.
    check_int(unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(file)) }).map(drop)
}

/// The metadata of the file that a descriptor names or has open.
///
/// # Errors
/// As fstat(2).
pub fn status(file: BorrowedFd<'_>) -> io::Result<FileStatus> {
    let mut answer = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `answer` has room for the structure that the call fills, the descriptor is open.
    check_int(unsafe { libc::fstat(file.as_raw_fd(), answer.as_mut_ptr()) })?;
    // SAFETY: the call has filled it.
    let found = unsafe { answer.assume_init() };
    Ok(FileStatus {
        device: found.st_dev,
        inode: found.st_ino,
        mode: found.st_mode,
        links: found.st_nlink as u32,
        user: found.st_uid,
        group: found.st_gid,
        special: found.st_rdev as u32,
        size: found.st_size as u64,
        block_size: found.st_blksize as u32,
        blocks: found.st_blocks as u64,
        accessed: (found.st_atime, found.st_atime_nsec as u32),
        modified: (found.st_mtime, found.st_mtime_nsec as u32),
        changed: (found.st_ctime, found.st_ctime_nsec as u32),
    })
}

/// Makes a folder.
///
/// # Errors
/// As mkdir(2).
pub fn make_folder(folder: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: a C string and an open descriptor; below as well.
    check_int(unsafe { libc::mkdirat(folder.as_raw_fd(), name.as_ptr(), mode) }).map(drop)
}

/// Makes a file of any type but folder and symbolic link.
///
/// # Errors
/// As mknod(2).
pub fn make_node(folder: BorrowedFd<'_>, name: &CStr, mode: u32, special: u32) -> io::Result<()> {
    // SAFETY: see `make_folder`.
    check_int(unsafe { libc::mknodat(folder.as_raw_fd(), name.as_ptr(), mode, u64::from(special)) }).map(drop)
}

/// Makes a symbolic link.
///
/// # Errors
/// As symlink(2).
pub fn make_symlink(folder: BorrowedFd<'_>, name: &CStr, target: &CStr) -> io::Result<()> {
    // SAFETY: see `make_folder`.
    check_int(unsafe { libc::symlinkat(target.as_ptr(), folder.as_raw_fd(), name.as_ptr()) }).map(drop)
}

/// Gives a file another name.
///
/// # Errors
/// As link(2).
pub fn link(file: BorrowedFd<'_>, folder: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let (from, to) = (path_of(file), folder.as_raw_fd());
    // SAFETY: C strings and an open descriptor.
    let rc = unsafe { libc::linkat(libc::AT_FDCWD, from.as_ptr(), to, name.as_ptr(), libc::AT_SYMLINK_FOLLOW) };
    check_int(rc).map(drop)
}

/// Removes a name: of a folder, which must be empty, or of another file.
///
/// # Errors
/// As rmdir(2) or unlink(2).
pub fn remove(folder: BorrowedFd<'_>, name: &CStr, is_folder: bool) -> io::Result<()> {
    let flags = if is_folder { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: see `make_folder`.
    check_int(unsafe { libc::unlinkat(folder.as_raw_fd(), name.as_ptr(), flags) }).map(drop)
}

/// Renames a file; flags as of renameat2(2).
///
/// # Errors
/// As renameat2(2).
pub fn rename(from: (BorrowedFd<'_>, &CStr), to: (BorrowedFd<'_>, &CStr), flags: u32) -> io::Result<()> {
    let ((from, old), (to, new)) = (from, to);
    // SAFETY: C strings and open descriptors.
    let rc = unsafe {
        libc::syscall(libc::SYS_renameat2, from.as_raw_fd(), old.as_ptr(), to.as_raw_fd(), new.as_ptr(), flags)
    };
    check(rc).map(drop)
}

/// The target of a symbolic link.
///
/// # Errors
/// As readlink(2).
pub fn read_link(file: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut target = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: an empty C string, and a buffer with its length.
    let length =
        check(unsafe { libc::readlinkat(file.as_raw_fd(), c"".as_ptr(), target.as_mut_ptr().cast(), target.len()) }
            as libc::c_long)?;
    target.truncate(length as usize);
    Ok(target)
}

/// Changes the permission bits.
///
/// # Errors
/// As chmod(2).
pub fn set_mode(file: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    // SAFETY: a C string.
    check_int(unsafe { libc::chmod(path_of(file).as_ptr(), mode) }).map(drop)
}

/// Changes owner and group; `None`: it stays.
///
/// # Errors
/// As chown(2).
pub fn set_owner(file: BorrowedFd<'_>, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
    let (user, group) = (user.unwrap_or(u32::MAX), group.unwrap_or(u32::MAX));
    // SAFETY: an empty C string and an open descriptor.
    check_int(unsafe { libc::fchownat(file.as_raw_fd(), c"".as_ptr(), user, group, libc::AT_EMPTY_PATH) }).map(drop)
}

/// Changes the size.
///
/// # Errors
/// As truncate(2).
pub fn set_size(file: BorrowedFd<'_>, size: u64) -> io::Result<()> {
    // SAFETY: a C string.
    check_int(unsafe { libc::truncate(path_of(file).as_ptr(), size as libc::off_t) }).map(drop)
}

/// A time for [`set_times`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewTime {
    /// It stays.
    Keep,
    /// The present moment.
    Now,
    /// Seconds and nanoseconds.
    At(i64, u32),
}

impl NewTime {
    fn timespec(self) -> libc::timespec {
        match self {
            Self::Keep => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
            Self::Now => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
            Self::At(seconds, nanoseconds) => libc::timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) },
        }
    }
}

/// Changes the times of access and modification. Works for symbolic links as well.
///
/// # Errors
/// As utimensat(2).
pub fn set_times(file: BorrowedFd<'_>, accessed: NewTime, modified: NewTime) -> io::Result<()> {
    let times = [accessed.timespec(), modified.timespec()];
    // SAFETY: an empty C string, two times, an open descriptor.
    let rc = unsafe { libc::utimensat(file.as_raw_fd(), c"".as_ptr(), times.as_ptr(), libc::AT_EMPTY_PATH) };
    check_int(rc).map(drop)
}

/// The figures of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Volume {
    /// Size, free, and free for users who are not root, in units of `fragment`.
    pub blocks: [u64; 3],
    /// Number of files that it can hold, and of further ones.
    pub files: [u64; 2],
    /// Size of a block for I/O in bytes.
    pub block_size: u32,
    /// Unit of `blocks` in bytes.
    pub fragment: u32,
    /// Longest name in bytes.
    pub longest_name: u32,
}

/// The figures of the file system that has the file.
///
/// # Errors
/// As fstatvfs(3).
pub fn volume(file: BorrowedFd<'_>) -> io::Result<Volume> {
    let mut answer = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `answer` has room for the structure that the call fills, the descriptor is open.
    check_int(unsafe { libc::fstatvfs(file.as_raw_fd(), answer.as_mut_ptr()) })?;
    // SAFETY: the call has filled it.
    let found = unsafe { answer.assume_init() };
    Ok(Volume {
        blocks: [found.f_blocks, found.f_bfree, found.f_bavail],
        files: [found.f_files, found.f_ffree],
        block_size: found.f_bsize as u32,
        fragment: found.f_frsize as u32,
        longest_name: found.f_namemax as u32,
    })
}

/// Sets the mask of permissions of this process, and so of all its threads, to nothing: what it
/// makes has the permissions that are asked for.
pub fn mask_nothing() {
    // SAFETY: no pointers.
    unsafe { libc::umask(0) };
}
