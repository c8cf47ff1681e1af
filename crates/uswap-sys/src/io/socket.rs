//! Unix sockets of type SOCK_SEQPACKET: they carry whole messages and descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::{check, check_int};

const MAX_FDS: usize = 4;

/// A connected SOCK_SEQPACKET socket.
#[derive(Debug)]
pub struct MessageSocket(OwnedFd);

/// A listening SOCK_SEQPACKET socket without a name: other processes reach it through the
/// `/proc/PID/fd/N` of its inode.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    inode: OwnedFd,
}

impl Listener {
    /// Binds to a name in `directory`, keeps the inode and removes the name at once. Unlike an
    /// abstract name, the inode can also be reached from other network namespaces.
    ///
    /// # Errors
    /// The errors of bind(2): the directory cannot be written to, or the path is too long.
    pub fn new(directory: &Path) -> io::Result<Self> {
        let socket = new_socket()?;
        let path = directory.join(format!(".uswap-{}", std::process::id()));
        let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
        let bytes = path.as_os_str().as_encoded_bytes();
        if bytes.len() >= address.sun_path.len() {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: the address is as long as said.
        check_int(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
        let opened = open_inode(&path);
        let removed = std::fs::remove_file(&path);
        let inode = opened?;
        removed?;
        // SAFETY: no pointers.
        check_int(unsafe { libc::listen(socket.as_raw_fd(), 4096) })?;
        Ok(Self { socket, inode })
    }

    /// The descriptor number by which other processes find the socket under /proc/PID/fd.
    pub fn inode_fd(&self) -> RawFd {
        self.inode.as_raw_fd()
    }

    /// The next connection, with the process id of the peer; `None` when there is none now.
    ///
    /// # Errors
    /// EMFILE and other errors of accept4(2).
    pub fn accept(&self) -> io::Result<Option<(MessageSocket, u32)>> {
        let none = std::ptr::null_mut();
        // SAFETY: no address is asked for.
        let fd = unsafe { libc::accept4(self.socket.as_raw_fd(), none, std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
        match check_int(fd) {
            Ok(fd) => {
                // SAFETY: a new fd that nobody else owns.
                let socket = MessageSocket(unsafe { OwnedFd::from_raw_fd(fd) });
                let peer = peer_credentials(&socket)?.pid;
                Ok(Some((socket, peer)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl MessageSocket {
    /// Takes over one end of a connection that another process made; returns the process id of the
    /// peer too.
    ///
    /// # Errors
    /// The descriptor is no Unix socket of type SOCK_SEQPACKET.
    pub fn adopt(fd: OwnedFd) -> io::Result<(Self, u32)> {
        let peer = peer_credentials(&fd)?.pid;
        let mut kind: libc::c_int = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        let (option, value) = (libc::SO_TYPE, (&raw mut kind).cast());
        // SAFETY: an int and its length.
        check_int(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, value, &raw mut length) })?;
        if kind != libc::SOCK_SEQPACKET {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok((Self(fd), peer))
    }

    /// Ends sending: the peer reads the end of the stream, and its messages can be read until it
    /// closes.
    pub fn end_sending(&self) {
        // SAFETY: no pointers; a side that is gone already needs no telling.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_WR) };
    }

    /// Sends one message with up to four descriptors; does not wait.
    ///
    /// # Errors
    /// EPIPE: the peer is gone; EAGAIN: the peer does not read.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut control = [0u64; 8];
        let mut header = message_header(message.as_ptr().cast_mut(), message.len());
        let mut vector = header.1;
        header.0.msg_iov = &raw mut vector;
        if !fds.is_empty() {
            let raw: Vec<RawFd> = fds.iter().take(MAX_FDS).map(|fd| fd.as_raw_fd()).collect();
            write_control(&mut control, &raw);
            header.0.msg_control = control.as_mut_ptr().cast();
            header.0.msg_controllen = (16 + 4 * raw.len()).next_multiple_of(8);
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: header, vector, message and control live during the call.
        check(unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const header.0, flags) } as libc::c_long).map(drop)
    }

    /// Receives one message and its descriptors; does not wait. `Ok((0, _))`: the peer is gone.
    ///
    /// # Errors
    /// EAGAIN: there is no message.
    pub fn receive(&self, message: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut control = [0u64; 8];
        let mut header = message_header(message.as_mut_ptr(), message.len());
        let mut vector = header.1;
        header.0.msg_iov = &raw mut vector;
        header.0.msg_control = control.as_mut_ptr().cast();
        header.0.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        // SAFETY: as in `send`; the kernel writes within the lengths given.
        let n = check(unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut header.0, flags) } as libc::c_long)?;
        let count = if header.0.msg_controllen >= 16 { (control[0] as usize).saturating_sub(16) / 4 } else { 0 };
        let fds = (0..count.min(MAX_FDS)).map(|i| {
            let fd = (control[2 + i / 2] >> (32 * (i % 2))) as u32 as RawFd;
            // SAFETY: the kernel just installed it for us.
            unsafe { OwnedFd::from_raw_fd(fd) }
        });
        Ok((n as usize, fds.collect()))
    }
}

impl AsFd for MessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits for a message with one descriptor on a Unix socket of any type.
///
/// # Errors
/// As recvmsg(2); `UnexpectedEof`: the message, or the end of the stream, came without a
/// descriptor.
pub fn receive_descriptor(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (mut control, mut byte) = ([0u64; 8], [0u8; 1]);
    let mut header = message_header(byte.as_mut_ptr(), byte.len());
    let mut vector = header.1;
    header.0.msg_iov = &raw mut vector;
    header.0.msg_control = control.as_mut_ptr().cast();
    header.0.msg_controllen = size_of_val(&control);
    // SAFETY: as in `MessageSocket::receive`.
    check(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header.0, libc::MSG_CMSG_CLOEXEC) } as libc::c_long)?;
    if header.0.msg_controllen < 20 || control[0] < 20 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: the kernel just installed it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(control[2] as u32 as RawFd) })
}

/// The process at the other end of a Unix socket: the one that connected, or the one that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its process id in this process's pid namespace (0: not visible there).
    pub pid: u32,
    /// Its effective user id at that time.
    pub user: u32,
}

/// SO_PEERCRED of a connected Unix socket.
///
/// # Errors
/// ENOTSOCK, ENOPROTOOPT: not a Unix socket.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the structure is as long as said.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast(), &raw mut length) };
    check_int(result)?;
    Ok(Credentials { pid: found.pid as u32, user: found.uid })
}

fn new_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = check_int(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: a new fd that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn open_inode(path: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH).open(path).map(OwnedFd::from)
}

fn message_header(base: *mut u8, length: usize) -> (libc::msghdr, libc::iovec) {
    // SAFETY: msghdr is a plain C structure for which zero means "nothing".
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iovlen = 1;
    (header, libc::iovec { iov_base: base.cast(), iov_len: length })
}

/// struct cmsghdr (length, level and type) and the descriptors behind it.
fn write_control(control: &mut [u64; 8], fds: &[RawFd]) {
    control[0] = 16 + 4 * fds.len() as u64;
    control[1] = (libc::SCM_RIGHTS as u64) << 32 | libc::SOL_SOCKET as u64;
    for (i, fd) in fds.iter().enumerate() {
        control[2 + i / 2] |= u64::from(*fd as u32) << (32 * (i % 2));
    }
}
