//! Answers to the kernel, as bytes.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::time::Duration;

use uswap_sys::fs::inode::{FileStatus, Volume};

/// Length of an entry and the metadata in it, in bytes.
pub const ENTRY: usize = 128;

/// An answer's content, which grows at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuseAnswer(pub Vec<u8>);

impl FuseAnswer {
    /// Adds 2 bytes.
    pub fn u16(&mut self, number: u16) -> &mut Self {
        self.0.extend(number.to_ne_bytes());
        self
    }

    /// Adds 4 bytes.
    pub fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend(number.to_ne_bytes());
        self
    }

    /// Adds 8 bytes.
    pub fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_ne_bytes());
        self
    }

    /// The metadata of a file (`struct fuse_attr`).
    pub fn status(&mut self, status: &FileStatus) -> &mut Self {
        let times = [status.accessed, status.modified, status.changed];
        self.u64(status.inode).u64(status.size).u64(status.blocks);
        for (seconds, _) in times {
            self.u64(seconds as u64);
        }
        for (_, nanoseconds) in times {
            self.u32(nanoseconds);
        }
        self.u32(status.mode).u32(status.links).u32(status.user).u32(status.group);
        self.u32(status.special).u32(status.block_size).u32(0)
    }

    /// A file that was found, and for how long the kernel may believe that (`struct
    /// fuse_entry_out`).
    pub fn entry(&mut self, node: u64, status: &FileStatus, valid: Duration) -> &mut Self {
        self.u64(node).u64(0).u64(valid.as_secs()).u64(valid.as_secs());
        self.u32(valid.subsec_nanos()).u32(valid.subsec_nanos()).status(status)
    }

    /// Metadata, and for how long the kernel may believe it (`struct fuse_attr_out`).
    pub fn attributes(&mut self, status: &FileStatus, valid: Duration) -> &mut Self {
        self.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0).status(status)
    }

    /// An open file (`struct fuse_open_out`).
    pub fn opened(&mut self, handle: u64, flags: u32) -> &mut Self {
        self.u64(handle).u32(flags).u32(0)
    }

    /// The figures of a file system (`struct fuse_statfs_out`).
    pub fn volume(&mut self, volume: &Volume) -> &mut Self {
        for number in volume.blocks.iter().chain(&volume.files) {
            self.u64(*number);
        }
        self.u32(volume.block_size).u32(volume.longest_name).u32(volume.fragment).u32(0);
        self.0.resize(self.0.len() + 24, 0);
        self
    }

    /// An entry of a folder (`struct fuse_dirent`).
    pub fn folder_entry(&mut self, inode: u64, next: u64, kind: u8, name: &[u8]) -> &mut Self {
        self.u64(inode).u64(next).u32(name.len() as u32).u32(u32::from(kind));
        self.0.extend(name);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self
    }
}

/// Length of an entry of a folder in bytes.
pub fn folder_entry_length(name: &[u8]) -> usize {
    24 + name.len().next_multiple_of(8)
}

/// Sends the answer to a request: an error number, or pieces of content.
///
/// # Errors
/// ENOENT: the request is not waited for any more. ENODEV: the mount has ended.
pub fn send<'a>(device: &File, unique: u64, content: Result<impl Iterator<Item = &'a [u8]>, i32>) -> io::Result<()> {
    let (pieces, error): (Vec<&[u8]>, i32) = match content {
        Ok(pieces) => (pieces.collect(), 0),
        Err(error) => (Vec::new(), error),
    };
    let mut header = [0u8; 16];
    let length: usize = header.len() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
    header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&(-error).to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    let mut vectors = Vec::with_capacity(pieces.len() + 1);
    vectors.push(IoSlice::new(&header));
    vectors.extend(pieces.into_iter().map(IoSlice::new));
    let mut device = device;
    device.write_vectored(&vectors).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel refuses an answer of another length.
    #[test]
    fn records_have_the_lengths_of_the_kernel() {
        let status = FileStatus::default();
        let length = |answer: &FuseAnswer| answer.0.len();
        assert_eq!(length(FuseAnswer::default().entry(1, &status, Duration::ZERO)), ENTRY);
        assert_eq!(length(FuseAnswer::default().attributes(&status, Duration::ZERO)), 104);
        assert_eq!(length(FuseAnswer::default().opened(1, 0)), 16);
        let volume = Volume { blocks: [1, 2, 3], files: [4, 5], block_size: 6, fragment: 7, longest_name: 8 };
        assert_eq!(length(FuseAnswer::default().volume(&volume)), 80);
        for name in [&b"a"[..], b"12345678", b"123456789"] {
            let mut answer = FuseAnswer::default();
            assert_eq!(length(answer.folder_entry(1, 2, 3, name)), folder_entry_length(name));
        }
    }
}
