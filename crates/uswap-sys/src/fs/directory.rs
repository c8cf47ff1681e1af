//! Reading folders with the positions that the kernel gives.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::check;

/// Bytes that are read at once.
const AT_ONCE: usize = 32 << 10;
/// Bytes of an entry before its name.
const HEAD: usize = 19;

/// An entry of a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FolderEntry<'a> {
    /// The file's number.
    pub inode: u64,
    /// The position behind this entry.
    pub next: u64,
    /// The type, of the values DT_REG, DT_DIR and so on.
    pub kind: u8,
    /// Its name.
    pub name: &'a [u8],
}

/// Goes to a position that an entry gave (0: the beginning) and reads some entries from there.
/// Nothing is read at the end.
///
/// # Errors
/// As getdents(2).
pub fn read(folder: BorrowedFd<'_>, position: u64, mut each: impl FnMut(FolderEntry<'_>) -> bool) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::lseek(folder.as_raw_fd(), position as libc::off_t, libc::SEEK_SET) })?;
    let mut buffer = vec![0u8; AT_ONCE];
    loop {
        // SAFETY: a buffer with its length.
        let read = check(unsafe {
            libc::syscall(libc::SYS_getdents64, folder.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
        })? as usize;
        let mut rest = &buffer[..read];
        while let Some((entry, length)) = parse(rest) {
            if !each(entry) {
                return Ok(());
            }
            rest = &rest[length..];
        }
        if read == 0 {
            return Ok(());
        }
    }
}

/// The first entry of what getdents64(2) has written, and its length.
fn parse(bytes: &[u8]) -> Option<(FolderEntry<'_>, usize)> {
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let length = usize::from(u16::from_ne_bytes(bytes.get(16..18)?.try_into().ok()?));
    let name = bytes.get(HEAD..length)?;
    let end = name.iter().position(|byte| *byte == 0)?;
    Some((FolderEntry { inode: word(0)?, next: word(8)?, kind: bytes[18], name: &name[..end] }, length))
}
