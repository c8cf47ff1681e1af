//! Ends a process when the other end of its pipe is closed, whatever the threads of that process
//! are waiting for.
//!
//! The other end ([`Post`]) is that of a pipe into which no process ever writes; each
//! [`KillOnClose`] is a reading end with an owner and a signal of its own (F_SETOWN_EX, F_SETSIG).
//! While it is *fastened* (O_ASYNC), the kernel sends SIGKILL to its owner once the last writing
//! end is closed (`pipe_release` in fs/pipe.c). The reading end must be open somewhere for that: in
//! the process itself, in a table that its exec closes. Owner and flags belong to the open file, so
//! every process that has a copy can fasten and loosen it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::check_int;

/// The writing end, shared by all processes that are to end together.
#[derive(Debug)]
pub struct Post {
    reader: OwnedFd,
    _writer: OwnedFd,
}

/// The reading end of one process, which ends with the writing end.
#[derive(Debug)]
pub struct KillOnClose(OwnedFd);

const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_PID: libc::c_int = 1;

/// `struct f_owner_ex`.
#[repr(C)]
struct LeashOwner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

impl Post {
    /// A new pipe to which no process is bound yet.
    ///
    /// # Errors
    /// EMFILE, ENFILE.
    pub fn new() -> io::Result<Self> {
        let mut ends: [RawFd; 2] = [-1; 2];
        // SAFETY: room for two descriptors.
        check_int(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
        // SAFETY: two new fds that nobody else owns.
        let [reader, writer] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Self { reader, _writer: writer })
    }

    /// A reading end for a process, loosened.
    ///
    /// # Errors
    /// EMFILE; ESRCH: the process is gone.
    pub fn leash(&self, pid: u32) -> io::Result<KillOnClose> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = std::fs::OpenOptions::new();
        let path = format!("/proc/self/fd/{}", self.reader.as_raw_fd());
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let leash = KillOnClose(file.into());
        leash.belong_to(pid)?;
        Ok(leash)
    }
}

impl KillOnClose {
    /// From now on the process ends when the writing end is closed.
    pub fn fasten(&self) {
        self.set(libc::O_NONBLOCK | libc::O_ASYNC);
    }

    /// From now on the process does not end with the writing end.
    pub fn loosen(&self) {
        self.set(libc::O_NONBLOCK);
    }

    /// Sets the process that ends.
    ///
    /// # Errors
    /// ESRCH: the process is gone.
    pub fn belong_to(&self, pid: u32) -> io::Result<()> {
        let owner = LeashOwner { kind: F_OWNER_PID, pid: pid as libc::pid_t };
        // SAFETY: the structure lives during the call.
        check_int(unsafe { libc::fcntl(self.0.as_raw_fd(), F_SETOWN_EX, &raw const owner) })?;
        // SAFETY: no pointers.
        check_int(unsafe { libc::fcntl(self.0.as_raw_fd(), F_SETSIG, libc::SIGKILL) }).map(drop)
    }

    fn set(&self, flags: libc::c_int) {
        // SAFETY: no pointers. It could fail for want of a few bytes of kernel memory, which are
        // never refused.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETFL, flags) };
    }
}

impl AsFd for KillOnClose {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command};
    use std::sync::{Mutex, MutexGuard};

    /// Held during each test: a process that another test forks at the wrong moment would keep the
    /// writing end open as long as it lives.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Starts a process that inherits its own reading end.
    fn sleeper(post: &Post, seconds: &str) -> (Child, KillOnClose) {
        let leash = post.leash(std::process::id()).expect("a leash");
        let fd = leash.0.as_raw_fd();
        let mut command = Command::new("sleep");
        command.arg(seconds);
        // SAFETY: a plain system call between fork and exec.
        unsafe { command.pre_exec(move || check_int(libc::fcntl(fd, libc::F_SETFD, 0)).map(drop)) };
        let child = command.spawn().expect("sleep");
        leash.belong_to(child.id()).expect("it is there");
        (child, leash)
    }

    #[test]
    fn who_hangs_on_a_post_that_falls_is_killed() {
        let _alone = alone();
        let post = Post::new().expect("a post");
        let (mut child, leash) = sleeper(&post, "60");
        leash.fasten();
        drop(leash);
        drop(post);
        assert_eq!(child.wait().expect("our child").signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn a_loose_leash_kills_nobody() {
        let _alone = alone();
        let post = Post::new().expect("a post");
        let (mut child, leash) = sleeper(&post, "0.2");
        leash.fasten();
        leash.loosen();
        drop(post);
        assert_eq!(child.wait().expect("our child").code(), Some(0));
    }
}
