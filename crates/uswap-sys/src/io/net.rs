//! Socket functions that the standard library does not have: waiting for reading and writing at
//! once, and TCP options.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::check_int;

/// Directions in which a socket is ready. An error or the end of the connection counts as both: the
/// next call returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SocketReady {
    /// A read does not block.
    pub read: bool,
    /// A write does not block.
    pub write: bool,
}

/// Waits until the socket is ready for one of the directions in `ask`, at most `patience` (rounded
/// up to milliseconds); after that nothing is ready. A signal ends the wait early.
///
/// # Errors
/// The errors of poll(2).
pub fn wait_ready(socket: impl AsFd, ask: SocketReady, patience: Duration) -> io::Result<SocketReady> {
    let events = if ask.read { libc::POLLIN } else { 0 } | if ask.write { libc::POLLOUT } else { 0 };
    let mut entry = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events, revents: 0 };
    let milliseconds = patience.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
    // SAFETY: one entry, alive during the call.
    match check_int(unsafe { libc::poll(&raw mut entry, 1, milliseconds) }) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(SocketReady::default()),
        result => result?,
    };
    let ended = entry.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
    Ok(SocketReady {
        read: ended || entry.revents & libc::POLLIN != 0,
        write: ended || entry.revents & libc::POLLOUT != 0,
    })
}

/// Makes the kernel detect a dead peer of a TCP connection: after ten idle seconds it probes the
/// peer every five seconds (tcp(7)), and bytes that are not acknowledged for `patience` end the
/// connection.
///
/// # Errors
/// ENOTSOCK, ENOPROTOOPT: it is no TCP socket.
pub fn notice_dead_peers(socket: impl AsFd, patience: Duration) -> io::Result<()> {
    let milliseconds = patience.as_millis().clamp(1000, i32::MAX as u128) as i32;
    set(&socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(&socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10)?;
    set(&socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 5)?;
    set(&socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)?;
    set(&socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, milliseconds)
}

/// Acknowledges the bytes received on a TCP connection now, not up to 40 ms later (TCP_QUICKACK,
/// tcp(7)). The effect is not lasting.
///
/// # Errors
/// ENOTSOCK, ENOPROTOOPT: it is no TCP socket.
pub fn acknowledge(socket: impl AsFd) -> io::Result<()> {
    set(&socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1)
}

/// Asks for socket buffers of this many bytes in each direction; the system's limits may give less.
///
/// # Errors
/// ENOTSOCK.
pub fn set_buffers(socket: impl AsFd, bytes: i32) -> io::Result<()> {
    set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
}

fn set(socket: &impl AsFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let (fd, length) = (socket.as_fd().as_raw_fd(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: an int and its length.
    check_int(unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), length) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn readiness_is_told_for_each_direction() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let both = SocketReady { read: true, write: true };
        let reading = SocketReady { read: true, write: false };
        assert_eq!(asked(&ours, both), SocketReady { read: false, write: true });
        theirs.write_all(b"x").expect("room");
        assert_eq!(asked(&ours, both), both);
        let nothing = wait_ready(&theirs, reading, Duration::from_millis(1)).expect("poll");
        assert_eq!(nothing, SocketReady::default());
        drop(ours);
        assert!(asked(&theirs, reading).read);
    }

    /// Waits for a socket that is ready for something, also when signals for other tests arrive.
    fn asked(socket: &UnixStream, ask: SocketReady) -> SocketReady {
        let waits = || wait_ready(socket, ask, Duration::from_secs(1)).expect("poll");
        (0..1000).map(|_| waits()).find(|ready| *ready != SocketReady::default()).expect("it is ready")
    }

    #[test]
    fn options_are_for_tcp() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = std::net::TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
        notice_dead_peers(&stream, Duration::from_secs(30)).expect("options");
        set_buffers(&stream, 1 << 20).expect("options");
        acknowledge(&stream).expect("options");
        let (unix, _other) = UnixStream::pair().expect("a pair");
        assert!(notice_dead_peers(&unix, Duration::from_secs(30)).is_err());
    }
}
