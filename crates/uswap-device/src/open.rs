//! Opening a swap file or block device, and refusing a file that must not become one.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::{error, fmt};

use uswap_core::PAGE_SIZE;
use uswap_sys::{AlignedBuf, is_memory_file_system};

/// How transfers are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoBackend {
    /// io_uring if a test read at opening works, otherwise positioned transfers.
    #[default]
    Auto,
    /// io_uring; opening fails where io_uring is not allowed.
    Uring,
    /// pread and pwrite.
    Positioned,
}

/// Why a swap file or device could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// It lies on tmpfs or ramfs, which is memory: swapping there would save nothing.
    InMemory(PathBuf),
    /// A directory was given where a file or a block device is needed.
    IsDirectory(PathBuf),
    /// An unnamed file needs a directory, and the path is none.
    NotDirectory(PathBuf),
    /// Neither a regular file nor a block device.
    NotUsable(PathBuf),
    /// It may not be written.
    ReadOnly(PathBuf),
    /// Another process swaps to it (or has the block device mounted).
    InUse(PathBuf),
    /// It holds data that are not from a swap file. Empty it first, if the data are not needed.
    HoldsData(PathBuf),
    /// Less than one cluster (2 MiB) of room.
    TooSmall(PathBuf),
    /// io_uring was demanded and is not available.
    NoUring(PathBuf, io::Error),
    /// A system call failed.
    Io(PathBuf, io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InMemory(p) => {
                write!(f, "{} is on tmpfs or ramfs: that is memory, swapping there saves none", p.display())
            }
            Self::IsDirectory(p) => write!(f, "{} is a directory; a file or a block device is needed", p.display()),
            Self::NotDirectory(p) => write!(f, "{} is not a directory", p.display()),
            Self::NotUsable(p) => write!(f, "{} is neither a regular file nor a block device", p.display()),
            Self::ReadOnly(p) => write!(f, "{} cannot be written", p.display()),
            Self::InUse(p) => write!(f, "{} is in use by another process", p.display()),
            Self::HoldsData(p) => write!(f, "{} holds data that is not swap; empty it first", p.display()),
            Self::TooSmall(p) => write!(f, "{} has room for less than 2 MiB", p.display()),
            Self::NoUring(p, e) => write!(f, "io_uring is not available for {}: {e}", p.display()),
            Self::Io(p, e) => write!(f, "{}: {e}", p.display()),
        }
    }
}

impl error::Error for OpenError {}

/// An open file and its properties.
pub(crate) struct Opened {
    pub file: File,
    /// Direct I/O is on.
    pub direct: bool,
    /// Usable bytes after the header page.
    pub length: u64,
    /// Bytes before slot 0.
    pub base: u64,
}

/// The first bytes of a swap file or device that has a name, by which the next run recognises it.
pub(crate) const SIGNATURE: &[u8; 16] = b"uswap swap file\n";

/// A file without a name in `directory`, of `length` bytes.
pub(crate) fn open_unnamed(directory: &Path, length: u64) -> Result<Opened, OpenError> {
    if !directory.is_dir() {
        return Err(OpenError::NotDirectory(directory.into()));
    }
    refuse_memory_directory(directory)?;
    let (file, direct) = match open_direct(directory, OpenOptions::new().read(true).write(true), libc::O_TMPFILE) {
        // The file system, or a kernel's overlay, does not have O_TMPFILE.
        Err(OpenError::Io(_, e)) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            open_and_unlink(directory)?
        }
        opened => opened?,
    };
    file.set_len(length).map_err(|e| OpenError::Io(directory.into(), e))?;
    Ok(Opened { file, direct, length, base: 0 })
}

/// Opens the file or block device at `path`. A regular file is made if missing and extended
/// (sparse) to `length` bytes after its header; without `length` its own size counts.
pub(crate) fn open_named(path: &Path, length: Option<u64>) -> Result<Opened, OpenError> {
    let io = |e| OpenError::Io(path.into(), e);
    let block = is_block(path)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(!block).mode(0o600);
    // On a block device, O_EXCL without O_CREAT fails if the device is mounted or otherwise
    // claimed.
    let (file, direct) = open_direct(path, &mut options, if block { libc::O_EXCL } else { 0 })?;
    refuse_memory(&file, path)?;
    file.try_lock().map_err(|e| match e {
        std::fs::TryLockError::WouldBlock => OpenError::InUse(path.into()),
        std::fs::TryLockError::Error(e) => io(e),
    })?;
    claim_header(&file, path)?;
    let base = PAGE_SIZE as u64;
    let found = (&file).seek(SeekFrom::End(0)).map_err(io)?.saturating_sub(base);
    let length = match length {
        Some(wanted) if !block => {
            if wanted > found {
                file.set_len(base + wanted).map_err(io)?;
            }
            wanted
        }
        Some(wanted) => wanted.min(found),
        None => found,
    };
    Ok(Opened { file, direct, length, base })
}

/// Whether `path` is a block device. A regular file is none, nor is a path where nothing exists
/// yet; any other type of file is an error.
fn is_block(path: &Path) -> Result<bool, OpenError> {
    match path.metadata() {
        Ok(m) if m.is_dir() => Err(OpenError::IsDirectory(path.into())),
        Ok(m) if m.file_type().is_block_device() => Ok(true),
        Ok(m) if m.is_file() => Ok(false),
        Ok(_) => Err(OpenError::NotUsable(path.into())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            refuse_memory_directory(parent.unwrap_or(Path::new("."))).map(|()| false)
        }
        Err(e) => Err(OpenError::Io(path.into(), e)),
    }
}

/// Opens with O_DIRECT, or without it where the file system does not support it.
fn open_direct(path: &Path, options: &mut OpenOptions, flags: i32) -> Result<(File, bool), OpenError> {
    let direct = options.custom_flags(flags | libc::O_DIRECT).open(path);
    let opened = match direct {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => options.custom_flags(flags).open(path).map(|f| (f, false)),
        other => other.map(|f| (f, true)),
    };
    let (file, direct) = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::EROFS | libc::EACCES | libc::EPERM) => OpenError::ReadOnly(path.into()),
        Some(libc::EBUSY | libc::ETXTBSY) => OpenError::InUse(path.into()),
        _ => OpenError::Io(path.into(), e),
    })?;
    Ok((file, direct))
}

/// Makes a file without a name on systems without O_TMPFILE: makes it under an unused name and
/// unlinks it.
fn open_and_unlink(directory: &Path) -> Result<(File, bool), OpenError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let path = directory.join(format!(".uswap-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
    let mut options = OpenOptions::new();
    let opened = open_direct(&path, options.read(true).write(true).create_new(true).mode(0o600), 0)?;
    std::fs::remove_file(&path).map_err(|e| OpenError::Io(path, e))?;
    Ok(opened)
}

fn refuse_memory_directory(directory: &Path) -> Result<(), OpenError> {
    let io = |e| OpenError::Io(directory.into(), e);
    refuse_memory(&File::open(directory).map_err(io)?, directory)
}

fn refuse_memory(file: &File, path: &Path) -> Result<(), OpenError> {
    match is_memory_file_system(file.as_fd()) {
        Ok(false) => Ok(()),
        // fstatfs(2) on a block device node answers for devtmpfs, which is a tmpfs; only the device
        // itself counts.
        Ok(true) if file.metadata().is_ok_and(|m| m.file_type().is_block_device()) => Ok(()),
        Ok(true) => Err(OpenError::InMemory(path.into())),
        Err(e) => Err(OpenError::Io(path.into(), e)),
    }
}

/// Writes the signature to the first page, unless the page shows that somebody's data would be
/// lost: the page must be missing, all zero, uswap's own, or a swap header of mkswap.
fn claim_header(file: &File, path: &Path) -> Result<(), OpenError> {
    let io = |e| OpenError::Io(path.into(), e);
    let mut page = AlignedBuf::zeroed(PAGE_SIZE);
    let got = file.read_at(&mut page, 0).map_err(io)?;
    page[got..].fill(0);
    if !is_swap_header(&page) {
        return Err(OpenError::HoldsData(path.into()));
    }
    page.fill(0);
    page[..SIGNATURE.len()].copy_from_slice(SIGNATURE);
    file.write_all_at(&page, 0).map_err(io)
}

/// Whether a first page shows that nobody's data would be lost: it is all zero, uswap's own, or a
/// swap header of mkswap.
pub(crate) fn is_swap_header(page: &[u8]) -> bool {
    let known = page.starts_with(SIGNATURE) || page[PAGE_SIZE - 10..] == *b"SWAPSPACE2";
    known || page.iter().all(|&b| b == 0)
}
