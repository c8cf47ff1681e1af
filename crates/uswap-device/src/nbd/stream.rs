//! Streams of bytes to a server. All calls return at once; a caller that has to wait polls the
//! socket.
//!
//! Reading and writing may be done by different threads at the same time.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use uswap_sys::io::net::{SocketReady, notice_dead_peers, set_buffers, wait_ready};

/// Requested size of the socket buffers: several requests of 512 KiB.
const SOCKET_BUFFER: i32 = 2 << 20;

/// A connection to a server.
pub trait NbdStream: Send + Sync {
    /// Reads the bytes that are there; 0: the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`: nothing to read now. Others: the connection is broken.
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize>;

    /// Writes as many bytes of `parts`, in order, as fit.
    ///
    /// # Errors
    /// `WouldBlock`: no room now. Others: the connection is broken.
    fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends the bytes that `try_write` accepted and that still wait in the stream.
    ///
    /// # Errors
    /// `WouldBlock`: not everything could be sent. Others: the connection is broken.
    fn try_flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Whether the stream holds bytes already, so that a poll of the socket would not report them.
    fn has_buffered(&self) -> bool {
        false
    }

    /// Acknowledges the received bytes to the server now. A server that collects small pieces
    /// (Nagle's algorithm; qemu-nbd does) holds back the rest of a reply until then, and the kernel
    /// would delay the acknowledgement by up to 40 ms.
    fn acknowledge(&self) {}

    /// The socket, for polling.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Ends the connection in both directions and wakes every thread that polls it.
    fn shut(&self);
}

impl NbdStream for TcpStream {
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(into)
    }
    fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&mut &*self).write_vectored(parts)
    }
    fn acknowledge(&self) {
        // Without the acknowledgement the server is only slower.
        let _ = uswap_sys::io::net::acknowledge(self);
    }
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
    fn shut(&self) {
        // An error means that the connection has ended already.
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl NbdStream for UnixStream {
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(into)
    }
    fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&mut &*self).write_vectored(parts)
    }
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
    fn shut(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Connects to the first address that answers.
///
/// # Errors
/// The error of the last address.
pub fn connect_tcp(addresses: &[SocketAddr], deadline: Instant, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(address, left(deadline)?) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                notice_dead_peers(&stream, patience)?;
                // Smaller buffers are only slower.
                let _ = set_buffers(&stream, SOCKET_BUFFER);
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to a Unix socket.
///
/// # Errors
/// Those of connect(2).
pub fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_nonblocking(true)?;
    let _ = set_buffers(&stream, SOCKET_BUFFER);
    Ok(stream)
}

/// The time that is left until `deadline`.
///
/// # Errors
/// `TimedOut`: the deadline has passed.
pub fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Fills `bytes`, waiting until `deadline`.
///
/// # Errors
/// `TimedOut`, `UnexpectedEof`, or the error of the connection.
pub fn read_exact(stream: &dyn NbdStream, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match stream.try_read(&mut bytes[done..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(error) if is_later(&error) => wait(stream, SocketReady { read: true, write: false }, deadline)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `bytes`, waiting until `deadline`.
///
/// # Errors
/// `TimedOut`, or the error of the connection.
pub fn write_all(stream: &dyn NbdStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    let room = SocketReady { read: false, write: true };
    while !bytes.is_empty() {
        match stream.try_write(&[IoSlice::new(bytes)]) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if is_later(&error) => wait(stream, room, deadline)?,
            Err(error) => return Err(error),
        }
    }
    loop {
        match stream.try_flush() {
            Err(error) if is_later(&error) => wait(stream, room, deadline)?,
            done => return done,
        }
    }
}

/// Whether the error means that the call is to be repeated later.
pub fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn wait(stream: &dyn NbdStream, ask: SocketReady, deadline: Instant) -> io::Result<()> {
    wait_ready(stream.socket(), ask, left(deadline)?).map(drop)
}
