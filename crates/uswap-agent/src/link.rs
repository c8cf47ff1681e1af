//! The handshake with the engine: the socket, the messages and the descriptors that travel with
//! them.

use core::sync::atomic::Ordering::Relaxed;

use crate::hooks;
use crate::layout::{IDENTITY, NONCE, NOTICE, PAGE, SA, SB, SLOTS};
use crate::message::*;
use crate::orders::Agent;
use crate::ring::Ring;
use crate::syscall::{self, call};
use crate::threads::read_and_close;

/// Path of the engine's socket, NUL-terminated. The engine writes it over this marker in the copy
/// that it hands out.
#[used]
static SOCKET_PATH: [u8; 64] = *b"uswap:socket-path:uswap:socket-path:uswap:socket-path:uswap:sock";

const USERFAULTFD_IOC_NEW: usize = 0xAA00;
const AF_UNIX: u16 = 1;
const SEQPACKET: usize = 5;
const MAX_FDS: usize = 4;
/// The longest time that the engine's first answer is waited for.
const ANSWER_SECONDS: u64 = 10;

#[repr(C)]
struct Address {
    family: u16,
    path: [u8; 108],
}

#[repr(C)]
struct IoVector {
    base: usize,
    length: usize,
}

#[repr(C)]
struct MessageHeader {
    name: usize,
    name_length: u32,
    vectors: usize,
    vector_count: usize,
    control: usize,
    control_length: usize,
    flags: i32,
}

#[repr(C)]
struct ControlMessage {
    length: usize,
    level: i32,
    kind: i32,
    fds: [i32; MAX_FDS],
}

/// Connects, unless the engine has already done so (`socket`), exchanges the messages, and returns
/// the agent ready to run. `None`: this process stays unmanaged.
pub fn connect(area: u64, inherited: bool, socket: Option<i32>, program: Option<i32>) -> Option<Agent> {
    let (socket, far_end) = match socket.or_else(connect_socket) {
        Some(socket) => (socket, None),
        None => call_engine()?,
    };
    set_timeout(socket, ANSWER_SECONDS);
    if program.is_some_and(|program| has_ended_meanwhile(program, socket)) {
        return None;
    }
    // The two kill-on-close files only have to stay open; the engine does the rest.
    let (welcome, [ring_fd, _of_program, _of_agent, device]) = receive(socket)?;
    if let Some(far_end) = far_end {
        // The engine has the far end now; our copy would keep us from seeing that the engine closes
        // it.
        syscall::close(far_end);
        syscall::name_thread(AGENT_NAME);
    }
    let ring = map_ring(ring_fd)?;
    if ring.silent_hooks.load(Relaxed) != 0 {
        hooks::silence(area);
    }
    if ring.bare_staging.load(Relaxed) != 0 {
        keep_staging_from_children(area);
    }
    write_nonce(area, &welcome);
    let identity = if inherited { read_identity(area) } else { 0 };
    let is_child = identity != 0;
    let events = if is_child { -1 } else { new_userfaultfd(device, 0) };
    let staging = new_staging_userfaultfd(device);
    syscall::close(device);
    let failure = if staging < 0 { staging } else { events.min(0) };
    let mut eyes = ProcFds::open(program);
    let failure_told = if is_child && staging >= 0 { 0 } else { failure };
    let mut hello = hello(area, identity, failure_told, eyes.is_none(), program.is_some());
    hello[HELLO_FORKED_AT] = u64::from(inherited);
    send(socket, &hello, [events as i32, staging as i32, program.unwrap_or(-1)])?;
    let (go, fds) = receive(socket)?;
    if go[GO_REFUSED_AT] == 1 || failure < -1 || (failure == -1 && !is_child) {
        return None;
    }
    let [completion, child_events, ..] = fds;
    let brings_events = go[GO_HAS_FD_AT] == 1;
    let events = if brings_events { child_events } else { events as i32 };
    if eyes.is_none() {
        let at = if brings_events { 2 } else { 1 };
        eyes = (fds[at] >= 0 && fds[at + 1] >= 0).then(|| ProcFds { pagemap: fds[at], tasks: fds[at + 1] });
    }
    if is_child {
        // The engine may have installed it again to verify which process we are.
        drop_identity(area);
    }
    drop_capabilities();
    set_timeout(socket, 1);
    Some(Agent::new(area, ring, [socket, completion, events, staging as i32], eyes?, program))
}

/// Descriptors of files in /proc by which the agent sees its own process.
pub struct ProcFds {
    /// The process's pagemap: which pages are present.
    pub pagemap: i32,
    /// The directory /proc/PID/task of its threads.
    pub tasks: i32,
}

impl ProcFds {
    /// `None`: there is no /proc in this root directory, or its files belong to another user; the
    /// engine opens them. `program`: a pidfd of the program, if that is another process.
    fn open(program: Option<i32>) -> Option<Self> {
        // Not /proc/self: the first thread may have ended, and then nothing can be seen through it.
        let pagemap = syscall::open(b"/proc/thread-self/pagemap\0", 0);
        let tasks = match program {
            None => syscall::open(b"/proc/self/task\0", syscall::O_DIRECTORY),
            Some(pidfd) => open_tasks(pidfd),
        };
        if pagemap >= 0 && tasks >= 0 {
            return Some(Self { pagemap: pagemap as i32, tasks: tasks as i32 });
        }
        [pagemap, tasks].into_iter().filter(|fd| *fd >= 0).for_each(|fd| syscall::close(fd as i32));
        None
    }
}

/// The directory of the threads of the process behind a pidfd, whichever number it has in /proc.
fn open_tasks(pidfd: i32) -> isize {
    const INFO: &[u8] = b"/proc/thread-self/fdinfo/";
    const FIELD: &[u8] = b"Pid:\t";
    let mut path = [0u8; 48];
    path[..INFO.len()].copy_from_slice(INFO);
    let mut end = INFO.len();
    end += decimal(pidfd as u32, &mut path[end..]);
    let mut buffer = [0u8; 512];
    let text = read_and_close(syscall::open(&path[..=end], 0), &mut buffer).unwrap_or_default();
    let Some(at) = text.windows(FIELD.len()).position(|window| window == FIELD) else { return -1 };
    let digits = text[at + FIELD.len()..].iter().take_while(|c| c.is_ascii_digit()).count();
    let number = &text[at + FIELD.len()..at + FIELD.len() + digits];
    let mut path = [0u8; 32];
    if digits == 0 || digits > 10 {
        return -1;
    }
    path[..6].copy_from_slice(b"/proc/");
    path[6..6 + digits].copy_from_slice(number);
    path[6 + digits..11 + digits].copy_from_slice(b"/task");
    syscall::open(&path[..12 + digits], syscall::O_DIRECTORY)
}

/// Writes a number in decimal digits; returns how many.
fn decimal(number: u32, text: &mut [u8]) -> usize {
    let mut digits = [0u8; 10];
    let (mut left, mut count) = (number, 0);
    while count == 0 || left > 0 {
        digits[count] = b'0' + (left % 10) as u8;
        (left, count) = (left / 10, count + 1);
    }
    digits[..count].iter().rev().zip(text).for_each(|(digit, place)| *place = *digit);
    count
}

/// Asks the engine to fetch one end of a pair of sockets; returns our own end, and the one for the
/// engine to fetch.
fn call_engine() -> Option<(i32, Option<i32>)> {
    let mut pair = [-1i32; 2];
    let kind = SEQPACKET | syscall::O_CLOEXEC;
    // SAFETY: room for two descriptors.
    let made = unsafe { call(syscall::SOCKETPAIR, [AF_UNIX as usize, kind, 0, pair.as_mut_ptr() as usize, 0, 0]) };
    let [near, far] = pair;
    // The file table is new, so descriptors have one digit.
    if made != 0 || !(0..10).contains(&far) {
        return None;
    }
    let mut name = [0u8; 16];
    name[..CALL_NAME.len()].copy_from_slice(CALL_NAME.as_bytes());
    name[CALL_NAME.len()] = b'0' + far as u8;
    syscall::name_thread(core::ffi::CStr::from_bytes_until_nul(&name).ok()?);
    Some((near, Some(far)))
}

fn hello(area: u64, identity: u64, failure: isize, blind: bool, is_process: bool) -> AgentMessage {
    let mut hello = [0; WORDS];
    hello[HELLO_BLIND_AT] = u64::from(blind);
    hello[0] = MAGIC;
    hello[HELLO_AREA_AT] = area;
    // SAFETY: gettid takes no arguments.
    hello[HELLO_TID_AT] = unsafe { call(syscall::GETTID, [0; 6]) } as u64;
    hello[HELLO_IDENTITY_AT] = identity;
    hello[HELLO_ERRNO_AT] = failure.unsigned_abs() as u64;
    hello[HELLO_CODE_AT] = connect as *const () as u64;
    hello[HELLO_PROCESS_AT] = u64::from(is_process);
    hello
}

fn connect_socket() -> Option<i32> {
    let mut address = Address { family: AF_UNIX, path: [0; 108] };
    for (i, byte) in address.path.iter_mut().take(64).enumerate() {
        // SAFETY: inside the array; volatile because the engine rewrites the bytes in the file.
        *byte = unsafe { (&raw const SOCKET_PATH).cast::<u8>().add(i).read_volatile() };
    }
    let length = 2 + address.path.iter().position(|b| *b == 0)? + 1;
    // SAFETY: the address lives during the call and `length` is within it.
    unsafe {
        let socket = call(syscall::SOCKET, [AF_UNIX as usize, SEQPACKET | syscall::O_CLOEXEC, 0, 0, 0, 0]);
        if socket < 0 {
            return None;
        }
        let connected = call(syscall::CONNECT, [socket as usize, &raw const address as usize, length, 0, 0, 0]);
        (connected == 0).then_some(socket as i32)
    }
}

/// Waits until the engine has answered. Returns whether the program has ended before that: its
/// memory would stay for as long as this process waits.
fn has_ended_meanwhile(program: i32, socket: i32) -> bool {
    const POLLIN: i32 = 1;
    // Two of struct pollfd (poll(2)): a descriptor, and two halves of events asked for and seen.
    let mut polled = [[socket, POLLIN], [program, POLLIN]];
    let wait = ANSWER_SECONDS as usize * 1000;
    // SAFETY: room for both.
    unsafe { call(syscall::POLL, [polled.as_mut_ptr() as usize, polled.len(), wait, 0, 0, 0]) };
    let [[_, answered], [_, ended]] = polled.map(|[fd, events]| [fd, events >> 16]);
    ended != 0 && answered == 0
}

/// SO_RCVTIMEO, in seconds.
fn set_timeout(socket: i32, seconds: u64) {
    let timeout = [seconds, 0];
    // SAFETY: a timeval of two words.
    unsafe { call(syscall::SETSOCKOPT, [socket as usize, 1, 20, timeout.as_ptr() as usize, 16, 0]) };
}

fn map_ring(fd: i32) -> Option<&'static Ring> {
    let length = size_of::<Ring>().next_multiple_of(PAGE as usize);
    // SAFETY: a shared mapping of the engine's memfd, which is that long; never unmapped by us. It
    // is kept out of fork children: only this agent may answer on this ring.
    unsafe {
        let address = call(syscall::MMAP, [0, length, 3, 1, fd as usize, 0]);
        syscall::close(fd);
        if address < 0 {
            return None;
        }
        call(syscall::MADVISE, [address as usize, length, 10, 0, 0, 0]);
        Some(&*(address as *const Ring))
    }
}

/// For tests: marks the staging halves MADV_DONTFORK.
fn keep_staging_from_children(area: u64) {
    for half in [area + SA, area + SB] {
        let length = u64::from(SLOTS) * PAGE;
        // SAFETY: what lies there is ours; only fork children lack it.
        unsafe { call(syscall::MADVISE, [half as usize, length as usize, 10, 0, 0, 0]) };
    }
}

fn write_nonce(area: u64, welcome: &AgentMessage) {
    // SAFETY: the nonce page is ours and never managed.
    unsafe {
        let page = (area + NONCE) as *mut u64;
        page.write_volatile(welcome[WELCOME_NONCE_LO_AT]);
        page.add(1).write_volatile(welcome[WELCOME_NONCE_HI_AT]);
    }
}

/// Reads the identity page, which blocks until the engine installs it in a child of a managed
/// parent, then drops it, so that a grandchild does not inherit it.
fn read_identity(area: u64) -> u64 {
    // SAFETY: the page is part of our area.
    let identity = unsafe { ((area + IDENTITY) as *const u64).read_volatile() };
    drop_identity(area);
    identity
}

/// Drops the identity and the proofs that follow it.
fn drop_identity(area: u64) {
    // SAFETY: the pages are part of our area; dropping them concerns nobody else.
    unsafe { call(syscall::MADVISE, [(area + IDENTITY) as usize, (NOTICE - IDENTITY) as usize, 4, 0, 0, 0]) };
}

/// A userfaultfd without handshake (the engine does that): by the device if the engine sent it,
/// else by system call.
fn new_userfaultfd(device: i32, more_flags: usize) -> isize {
    let flags = syscall::O_CLOEXEC | syscall::O_NONBLOCK | more_flags;
    // SAFETY: neither call takes a pointer.
    unsafe {
        if device >= 0 {
            let fd = call(syscall::IOCTL, [device as usize, USERFAULTFD_IOC_NEW, flags, 0, 0, 0]);
            if fd >= 0 {
                return fd;
            }
        }
        call(syscall::USERFAULTFD, [flags, 0, 0, 0, 0, 0])
    }
}

/// A userfaultfd for the staging half. It answers missing pages with SIGBUS, so it may be limited
/// to faults of user mode: a program that has given up its rights may still ask for such a one.
fn new_staging_userfaultfd(device: i32) -> isize {
    const USER_MODE_ONLY: usize = 1;
    let fd = new_userfaultfd(device, 0);
    if fd >= 0 { fd } else { new_userfaultfd(-1, USER_MODE_ONLY) }
}

/// Gives up the agent's capabilities: a program that gives up root must not keep a thread with
/// root's capabilities.
fn drop_capabilities() {
    let header = [0x2008_0522u32, 0];
    let none = [0u32; 6];
    // SAFETY: version 3 header and three empty sets of two words each.
    unsafe { call(syscall::CAPSET, [header.as_ptr() as usize, none.as_ptr() as usize, 0, 0, 0, 0]) };
}

fn receive(socket: i32) -> Option<(AgentMessage, [i32; MAX_FDS])> {
    let mut message = [0u64; WORDS];
    let mut control = ControlMessage { length: 0, level: 0, kind: 0, fds: [-1; MAX_FDS] };
    let vector = IoVector { base: message.as_mut_ptr() as usize, length: size_of::<AgentMessage>() };
    let mut header = MessageHeader {
        name: 0,
        name_length: 0,
        vectors: &raw const vector as usize,
        vector_count: 1,
        control: &raw mut control as usize,
        control_length: size_of::<ControlMessage>(),
        flags: 0,
    };
    // MSG_CMSG_CLOEXEC
    // SAFETY: all buffers live on this stack and are as long as said.
    let n = unsafe { call(syscall::RECVMSG, [socket as usize, &raw mut header as usize, 0x4000_0000, 0, 0, 0]) };
    if n != size_of::<AgentMessage>() as isize || message[0] != MAGIC {
        return None;
    }
    let received = control.length.saturating_sub(16) / 4;
    for fd in control.fds.iter_mut().skip(if header.control_length == 0 { 0 } else { received }) {
        *fd = -1;
    }
    Some((message, control.fds))
}

fn send(socket: i32, message: &AgentMessage, sent: [i32; 3]) -> Option<()> {
    let mut fds = [-1; MAX_FDS];
    let there = sent.into_iter().filter(|fd| *fd >= 0);
    let count = fds.iter_mut().zip(there).map(|(place, fd)| *place = fd).count();
    let control = ControlMessage { length: 16 + 4 * count, level: 1, kind: 1, fds };
    let vector = IoVector { base: message.as_ptr() as usize, length: size_of::<AgentMessage>() };
    let header = MessageHeader {
        name: 0,
        name_length: 0,
        vectors: &raw const vector as usize,
        vector_count: 1,
        control: if count == 0 { 0 } else { &raw const control as usize },
        control_length: if count == 0 { 0 } else { (16 + 4 * count).next_multiple_of(8) },
        flags: 0,
    };
    // MSG_NOSIGNAL
    // SAFETY: all buffers live during the call.
    let n = unsafe { call(syscall::SENDMSG, [socket as usize, &raw const header as usize, 0x4000, 0, 0, 0]) };
    (n == size_of::<AgentMessage>() as isize).then_some(())
}
