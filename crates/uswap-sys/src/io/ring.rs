//! Batched file I/O through io_uring, with a safe interface.
//!
//! [`IoRing::run`] borrows all buffers of a batch, submits, and returns only when every completion
//! has come: the kernel never holds a buffer whose borrow has ended. If waiting itself fails for a
//! permanent reason, the process is aborted, because returning would break that promise.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};

/// One transfer of a batch and its result.
pub struct RingOp<'a> {
    /// Byte offset in the file.
    pub offset: u64,
    buffer: Buffer<'a>,
    /// Bytes transferred, or the negative errno. Valid after [`IoRing::run`].
    pub result: i32,
}

enum Buffer<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl<'a> RingOp<'a> {
    /// Fills `buffer` from the file at `offset`.
    ///
    /// # Panics
    /// When the buffer is 2 GiB or more.
    pub fn read(offset: u64, buffer: &'a mut [u8]) -> Self {
        assert!(buffer.len() < 1 << 31);
        Self { offset, buffer: Buffer::Read(buffer), result: -libc::EIO }
    }

    /// Writes `buffer` to the file at `offset`.
    ///
    /// # Panics
    /// When the buffer is 2 GiB or more.
    pub fn write(offset: u64, buffer: &'a [u8]) -> Self {
        assert!(buffer.len() < 1 << 31);
        Self { offset, buffer: Buffer::Write(buffer), result: -libc::EIO }
    }

    fn entry(&mut self, fd: BorrowedFd<'_>, index: usize) -> squeue::Entry {
        let fd = types::Fd(fd.as_raw_fd());
        let entry = match &mut self.buffer {
            Buffer::Read(b) => opcode::Read::new(fd, b.as_mut_ptr(), b.len() as u32).offset(self.offset).build(),
            Buffer::Write(b) => opcode::Write::new(fd, b.as_ptr(), b.len() as u32).offset(self.offset).build(),
        };
        entry.user_data(index as u64)
    }
}

/// An io_uring instance, used by one thread at a time.
pub struct IoRing {
    ring: IoUring,
}

impl IoRing {
    /// A ring that has up to `depth` transfers in flight (rounded up to a power of two).
    ///
    /// # Errors
    /// The error of io_uring_setup(2): ENOSYS or EPERM where it does not exist or is forbidden.
    pub fn new(depth: u32) -> io::Result<Self> {
        Ok(Self { ring: IoUring::new(depth.max(1))? })
    }

    /// Performs all transfers on `fd` and waits for all of them. The outcome of each is in its
    /// `result`; a short transfer is not continued here.
    pub fn run(&mut self, fd: BorrowedFd<'_>, ops: &mut [RingOp<'_>]) {
        let depth = self.ring.params().sq_entries() as usize;
        for batch in ops.chunks_mut(depth) {
            self.run_batch(fd, batch);
        }
    }

    /// `batch` fits the submission queue, which is empty here and on return, as is the completion
    /// queue.
    fn run_batch(&mut self, fd: BorrowedFd<'_>, batch: &mut [RingOp<'_>]) {
        for (index, op) in batch.iter_mut().enumerate() {
            let entry = op.entry(fd, index);
            // SAFETY: the entry's buffer is borrowed by `op` and its descriptor by `fd`; both
            // borrows last until this function returns, which is after the completion of every
            // entry (loop below).
            unsafe { self.ring.submission().push(&entry) }.expect("the batch fits the queue");
        }
        let mut pending = batch.len();
        while pending > 0 {
            self.wait();
            for completion in self.ring.completion() {
                batch[completion.user_data() as usize].result = completion.result();
                pending -= 1;
            }
        }
    }

    /// Submits the queued entries and waits for at least one completion. It may return earlier; the
    /// caller checks again.
    fn wait(&self) {
        let Err(error) = self.ring.submit_and_wait(1) else { return };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {
                std::thread::sleep(std::time::Duration::from_micros(100))
            }
            _ => {
                eprintln!("uswap: io_uring_enter failed with transfers in flight: {error}");
                std::process::abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::fd::AsFd;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn batch_larger_than_the_ring_and_errors_per_transfer() {
        let Ok(mut ring) = IoRing::new(4) else { return };
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap();
        let data: Vec<Vec<u8>> = (0..21u8).map(|i| vec![i; 100]).collect();
        let mut ops: Vec<_> = data.iter().enumerate().map(|(i, d)| RingOp::write(i as u64 * 100, d)).collect();
        ring.run(file.as_fd(), &mut ops);
        assert!(ops.iter().all(|op| op.result == 100));

        let mut buffers = vec![vec![0; 100]; 22];
        let mut ops: Vec<_> = buffers.iter_mut().enumerate().map(|(i, b)| RingOp::read(i as u64 * 100, b)).collect();
        ops[3].offset = u64::MAX - 4096;
        ring.run(file.as_fd(), &mut ops);
        let results: Vec<i32> = ops.iter().map(|op| op.result).collect();
        assert_eq!(results[21], 0, "end of file");
        assert!(results[3] < 0);
        for i in (0..21).filter(|&i| i != 3) {
            assert_eq!((results[i], &buffers[i]), (100, &data[i]));
        }
    }
}
