//! PROCMAP_QUERY (linux 6.11, include/uapi/linux/fs.h): queries one mapping at a time, without
//! parsing text.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const PROCMAP_QUERY: u64 = 0xc068_6611;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;
const COVERING_OR_NEXT: u64 = 0x10;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address of the first byte.
    pub start: u64,
    /// Address behind the last byte.
    pub end: u64,
    /// Readable, writable, private, not executable, without a file.
    pub plain_anonymous: bool,
    /// No access at all (a guard page or a reservation).
    pub no_access: bool,
    /// The kernel's name: `[stack]`, `[heap]`, `[vdso]`, or a path; mostly empty.
    pub name: String,
}

#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device_major: u32,
    device_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// The open maps file of a process, for the program that it executed when the file was opened.
#[derive(Debug)]
pub struct Maps(File);

impl Maps {
    /// Opens the maps of `pid`.
    ///
    /// # Errors
    /// ENOENT: the process is gone; EACCES: no permission.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/maps")).map(Self)
    }

    /// The mapping that contains `address`, or the next one above.
    ///
    /// # Errors
    /// ESRCH: the address space is gone.
    pub fn covering_or_next(&self, address: u64) -> io::Result<Option<Mapping>> {
        self.query(address, COVERING_OR_NEXT)
    }

    /// The readable and writable mapping that contains `address`, or the next such one above.
    ///
    /// # Errors
    /// ESRCH: the address space is gone.
    pub fn writable_or_next(&self, address: u64) -> io::Result<Option<Mapping>> {
        self.query(address, COVERING_OR_NEXT | READABLE | WRITABLE)
    }

    /// Start and end of the mapping that contains `address` or is the next one above. This
    /// allocates no memory.
    ///
    /// # Errors
    /// ESRCH: the address space is gone.
    pub fn extent_covering_or_next(&self, address: u64) -> io::Result<Option<(u64, u64)>> {
        match self.ask_without_name(address, COVERING_OR_NEXT) {
            Ok(found) => Ok(Some((found.start, found.end))),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn query(&self, address: u64, flags: u64) -> io::Result<Option<Mapping>> {
        let mut name = [0u8; 256];
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags,
            address,
            name_size: name.len() as u32,
            name: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        // SAFETY: struct procmap_query with a name buffer of the given size.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
        if result == -1 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOENT) => Ok(None),
                // The name is longer than the buffer: certainly that of a file.
                Some(libc::ENAMETOOLONG) => {
                    self.ask_without_name(address, flags).map(|found| Some(found.mapping("(long name)".into())))
                }
                _ => Err(error),
            };
        }
        Ok(Some(query.mapping(String::from_utf8_lossy(&name[..query.name_length()]).into_owned())))
    }

    fn ask_without_name(&self, address: u64, flags: u64) -> io::Result<Query> {
        let mut query = Query { size: size_of::<Query>() as u64, flags, address, ..Query::default() };
        // SAFETY: struct procmap_query without buffers.
        crate::check_int(unsafe { libc::ioctl(self.0.as_raw_fd(), PROCMAP_QUERY, &raw mut query) })?;
        Ok(query)
    }
}

impl Query {
    /// Size of the name, with its closing NUL, as the kernel has written it back.
    fn name_length(&self) -> usize {
        (self.name_size as usize).saturating_sub(1).min(256)
    }

    fn mapping(&self, name: String) -> Mapping {
        let access = self.vma_flags & (READABLE | WRITABLE | EXECUTABLE | SHARED);
        let no_file = self.inode == 0 && self.device_major == 0 && self.device_minor == 0;
        Mapping {
            start: self.start,
            end: self.end,
            plain_anonymous: access == READABLE | WRITABLE && no_file,
            no_access: access & (READABLE | WRITABLE | EXECUTABLE) == 0,
            name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_own_stack_as_plain_memory_and_walks_upwards() {
        let maps = Maps::open(std::process::id()).expect("own maps");
        let local = 0u8;
        let here = &raw const local as u64;
        let mapping = maps.covering_or_next(here).expect("query").expect("stack");
        assert!(mapping.start <= here && here < mapping.end && mapping.plain_anonymous);
        let mut at = 0;
        let mut count = 0;
        while let Some(mapping) = maps.covering_or_next(at).expect("query") {
            assert!(mapping.start >= at && mapping.end > mapping.start);
            assert_eq!(maps.extent_covering_or_next(at).expect("query"), Some((mapping.start, mapping.end)));
            at = mapping.end;
            count += 1;
        }
        assert!(count > 5);
    }
}
