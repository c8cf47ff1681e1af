//! PAGEMAP_SCAN (Documentation/admin-guide/mm/pagemap.rst): the pages of a range that are present.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::check_int;

const PAGEMAP_SCAN: u64 = 0xc060_6610;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;

/// Number of pages that [`Pagemap::words`] reads.
pub const BLOCK_PAGES: usize = 512;

/// Bit in a word of [`Pagemap::words`]: the page is present and mapped nowhere else.
pub const EXCLUSIVE: u64 = 1 << 56;
/// In a word of the pagemap: the page is in memory.
pub const IN_MEMORY: u64 = 1 << 63;

/// Consecutive pages that are present (or in the kernel's own swap).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PresentRun {
    /// Address of the first byte.
    pub start: u64,
    /// Address behind the last byte.
    pub end: u64,
    categories: u64,
}

#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vector: u64,
    vector_length: u64,
    most_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any_of: u64,
    return_mask: u64,
}

/// The open pagemap of a process, for the program that it executed when the file was opened. It
/// stays with that program's address space: after an exec it reads nothing.
#[derive(Debug)]
pub struct Pagemap(File);

impl Pagemap {
    /// Opens the pagemap of `pid`.
    ///
    /// # Errors
    /// ENOENT: the process is gone; EACCES: no permission.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/pagemap")).map(Self)
    }

    /// Fills `runs` with the present pages of the range, in order. Returns the number of runs, and
    /// the address where the walk ended (`end` unless `runs` was full).
    ///
    /// # Errors
    /// ESRCH: the address space is gone.
    pub fn present(&self, start: u64, end: u64, runs: &mut [PresentRun]) -> io::Result<(usize, u64)> {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            flags: 0,
            start,
            end,
            walk_end: 0,
            vector: runs.as_mut_ptr() as u64,
            vector_length: runs.len() as u64,
            most_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_any_of: PRESENT | SWAPPED,
            // Runs of present pages and of swapped pages are not distinguished: they are one kind.
            return_mask: 0,
        };
        // SAFETY: struct pm_scan_arg with a vector of struct page_region of the given length.
        let n = check_int(unsafe { libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) })?;
        Ok((n as usize, scan.walk_end))
    }

    /// Reads the kernel's data of the 512 pages from `start` on: one word per page
    /// (proc_pid_pagemap(5)).
    ///
    /// # Errors
    /// The address space is gone.
    pub fn words(&self, start: u64, words: &mut [u64; BLOCK_PAGES]) -> io::Result<()> {
        let mut bytes = [0; BLOCK_PAGES * 8];
        let n = std::os::unix::fs::FileExt::read_at(&self.0, &mut bytes, start / 4096 * 8)?;
        bytes[n..].fill(0);
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(())
    }

    /// Whether the page at `address` is present.
    ///
    /// # Errors
    /// As [`Pagemap::present`].
    pub fn is_present(&self, address: u64) -> io::Result<bool> {
        let mut runs = [PresentRun::default()];
        Ok(self.present(address, address + 4096, &mut runs)?.0 == 1)
    }
}
