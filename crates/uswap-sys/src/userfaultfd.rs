//! userfaultfd(2): registration, events and the ioctls that install pages. See
//! ioctl_userfaultfd(2).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::check_int;

/// UFFD_FEATURE_PAGEFAULT_FLAG_WP: pages can be write-protected, where they were registered for it.
pub const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
/// UFFD_FEATURE_EVENT_FORK: needs CAP_SYS_PTRACE in the caller of [`Userfaultfd::handshake`].
pub const FEATURE_EVENT_FORK: u64 = 1 << 1;
/// UFFD_FEATURE_EVENT_REMAP.
pub const FEATURE_EVENT_REMAP: u64 = 1 << 2;
/// UFFD_FEATURE_EVENT_REMOVE.
pub const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
/// UFFD_FEATURE_EVENT_UNMAP.
pub const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
/// UFFD_FEATURE_SIGBUS: a missing page answers SIGBUS (EFAULT in system calls) at once.
pub const FEATURE_SIGBUS: u64 = 1 << 7;
/// UFFD_FEATURE_THREAD_ID: faults carry the thread id.
pub const FEATURE_THREAD_ID: u64 = 1 << 8;
/// UFFD_FEATURE_POISON.
pub const FEATURE_POISON: u64 = 1 << 14;
/// UFFD_FEATURE_MOVE.
pub const FEATURE_MOVE: u64 = 1 << 16;

const UFFD_API: u64 = 0xAA;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_UNREGISTER: u64 = 0x8010_aa01;
const UFFDIO_WAKE: u64 = 0x8010_aa02;
const UFFDIO_COPY: u64 = 0xc028_aa03;
const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;
const UFFDIO_POISON: u64 = 0xc020_aa08;
const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WRITE_PROTECT: u64 = 2;
const WRITE_PROTECT: u64 = 1;
const PAGEFAULT_WRITE: u64 = 1;
const PAGEFAULT_WRITE_PROTECTED: u64 = 2;
const COPY_MODE_DONTWAKE: u64 = 1;
const USERFAULTFD_IOC_NEW: u64 = 0xAA00;

/// A message from the kernel.
#[derive(Debug)]
pub enum Event {
    /// A thread touched a missing page, or wrote to a protected one, and waits.
    Fault {
        /// The faulting address (not rounded).
        address: u64,
        /// The access was a write.
        write: bool,
        /// The page is present and write-protected.
        protected: bool,
        /// Thread id, with [`FEATURE_THREAD_ID`], in the thread's own pid namespace.
        thread: u32,
    },
    /// The process forked; this is the child's userfaultfd. Reading the message lets the parent run
    /// on.
    Fork(Userfaultfd),
    /// A registered mapping moved, and with it its pages and its registration.
    Remap {
        /// Old start address.
        from: u64,
        /// New start address.
        to: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Pages in the range are about to be dropped; the range stays registered.
    Remove {
        /// Address of the first byte.
        start: u64,
        /// Address behind the last byte.
        end: u64,
    },
    /// The range was unmapped.
    Unmap {
        /// Address of the first byte.
        start: u64,
        /// Address behind the last byte.
        end: u64,
    },
}

/// The result of installing pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Install {
    /// All pages are in place and their waiting threads woken.
    Done,
    /// This many bytes are in place; the next page is already present.
    Exists(u64),
    /// This many bytes are in place; an event is pending: try the rest later.
    Again(u64),
    /// This many bytes are in place; the range behind them is not registered (any more).
    NotRegistered(u64),
    /// The address space is gone.
    Gone,
    /// This many bytes are in place; the system has no memory for the next page.
    NoMemory(u64),
    /// Another errno, and the number of bytes in place.
    Other(i32, u64),
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdRange {
    start: u64,
    length: u64,
}

#[repr(C)]
struct UffdProtect {
    start: u64,
    length: u64,
    mode: u64,
}

#[repr(C)]
struct Copy {
    destination: u64,
    source: u64,
    length: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct Zero {
    start: u64,
    length: u64,
    mode: u64,
    done: i64,
}

/// `struct uffd_msg`: the kind in byte 0, three words from byte 8 on.
#[repr(C, packed)]
#[derive(Clone, Copy, Default)]
struct UffdMessage {
    kind: u8,
    reserved: [u8; 7],
    words: [u64; 3],
}

/// An owned userfaultfd.
#[derive(Debug)]
pub struct Userfaultfd(OwnedFd);

impl Userfaultfd {
    /// Makes a userfaultfd for this process: through /dev/userfaultfd where that may be opened,
    /// otherwise by the system call.
    ///
    /// # Errors
    /// The errno of the system call when both ways are refused.
    pub fn for_this_process() -> io::Result<Self> {
        Self::by_device().or_else(|_| Self::by_system_call())
    }

    /// Makes a userfaultfd through /dev/userfaultfd, where file permissions decide.
    ///
    /// # Errors
    /// ENOENT, EACCES: from the device; EMFILE.
    pub fn by_device() -> io::Result<Self> {
        let device = open_device()?;
        // SAFETY: takes flags, returns an fd.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let fd = check_int(fd)?;
        // SAFETY: a new fd that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes a userfaultfd by the system call, where a capability or a sysctl decides.
    ///
    /// # Errors
    /// EPERM: neither CAP_SYS_PTRACE nor vm.unprivileged_userfaultfd; ENOSYS: the kernel does not
    /// have the call, or a filter forbids it.
    pub fn by_system_call() -> io::Result<Self> {
        // SAFETY: takes flags, returns an fd.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let fd = crate::check(fd)?;
        // SAFETY: a new fd that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// UFFDIO_API: enables the features.
    ///
    /// # Errors
    /// EPERM: fork events without CAP_SYS_PTRACE; EINVAL: a feature this kernel lacks.
    pub fn handshake(&self, features: u64) -> io::Result<()> {
        let mut api = Api { api: UFFD_API, features, ioctls: 0 };
        self.ioctl(UFFDIO_API, &mut api)
    }

    /// Registers a range for missing pages. Works from any process that holds the descriptor.
    ///
    /// # Errors
    /// ENOMEM: the address space is gone or the range has a hole; EINVAL: a mapping that cannot be
    /// registered; EBUSY: registered with another userfaultfd.
    pub fn register(&self, start: u64, length: u64) -> io::Result<()> {
        self.register_by(start, length, REGISTER_MODE_MISSING)
    }

    /// Registers a range for missing pages, and for write protection by [`Userfaultfd::protect`];
    /// needs [`FEATURE_WRITE_PROTECT`].
    ///
    /// # Errors
    /// As [`Userfaultfd::register`].
    pub fn register_to_protect(&self, start: u64, length: u64) -> io::Result<()> {
        self.register_by(start, length, REGISTER_MODE_MISSING | REGISTER_MODE_WRITE_PROTECT)
    }

    fn register_by(&self, start: u64, length: u64, mode: u64) -> io::Result<()> {
        self.ioctl(UFFDIO_REGISTER, &mut Register { start, length, mode, ioctls: 0 })
    }

    /// UFFDIO_WRITEPROTECT: a write to a present page of the range raises a fault, and the thread
    /// waits. Pages that are not present are skipped. A fork child inherits the protection.
    ///
    /// # Errors
    /// EAGAIN: an event is pending; ENOENT: the range is not registered for write protection (any
    /// more); ESRCH: the address space is gone.
    pub fn protect(&self, start: u64, length: u64) -> io::Result<()> {
        self.ioctl(UFFDIO_WRITEPROTECT, &mut UffdProtect { start, length, mode: WRITE_PROTECT })
    }

    /// Removes the protection of a range, and wakes the threads that wait there.
    ///
    /// # Errors
    /// As [`Userfaultfd::protect`].
    pub fn unprotect(&self, start: u64, length: u64) -> io::Result<()> {
        self.ioctl(UFFDIO_WRITEPROTECT, &mut UffdProtect { start, length, mode: 0 })
    }

    /// Removes the registration of a range and wakes the threads that wait there.
    ///
    /// # Errors
    /// As [`Userfaultfd::register`].
    pub fn unregister(&self, start: u64, length: u64) -> io::Result<()> {
        self.ioctl(UFFDIO_UNREGISTER, &mut UffdRange { start, length })
    }

    /// UFFDIO_COPY of `pages` (whole pages of this process) to `destination`.
    pub fn copy(&self, destination: u64, pages: &[u8]) -> Install {
        self.copy_by(destination, pages, 0)
    }

    /// The same, but threads that wait for the pages sleep on (UFFDIO_COPY_MODE_DONTWAKE).
    pub fn copy_quietly(&self, destination: u64, pages: &[u8]) -> Install {
        self.copy_by(destination, pages, COPY_MODE_DONTWAKE)
    }

    fn copy_by(&self, destination: u64, pages: &[u8], mode: u64) -> Install {
        let length = pages.len() as u64;
        let mut argument = Copy { destination, source: pages.as_ptr() as u64, length, mode, copied: 0 };
        let result = self.ioctl(UFFDIO_COPY, &mut argument);
        install(result, argument.copied)
    }

    /// UFFDIO_ZEROPAGE: maps the zero page read-only.
    pub fn zero(&self, start: u64, length: u64) -> Install {
        let mut argument = Zero { start, length, mode: 0, done: 0 };
        let result = self.ioctl(UFFDIO_ZEROPAGE, &mut argument);
        install(result, argument.done)
    }

    /// UFFDIO_POISON: touching the pages raises SIGBUS.
    pub fn poison(&self, start: u64, length: u64) -> Install {
        let mut argument = Zero { start, length, mode: 0, done: 0 };
        let result = self.ioctl(UFFDIO_POISON, &mut argument);
        install(result, argument.done)
    }

    /// UFFDIO_WAKE: needed after EEXIST, which wakes no thread.
    pub fn wake(&self, start: u64, length: u64) {
        // A range that is gone has no waiting threads.
        let _ = self.ioctl(UFFDIO_WAKE, &mut UffdRange { start, length });
    }

    /// Whether the address space still exists. If it does, an attempt to install a page at
    /// `unregistered`, the address of a page that is not registered, fails with another error than
    /// if it does not.
    pub fn is_alive(&self, unregistered: u64) -> bool {
        self.zero(unregistered, 4096) != Install::Gone
    }

    /// Whether no event is pending: none is queued, and no thread is changing the address space
    /// (such a thread counts from before its change until its event was read). `unregistered` as in
    /// [`Self::is_alive`]. Source: `mmap_changing` in fs/userfaultfd.c, for which every installing
    /// ioctl returns EAGAIN first.
    pub fn is_quiet(&self, unregistered: u64) -> bool {
        !matches!(self.zero(unregistered, 4096), Install::Again(_))
    }

    /// Whether the page at `address` lies in a registered mapping; `None` while an event is pending
    /// or when the address space is gone. Nothing is installed: the kernel first looks for the
    /// mapping and then fails at the missing source (fs/userfaultfd.c and mm/userfaultfd.c,
    /// `mfill_atomic`).
    ///
    /// The kernel checks for pending events before it looks for the mapping, which can be unmapped
    /// or moved in between. The event of that change is pending when this function asks a second
    /// time.
    pub fn is_registered(&self, address: u64) -> Option<bool> {
        match self.install_nothing(address) {
            Install::NotRegistered(_) => {
                matches!(self.install_nothing(address), Install::NotRegistered(_)).then_some(false)
            }
            Install::Other(libc::EFAULT, _) | Install::Exists(_) => Some(true),
            _ => None,
        }
    }

    /// Tries to install a page from a source that does not exist, so that the last step fails.
    fn install_nothing(&self, address: u64) -> Install {
        let mut argument = Copy { destination: address, source: NOWHERE, length: 4096, mode: 0, copied: 0 };
        let result = self.ioctl(UFFDIO_COPY, &mut argument);
        install(result, argument.copied)
    }

    /// Reads messages in the order of the queue and appends them to `events`; returns `true` when
    /// more may be waiting.
    ///
    /// # Errors
    /// EMFILE: a fork event while the fd table is full. The event stays in its place, the parent
    /// waits, and the event can be read again (`userfaultfd_ctx_read` in fs/userfaultfd.c).
    pub fn read_events(&self, events: &mut Vec<Event>) -> io::Result<bool> {
        let mut messages = [UffdMessage::default(); MAX_MESSAGES];
        let length = size_of_val(&messages);
        // SAFETY: the buffer is as long as said.
        let n = unsafe { libc::read(self.0.as_raw_fd(), messages.as_mut_ptr().cast(), length) };
        if n < 0 {
            let error = io::Error::last_os_error();
            let none = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
            return if none { Ok(false) } else { Err(error) };
        }
        let count = n as usize / size_of::<UffdMessage>();
        events.extend(messages[..count].iter().map(|message| decode(*message)));
        Ok(count == MAX_MESSAGES)
    }

    fn ioctl<T>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        // SAFETY: every caller in this file passes the structure that its request names.
        check_int(unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(argument)) }).map(drop)
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Userfaultfd {
    /// The descriptor must be a userfaultfd; another kind answers every call with ENOTTY.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// Opens /dev/userfaultfd, which grants userfaultfds by file permission alone
/// (Documentation/admin-guide/mm/userfaultfd).
///
/// # Errors
/// ENOENT or EACCES.
pub fn open_device() -> io::Result<OwnedFd> {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").map(OwnedFd::from)
}

/// An address at which no process can have memory (below `vm.mmap_min_addr`).
const NOWHERE: u64 = 4096;

/// Maximum number of messages in one read.
const MAX_MESSAGES: usize = 16;

fn decode(message: UffdMessage) -> Event {
    let [a, b, c] = message.words;
    match message.kind {
        0x12 => Event::Fault {
            address: b,
            write: a & PAGEFAULT_WRITE != 0,
            protected: a & PAGEFAULT_WRITE_PROTECTED != 0,
            thread: c as u32,
        },
        // SAFETY: the kernel just installed this fd for the reader of the event; nobody else knows
        // it.
        0x13 => Event::Fork(Userfaultfd(unsafe { OwnedFd::from_raw_fd(a as u32 as RawFd) })),
        0x14 => Event::Remap { from: a, to: b, length: c },
        0x15 => Event::Remove { start: a, end: b },
        _ => Event::Unmap { start: a, end: b },
    }
}

fn install(result: io::Result<()>, done: i64) -> Install {
    let Err(error) = result else { return Install::Done };
    let bytes = done.max(0) as u64;
    match error.raw_os_error().unwrap_or(0) {
        libc::EEXIST => Install::Exists(bytes),
        libc::EAGAIN => Install::Again(bytes),
        libc::ENOENT => Install::NotRegistered(bytes),
        libc::ESRCH => Install::Gone,
        libc::ENOMEM => Install::NoMemory(bytes),
        other => Install::Other(other, bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two registered pages, one of them present, and a page that is not registered.
    #[test]
    fn registration_is_seen_without_a_trace() {
        let Ok(events) = Userfaultfd::for_this_process() else { return };
        events.handshake(0).expect("handshake");
        let pages = crate::AlignedBuf::zeroed(3 * 4096);
        let start = pages.as_ptr() as u64;
        events.register(start, 4096).expect("register");
        assert_eq!(events.is_registered(start), Some(true));
        assert_eq!(events.is_registered(start + 4096), Some(false));
        assert_eq!(events.is_registered(start - (1 << 30)), Some(false));
        events.unregister(start, 4096).expect("unregister");
        assert_eq!(events.is_registered(start), Some(false));
        assert!(pages.iter().all(|byte| *byte == 0));
    }

    /// A mapping is unmapped while its registration is queried: before the event was read, no query
    /// may say that the mapping is not registered.
    #[test]
    fn what_is_being_unmapped_is_never_said_to_be_unregistered() {
        let Ok(events) = Userfaultfd::for_this_process() else { return };
        events.handshake(FEATURE_EVENT_UNMAP).expect("handshake");
        for round in 0..3000 {
            let pages = crate::Reservation::new(16 * 4096).expect("address space");
            let start = pages.bytes().as_ptr() as u64;
            events.register(start, 16 * 4096).expect("register");
            let unmapping = std::thread::spawn(move || drop(pages));
            let answer = loop {
                match events.is_registered(start) {
                    Some(true) => std::hint::spin_loop(),
                    answer => break answer,
                }
            };
            assert_eq!(answer, None, "round {round}");
            let mut read = Vec::new();
            while read.is_empty() {
                events.read_events(&mut read).expect("the event");
            }
            unmapping.join().expect("unmapped");
        }
    }

    #[test]
    fn ioctl_structures_have_the_kernels_sizes() {
        assert_eq!(size_of::<UffdMessage>(), 32);
        for (request, size) in [
            (UFFDIO_API, size_of::<Api>()),
            (UFFDIO_REGISTER, size_of::<Register>()),
            (UFFDIO_WAKE, size_of::<UffdRange>()),
            (UFFDIO_WRITEPROTECT, size_of::<UffdProtect>()),
            (UFFDIO_COPY, size_of::<Copy>()),
            (UFFDIO_ZEROPAGE, size_of::<Zero>()),
        ] {
            assert_eq!((request >> 16 & 0x3fff) as usize, size, "{request:x}");
        }
    }
}
