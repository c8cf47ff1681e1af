//! Raw system calls (x86-64) and the few structures they need.

use core::arch::asm;
use core::sync::atomic::AtomicU32;

pub const READ: usize = 0;
pub const CLOSE: usize = 3;
pub const POLL: usize = 7;
pub const LSEEK: usize = 8;
pub const MMAP: usize = 9;
pub const MPROTECT: usize = 10;
pub const RT_SIGACTION: usize = 13;
pub const RT_SIGPROCMASK: usize = 14;
pub const IOCTL: usize = 16;
pub const SCHED_YIELD: usize = 24;
pub const MREMAP: usize = 25;
pub const MADVISE: usize = 28;
pub const SHMAT: usize = 30;
pub const SHMCTL: usize = 31;
pub const NANOSLEEP: usize = 35;
pub const MUNLOCKALL: usize = 152;
pub const MLOCKALL: usize = 151;
pub const MSYNC: usize = 26;
pub const MLOCK2: usize = 325;
pub const SCHED_SETATTR: usize = 314;
pub const SCHED_GETATTR: usize = 315;
pub const GETPID: usize = 39;
pub const WAIT4: usize = 61;
pub const SETPGID: usize = 109;
pub const STAT: usize = 4;
pub const PIDFD_SEND_SIGNAL: usize = 424;
pub const PIDFD_OPEN: usize = 434;
pub const SOCKET: usize = 41;
pub const CONNECT: usize = 42;
pub const RECVFROM: usize = 45;
pub const SENDMSG: usize = 46;
pub const SOCKETPAIR: usize = 53;
pub const RECVMSG: usize = 47;
pub const SETSOCKOPT: usize = 54;
pub const EXIT: usize = 60;
pub const KILL: usize = 62;
pub const WRITE: usize = 1;
pub const CAPSET: usize = 126;
pub const SETPRIORITY: usize = 141;
pub const PRCTL: usize = 157;
pub const GETTID: usize = 186;
pub const GETDENTS64: usize = 217;
pub const OPENAT: usize = 257;
pub const GET_ROBUST_LIST: usize = 274;
pub const FUTEX: usize = 202;
pub const USERFAULTFD: usize = 323;
pub const EXIT_GROUP: usize = 231;
pub const CLOSE_RANGE: usize = 436;

pub const O_CLOEXEC: usize = 0o2000000;
pub const O_NONBLOCK: usize = 0o4000;
pub const O_DIRECTORY: usize = 0o200000;

pub const EPERM: isize = 1;
pub const EINTR: isize = 4;
pub const EAGAIN: isize = 11;
pub const ENOMEM: isize = 12;
pub const EBUSY: isize = 16;
pub const EEXIST: isize = 17;
pub const EINVAL: isize = 22;
pub const EFAULT: isize = 14;
pub const ENOENT: isize = 2;

/// Results of [`wait_while_zero`] after which it may be called again.
pub const INTERRUPTED: isize = -EINTR;
pub const CHANGED: isize = -EAGAIN;
pub const TIMED_OUT: isize = -110;

/// One system call with up to six arguments; the raw result (negative errno on failure).
///
/// # Safety
/// The arguments must be valid for the call: pointers live and large enough, ranges ours.
pub unsafe fn call(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller answers for the arguments; the kernel clobbers rcx and r11 only.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Whether valgrind executes this program: valgrind does not support a process that shares memory,
/// and finds no code behind a page that is evicted. Source: valgrind.h, RUNNING_ON_VALGRIND: a
/// sequence without effect that only valgrind sees, whose answer comes in rdx.
pub fn is_emulated() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let question = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let answer: u64;
    // SAFETY: elsewhere the rotations are a whole turn and the exchange changes nothing.
    unsafe {
        asm!("rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") question.as_ptr(), inlateout("rdx") 0u64 => answer, inout("rdi") 0u64 => _);
    }
    answer != 0
}

/// Ends the program that is behind a pidfd, and this process.
pub fn kill_program(pidfd: i32) -> ! {
    // SAFETY: no pointers: no further information goes with the signal.
    unsafe { call(PIDFD_SEND_SIGNAL, [pidfd as usize, 9, 0, 0, 0, 0]) };
    exit_thread()
}

/// Ends the whole process: it must not go on without its engine.
pub fn kill_process() -> ! {
    // SAFETY: getpid, kill and exit take no pointers.
    unsafe {
        let pid = call(GETPID, [0; 6]);
        call(KILL, [pid as usize, 9, 0, 0, 0, 0]);
        // A signal from inside does not kill the first process of a pid namespace.
        call(EXIT_GROUP, [128 + 9, 0, 0, 0, 0, 0]);
    }
    exit_thread()
}

/// Ends this thread and nothing else.
pub fn exit_thread() -> ! {
    loop {
        // SAFETY: exit takes no pointers; nothing of this thread is used by others.
        unsafe { call(EXIT, [0; 6]) };
    }
}

/// `close`.
pub fn close(fd: i32) {
    // SAFETY: the fd belongs to the agent's own table.
    unsafe { call(CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Sleeps for this time.
pub fn sleep(microseconds: u32) {
    if microseconds != 0 {
        let time = [u64::from(microseconds / 1_000_000), u64::from(microseconds % 1_000_000) * 1000];
        // SAFETY: a timespec of two words.
        unsafe { call(NANOSLEEP, [time.as_ptr() as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Sleeps while the word is zero, for at most `nanoseconds`; returns the raw result (futex(2)).
pub fn wait_while_zero(word: &AtomicU32, nanoseconds: u64) -> isize {
    const WAIT_PRIVATE: usize = 128;
    let time = [0, nanoseconds];
    // SAFETY: the word and a timespec of two words live during the call.
    unsafe { call(FUTEX, [word.as_ptr() as usize, WAIT_PRIVATE, 0, time.as_ptr() as usize, 0, 0]) }
}

/// Wakes all threads that sleep on the word.
pub fn wake_all(word: &AtomicU32) {
    const WAKE_PRIVATE: usize = 129;
    // SAFETY: the word lives during the call.
    unsafe { call(FUTEX, [word.as_ptr() as usize, WAKE_PRIVATE, i32::MAX as usize, 0, 0, 0]) };
}

/// Lets another thread run.
pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { call(SCHED_YIELD, [0; 6]) };
}

/// `open` of a NUL-terminated path, read-only and close-on-exec.
pub fn open(path: &[u8], flags: usize) -> isize {
    const AT_FDCWD: i32 = -100;
    open_at(AT_FDCWD, path, flags)
}

/// The same from a directory.
pub fn open_at(directory: i32, path: &[u8], flags: usize) -> isize {
    debug_assert!(path.last() == Some(&0));
    // SAFETY: the path is NUL-terminated and lives during the call.
    unsafe { call(OPENAT, [directory as usize, path.as_ptr() as usize, flags | O_CLOEXEC, 0, 0, 0]) }
}

/// The number of a file (struct stat: the word at 8); `None` if it is not there.
pub fn inode(path: &[u8]) -> Option<u64> {
    debug_assert!(path.last() == Some(&0));
    let mut status = [0u64; 18];
    // SAFETY: the path is NUL-terminated; struct stat has 144 bytes.
    let result = unsafe { call(STAT, [path.as_ptr() as usize, status.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    (result == 0).then_some(status[1])
}

/// `read` into a buffer of ours.
pub fn read(fd: i32, buffer: &mut [u8]) -> isize {
    // SAFETY: the buffer is as long as said.
    unsafe { call(READ, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
}

/// Whether the other end of a socket is gone. Reads and discards what was sent before, because the
/// end of a socket shows only behind that.
pub fn is_hung_up(socket: i32) -> bool {
    let mut bytes = [0u8; 64];
    loop {
        // MSG_DONTWAIT
        // SAFETY: the buffer is as long as said, and no address is asked for.
        let n = unsafe { call(RECVFROM, [socket as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0x40, 0, 0]) };
        if n <= 0 {
            return n == 0;
        }
    }
}

/// Gives this thread another niceness; a lower one needs a privilege and is refused without it.
pub fn hurry(niceness: isize) {
    // SAFETY: no pointers; PRIO_PROCESS and 0 mean this thread.
    unsafe { call(SETPRIORITY, [0, 0, niceness as usize, 0, 0, 0]) };
}

/// Asks the scheduler for short time slices (nanoseconds), so that the agent's wake-up does not
/// wait for the end of the program's slice. Kernels before 6.12 do not know it. Source:
/// sched_setattr(2), version 0 of the structure.
pub fn set_turn(nanoseconds: u64) {
    const RUNTIME_AT: usize = 3;
    let mut attributes = [0u64; 6];
    // SAFETY: both calls get a structure of 48 bytes, as the first is told; 0 means this thread.
    unsafe {
        let address = attributes.as_mut_ptr() as usize;
        if call(SCHED_GETATTR, [0, address, size_of_val(&attributes), 0, 0, 0]) == 0 {
            attributes[RUNTIME_AT] = nanoseconds;
            call(SCHED_SETATTR, [0, attributes.as_ptr() as usize, 0, 0, 0, 0]);
        }
    }
}

/// Names this thread; the kernel takes 15 bytes.
pub fn name_thread(name: &core::ffi::CStr) {
    // SAFETY: PR_SET_NAME with a NUL-terminated name.
    unsafe { call(PRCTL, [15, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// `ioctl` with a pointer to a structure of ours.
///
/// # Safety
/// `argument` must be the structure that `request` expects.
pub unsafe fn ioctl<T>(fd: i32, request: usize, argument: &mut T) -> isize {
    // SAFETY: the caller matched structure and request.
    unsafe { call(IOCTL, [fd as usize, request, argument as *mut T as usize, 0, 0, 0]) }
}
