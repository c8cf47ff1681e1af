//! Probes of the features that a run needs: each probe uses the feature once, on this process or on
//! a child.

use std::io::{self, Read};
use std::path::Path;

use uswap_device::{FileDevice, IoBackend, OpenError};
use uswap_sys::process::{self, Fork};
use uswap_sys::procfs::maps::Maps;
use uswap_sys::procfs::pagemap::{Pagemap, PresentRun};
use uswap_sys::procfs::vmread::{self, RemoteRange};
use uswap_sys::userfaultfd::Userfaultfd;

/// Whether a new userfaultfd accepts these features.
pub fn features(features: u64) -> io::Result<()> {
    Userfaultfd::for_this_process()?.handshake(features)
}

/// Tries PAGEMAP_SCAN on the stack of this process.
pub fn pagemap_scan() -> io::Result<()> {
    let here = 0u8;
    let page = (&raw const here as u64) & !0xfff;
    let mut runs = [PresentRun::default()];
    let (found, _) = Pagemap::open(std::process::id())?.present(page, page + 4096, &mut runs)?;
    if found == 1 { Ok(()) } else { Err(io::Error::other("it does not see a page that is there")) }
}

/// Tries PROCMAP_QUERY on the stack of this process.
pub fn procmap_query() -> io::Result<()> {
    let here = 0u8;
    let found = Maps::open(std::process::id())?.covering_or_next(&raw const here as u64)?;
    if found.is_some() { Ok(()) } else { Err(io::Error::other("it does not see a mapping that is there")) }
}

/// Tries process_vm_readv on a waiting child.
pub fn read_child() -> io::Result<()> {
    let (mut reader, writer) = io::pipe()?;
    let secret = process::random_word()?.to_ne_bytes();
    let child = match process::fork()? {
        Fork::Child => {
            drop(writer);
            // The child waits until the parent is done, or has ended.
            let _ = reader.read(&mut [0]);
            process::exit_now(0)
        }
        Fork::Parent(child) => child,
    };
    let mut seen = [0u8; 8];
    let range = RemoteRange { start: secret.as_ptr() as u64, length: 8 };
    let read = vmread::read(child, &[range], &mut seen);
    drop(writer);
    while process::wait_news(Some(child))?.is_none() {
        std::thread::yield_now();
    }
    match read? {
        8 if seen == secret => Ok(()),
        _ => Err(io::Error::other("it reads other bytes than there are")),
    }
}

/// The properties of a swap file in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbedSwapFile {
    /// Whether transfers bypass the page cache.
    pub direct: bool,
    /// Whether transfers use io_uring.
    pub uring: bool,
    /// Free bytes on the file system.
    pub free: u64,
}

/// Makes a small swap file without a name in `directory`, as a run would.
pub fn swap_file(directory: &Path) -> Result<ProbedSwapFile, OpenError> {
    use std::os::fd::AsFd;
    let device = FileDevice::unnamed(directory, 4 << 20, IoBackend::Auto)?;
    let failed = |error| OpenError::Io(directory.into(), error);
    let file = std::fs::File::open(directory).map_err(failed)?;
    let free = uswap_sys::free_bytes(file.as_fd()).map_err(failed)?;
    Ok(ProbedSwapFile { direct: device.is_direct(), uring: device.backend() == IoBackend::Uring, free })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_none_is_no_place_for_a_swap_file() {
        assert!(swap_file(Path::new("/proc/self/status")).is_err());
        assert!(matches!(swap_file(Path::new("/dev/shm")), Err(OpenError::InMemory(_) | OpenError::NotDirectory(_))));
    }

    #[test]
    fn this_kernel_answers_the_queries_about_our_own_memory() {
        // Both need no privilege; kernels before 6.11 lack the second one.
        assert!(pagemap_scan().is_ok());
        let _ = procmap_query();
    }
}
