//! epoll(7) and eventfd(2).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::check_int;

/// An eventfd: a counter that wakes a poller.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A counter that is non-blocking, close-on-exec and zero.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = check_int(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: a new fd that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Wakes the poller. An error means that the counter is full, so the poller is already woken.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Sets the counter back to zero.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An epoll instance; the caller gives each fd a number.
#[derive(Debug)]
pub struct Poller(OwnedFd);

/// An fd that is ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The number of the fd.
    pub token: u64,
    /// The other end is closed.
    pub hung_up: bool,
}

impl Poller {
    /// # Errors
    /// EMFILE.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = check_int(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a new fd that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches `fd` for input, level-triggered.
    ///
    /// # Errors
    /// EEXIST, ENOMEM.
    pub fn add(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        let fd = fd.as_fd().as_raw_fd();
        // SAFETY: both fds live, the event is copied.
        check_int(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) }).map(drop)
    }

    /// Stops watching `fd`. Needed before closing it: with a shared fd table another process may
    /// keep the file open.
    pub fn remove(&self, fd: impl AsFd) {
        let none = std::ptr::null_mut();
        // SAFETY: both fds live.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_fd().as_raw_fd(), none) };
    }

    /// Waits at most `milliseconds` (-1: for ever) and appends to `ready`.
    ///
    /// # Errors
    /// None for a valid instance; an interrupted wait counts as a timeout.
    pub fn wait(&self, milliseconds: i32, ready: &mut Vec<Ready>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the vector is 64 long.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 64, milliseconds) };
        let n = match check_int(n) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            other => other? as usize,
        };
        let gone = (libc::EPOLLHUP | libc::EPOLLERR) as u32;
        ready.extend(events[..n].iter().map(|e| Ready { token: e.u64, hung_up: e.events & gone != 0 }));
        Ok(())
    }
}

/// Waits until one of `fds` has input, at most `milliseconds`. Returns for each whether it has.
///
/// # Errors
/// As poll(2); an interrupted wait counts as a timeout.
pub fn poll(fds: &[BorrowedFd<'_>], milliseconds: i32) -> io::Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the array is as long as said.
    let n = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, milliseconds) };
    match check_int(n) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(polled.iter().map(|p| p.revents != 0).collect()),
    }
}
