//! A session with the kernel: the first request, and the threads that serve all others.
//!
//! Each thread reads one request, serves it and answers. A thread that serves may wait for the
//! source, so there are as many as are busy and one more, up to a bound. They stay: whoever has
//! answered may be kept from its next request by the thread that it has woken, so with two readers
//! and threads that ended each fourth request made a thread.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use uswap_sys::Reservation;
use uswap_sys::fs::fuse;
use uswap_sys::process::thread::spawn;

use crate::fuse::reply::{FuseAnswer, send};
use crate::fuse::request::{FuseOperation, FuseRequest};

/// The longest read and write in pages.
pub const MOST_PAGES: usize = 256;
/// Threads that serve at most.
const MOST_THREADS: usize = 16;
/// Length of a request in bytes above which its thread gives the buffer's memory back, and threads
/// that need not.
const LARGE: usize = 256 << 10;
const MOST_LARGE: usize = 4;
/// Length of a buffer in bytes: the data of the longest write, and a page for what comes before.
const BUFFER: usize = (MOST_PAGES + 2) * uswap_core::PAGE_SIZE;
/// The oldest version that is spoken: 7.31 (Linux 5.4).
const LEAST_MINOR: u32 = 31;
/// The newest version that is spoken: 7.39 (Linux 6.6).
const MINOR: u32 = 39;

/// The abilities of the kernel that are wanted.
mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const WANTED: u64 = ASYNC_READ
        | ATOMIC_O_TRUNC
        | BIG_WRITES
        | DONT_MASK
        | AUTO_INVAL_DATA
        | DO_READDIRPLUS
        | READDIRPLUS_AUTO
        | ASYNC_DIO
        | PARALLEL_DIROPS
        | POSIX_ACL
        | MAX_PAGES
        | INIT_EXT
        | DIRECT_IO_ALLOW_MMAP;
}

/// The answer to a request.
pub enum Outcome {
    /// Success, with content.
    Answer(FuseAnswer),
    /// Success, with bytes of a file.
    Content(crate::cache::FileContent),
    /// An error number.
    Error(i32),
}

/// Serves requests.
pub trait Serve: Send + Sync + 'static {
    /// Serves one request.
    fn serve(&self, request: &mut FuseRequest<'_>) -> Outcome;
}

/// Whether files may be mapped shared while their other accesses pass the kernel's cache by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// Such files may be mapped.
    pub maps_direct: bool,
}

/// Answers the first request.
///
/// # Errors
/// The connection has ended, or the kernel is too old.
pub fn begin(device: &File) -> io::Result<Negotiated> {
    let mut buffer = vec![0u8; 8192];
    let mut reader = device;
    let length = reader.read(&mut buffer)?;
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut request = FuseRequest::read(&buffer[..length]).ok_or_else(invalid)?;
    if request.operation != Some(FuseOperation::Init) {
        return Err(invalid());
    }
    let body = &mut request.body;
    let (Some(7), Some(minor)) = (body.u32(), body.u32()) else { return Err(invalid()) };
    if minor < LEAST_MINOR {
        send(device, request.unique, Err::<std::iter::Empty<&[u8]>, _>(libc::EPROTO))?;
        return Err(io::Error::other(format!("the kernel speaks FUSE 7.{minor}; 7.{LEAST_MINOR} is needed")));
    }
    let (readahead, low) = (body.u32().unwrap_or(0), body.u32().unwrap_or(0));
    let high = if u64::from(low) & init::INIT_EXT != 0 { body.u32().unwrap_or(0) } else { 0 };
    let flags = (u64::from(high) << 32 | u64::from(low)) & init::WANTED;
    let mut answer = FuseAnswer::default();
    let most = (MOST_PAGES * uswap_core::PAGE_SIZE) as u32;
    answer.u32(7).u32(MINOR).u32(readahead).u32(flags as u32).u16(64).u16(48).u32(most).u32(1);
    answer.u16(MOST_PAGES as u16).u16(0).u32((flags >> 32) as u32).u32(0);
    answer.0.resize(64, 0);
    send(device, request.unique, Ok([&answer.0[..]].into_iter()))?;
    Ok(Negotiated { maps_direct: flags & init::DIRECT_IO_ALLOW_MMAP != 0 })
}

/// The threads of a session.
pub struct Threads {
    device: File,
    server: Arc<dyn Serve>,
    running: AtomicUsize,
    idle: AtomicUsize,
    /// Threads that keep the memory of a large request.
    large: AtomicUsize,
    ended: AtomicBool,
}

impl Threads {
    /// No thread runs yet.
    pub fn new(device: File, server: Arc<dyn Serve>) -> Arc<Self> {
        let zero = || AtomicUsize::new(0);
        let (running, idle, large) = (zero(), zero(), zero());
        Arc::new(Self { device, server, running, idle, large, ended: AtomicBool::new(false) })
    }

    /// Serves in this thread until the mount has ended, and in others as they are needed.
    pub fn serve(self: &Arc<Self>) {
        self.running.fetch_add(1, SeqCst);
        self.work();
        // Others may still answer their last requests; none waits longer than its source.
        while self.running.load(SeqCst) > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn one_more(self: &Arc<Self>) {
        if self.running.fetch_add(1, SeqCst) >= MOST_THREADS {
            self.running.fetch_sub(1, SeqCst);
            return;
        }
        let threads = Arc::clone(self);
        if spawn("serve".into(), move || threads.work()).is_err() {
            self.running.fetch_sub(1, SeqCst);
        }
    }

    /// Reads and serves requests until the mount ends.
    fn work(self: &Arc<Self>) {
        let Ok(mut buffer) = Reservation::new(BUFFER) else {
            self.running.fetch_sub(1, SeqCst);
            return;
        };
        let mut keeps = false;
        let device = fuse::clone(&self.device);
        let device = device.as_ref().unwrap_or(&self.device);
        while !self.ended.load(SeqCst) {
            self.idle.fetch_add(1, SeqCst);
            let mut reader = device;
            let read = reader.read(buffer.bytes_mut());
            let was_last = self.idle.fetch_sub(1, SeqCst) == 1;
            match read {
                Ok(length) => {
                    if was_last {
                        self.one_more();
                    }
                    self.answer(device, &buffer.bytes()[..length]);
                    keeps = keeps || length > LARGE && self.large.fetch_add(1, SeqCst) < MOST_LARGE;
                    if length > LARGE && !keeps {
                        buffer.release(LARGE..BUFFER);
                    }
                }
                // ENOENT: the request was withdrawn before it was read.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR | libc::EAGAIN)) => {}
                Err(_) => self.ended.store(true, SeqCst),
            }
        }
        self.running.fetch_sub(1, SeqCst);
    }

    fn answer(&self, device: &File, bytes: &[u8]) {
        let Some(mut request) = FuseRequest::read(bytes) else { return };
        let (unique, is_answered) = (request.unique, request.operation.is_none_or(FuseOperation::is_answered));
        let outcome = self.server.serve(&mut request);
        if !is_answered {
            return;
        }
        // A request that is not waited for any more has no use for its answer.
        let _ = match &outcome {
            Outcome::Answer(answer) => send(device, unique, Ok([&answer.0[..]].into_iter())),
            Outcome::Content(content) => send(device, unique, Ok(content.pieces())),
            Outcome::Error(error) => send(device, unique, Err::<std::iter::Empty<&[u8]>, _>(*error)),
        };
    }
}
