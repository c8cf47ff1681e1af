//! /proc/PID/mem: the memory that a process had when the file was opened, even after the process
//! executes another program.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The open file. It keeps the address space, not the process.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// Opens the memory of `pid`, which may also be the id of a thread.
    ///
    /// # Errors
    /// ENOENT: the process is gone; EACCES: no permission to read.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(Self)
    }

    /// Fills `bytes` from `address` on. Never waits for a page: a missing page in a registered
    /// range is an error.
    ///
    /// # Errors
    /// EIO: nothing is mapped or present there, or the address space is gone.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there_and_refuses_what_is_not() {
        let memory = Memory::open(std::process::id()).expect("own memory");
        let told = *b"what lies here";
        let mut bytes = [0; 14];
        memory.read(told.as_ptr() as u64, &mut bytes).expect("a read");
        assert_eq!(bytes, told);
        assert!(memory.read(4096, &mut bytes).is_err());
    }

    /// A page is missing in a registered range: no thread serves it, and the read must not wait for
    /// one.
    #[test]
    fn a_missing_page_is_an_error_at_once() {
        let Ok(events) = crate::userfaultfd::Userfaultfd::for_this_process() else { return };
        events.handshake(0).expect("handshake");
        let missing = crate::Reservation::new(1 << 20).expect("address space");
        let address = missing.bytes().as_ptr() as u64;
        events.register(address, 4096).expect("register");
        let memory = Memory::open(std::process::id()).expect("own memory");
        assert!(memory.read(address, &mut [0]).is_err());
        events.unregister(address, 4096).expect("unregister");
    }
}
