//! Processes: the clone that shares the fd table, waiting, subreapers, pidfds, priorities.

pub mod affinity;
pub mod interrupt;
pub mod kill_on_close;
pub mod signal;
pub mod thread;
pub mod trace;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::{check, check_int};

/// Whether an error from /proc means that the process has ended.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

/// The side of a fork on which the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// This is the child.
    Child,
    /// This is the parent of the child with this process id.
    Parent(u32),
}

/// How the state of a child has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildChange {
    /// It ended with this status.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
    /// A signal stopped it.
    Stopped(i32),
    /// It was continued.
    Continued,
}

/// Forks a child that shares this process's fd table: a descriptor opened by one is open in both,
/// and stays open while either lives. Memory is copied as by fork.
///
/// # Errors
/// EAGAIN, ENOMEM.
///
/// # Panics
/// When the process has more than one thread: the child would have locks that no thread unlocks.
pub fn fork_sharing_fds() -> io::Result<Fork> {
    assert_single_threaded();
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: single-threaded, so the child's copy of memory is consistent; no stack is given, so
    // it goes on here.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
    Ok(if pid == 0 { Fork::Child } else { Fork::Parent(pid as u32) })
}

/// Gives this process its own table of descriptors with those that are open now (for tests of the
/// shared table).
///
/// # Errors
/// ENOMEM, EMFILE.
pub fn unshare_descriptors() -> io::Result<()> {
    // SAFETY: no pointers.
    check_int(unsafe { libc::unshare(libc::CLONE_FILES) }).map(drop)
}

/// Forks an ordinary child.
///
/// # Errors
/// EAGAIN, ENOMEM.
///
/// # Panics
/// As [`fork_sharing_fds`].
pub fn fork() -> io::Result<Fork> {
    assert_single_threaded();
    // SAFETY: single-threaded.
    let pid = check_int(unsafe { libc::fork() })?;
    Ok(if pid == 0 { Fork::Child } else { Fork::Parent(pid as u32) })
}

fn assert_single_threaded() {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    assert!(threads == 1, "fork with {threads} threads");
}

/// Leaves the terminal by starting a new session.
pub fn leave_session() {
    // SAFETY: no pointers. It fails for the leader of a process group, which a fork child is not.
    unsafe { libc::setsid() };
}

/// Writes a byte that tells the process at the other end of `ready` that all is well, then
/// redirects the standard streams to /dev/null.
pub fn report_and_fall_silent(ready: &OwnedFd) {
    let Ok(nowhere) = std::fs::File::options().read(true).write(true).open("/dev/null") else { return };
    // SAFETY: one byte of ours; descriptors that are ours.
    unsafe {
        libc::write(ready.as_raw_fd(), b"k".as_ptr().cast(), 1);
        for stream in 0..3 {
            libc::dup2(nowhere.as_raw_fd(), stream);
        }
    }
}

/// Replaces this process by the program; returns only on failure.
pub fn exec(program: &CString, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: NULL-terminated vectors of C strings that live during the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends this process without running destructors or flushing.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: always allowed.
    unsafe { libc::_exit(status) }
}

/// Takes a state change of one child (`None`: of any child) without waiting. `Ok(None)`: nothing
/// has changed.
///
/// # Errors
/// ECHILD: there are no children.
pub fn wait_news(pid: Option<u32>) -> io::Result<Option<(u32, ChildChange)>> {
    let mut status = 0;
    let which = pid.map_or(-1, |pid| pid as libc::pid_t);
    let flags = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
    // SAFETY: the status is ours.
    let pid = check_int(unsafe { libc::waitpid(which, &raw mut status, flags) })?;
    if pid == 0 {
        return Ok(None);
    }
    let change = if libc::WIFEXITED(status) {
        ChildChange::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        ChildChange::Killed(libc::WTERMSIG(status))
    } else if libc::WIFSTOPPED(status) {
        ChildChange::Stopped(libc::WSTOPSIG(status))
    } else {
        ChildChange::Continued
    };
    Ok(Some((pid as u32, change)))
}

/// Whether this process has children in any state, orphans that became its children included.
pub fn has_children() -> bool {
    let flags = libc::WNOHANG | libc::WNOWAIT | libc::WEXITED | libc::__WALL;
    // SAFETY: no siginfo_t is asked for.
    let result = check_int(unsafe { libc::waitid(libc::P_ALL, 0, std::ptr::null_mut(), flags) });
    !result.is_err_and(|error| error.raw_os_error() == Some(libc::ECHILD))
}

/// Number of processors that this process may use, as found by the first call: finding out reads
/// files of the cgroup.
pub fn processors() -> usize {
    static PROCESSORS: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Sends a signal.
///
/// # Errors
/// ESRCH, EPERM.
pub fn kill(pid: u32, signal: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    check_int(unsafe { libc::kill(pid as libc::pid_t, signal) }).map(drop)
}

/// Makes orphaned descendants children of this process (PR_SET_CHILD_SUBREAPER).
///
/// # Errors
/// None on Linux since 3.4.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: no pointers.
    check_int(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// Sets the name of this process that ps and top show.
pub fn set_name(name: &std::ffi::CStr) {
    // SAFETY: a C string; the kernel takes 15 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// The parent's process id.
pub fn parent() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::getppid() as u32 }
}

/// The effective user id.
pub fn user() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() }
}

/// A descriptor that becomes readable when the process has ended.
///
/// # Errors
/// ESRCH.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) })?;
    // SAFETY: a new fd that nobody else owns (pidfds are close-on-exec).
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Sends a signal to the process behind a pidfd.
///
/// # Errors
/// ESRCH: it has ended; EPERM.
pub fn send_signal(pidfd: &OwnedFd, signal: i32) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor lives, and no further information goes with the signal.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, 0) }).map(drop)
}

/// A copy of a descriptor of another thread (which may have its own table), with the permission
/// rules of ptrace.
///
/// # Errors
/// EPERM, ESRCH, EBADF; EINVAL before Linux 6.9.
pub fn descriptor_of_thread(tid: u32, fd: RawFd) -> io::Result<OwnedFd> {
    const PIDFD_THREAD: libc::c_int = libc::O_EXCL;
    // SAFETY: no pointers.
    let pidfd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, tid as libc::pid_t, PIDFD_THREAD) })?;
    // SAFETY: a new fd that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as RawFd) };
    // SAFETY: no pointers.
    let copy = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) })?;
    // SAFETY: as above (close-on-exec).
    Ok(unsafe { OwnedFd::from_raw_fd(copy as RawFd) })
}

/// Processor time that all threads of a process have used, including those that have ended. Source:
/// `CPUCLOCK_SCHED` of a process, as clock_getcpuclockid(3) makes it.
///
/// # Errors
/// EINVAL: no such process.
pub fn processor_time(pid: u32) -> io::Result<std::time::Duration> {
    clock(!(pid as libc::clockid_t) << 3 | 2)
}

/// Processor time of one thread.
///
/// # Errors
/// EINVAL: no such thread.
pub fn processor_time_of_thread(tid: u32) -> io::Result<std::time::Duration> {
    clock(!(tid as libc::clockid_t) << 3 | 6)
}

fn clock(clock: libc::clockid_t) -> io::Result<std::time::Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid structure to be written.
    check_int(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    Ok(std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Raises the soft limit of open files to the hard limit: each process of a tree needs three
/// descriptors. Returns the previous limits.
pub fn raise_open_files() -> Option<ResourceLimit> {
    let before = limit(libc::RLIMIT_NOFILE)?;
    let raised = libc::rlimit { rlim_cur: before.hard, rlim_max: before.hard };
    // SAFETY: a valid structure.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
    Some(before)
}

/// Makes the table of descriptors large enough for `count` of them, or for as many as the limit
/// allows. To be called before the table is shared: to grow a shared table, the kernel waits until
/// no processor can read the old one any more (`expand_files` in fs/file.c, 8 to 17 ms seen), and
/// every thread that opens a file meanwhile waits too.
pub fn reserve_descriptors(count: u64) {
    let most = limit(libc::RLIMIT_NOFILE).map_or(0, |limit| limit.soft.min(count)) as libc::c_int;
    // SAFETY: no pointers. Standard error is only copied; if there is none nothing happens.
    let last = unsafe { libc::fcntl(2, libc::F_DUPFD_CLOEXEC, most - 1) };
    if last >= 0 {
        // SAFETY: the copy was made here and is known to nobody else.
        drop(unsafe { OwnedFd::from_raw_fd(last) });
    }
}

/// A resource limit.
#[derive(Clone, Copy, Debug)]
pub struct ResourceLimit {
    /// The limit in force.
    pub soft: u64,
    /// The value to which the soft limit may be raised.
    pub hard: u64,
}

/// RLIMIT_NOFILE of this process.
pub fn open_files_limit() -> Option<ResourceLimit> {
    limit(libc::RLIMIT_NOFILE)
}

/// RLIMIT_MEMLOCK of this process; `u64::MAX` is no limit.
pub fn locked_memory_limit() -> Option<ResourceLimit> {
    limit(libc::RLIMIT_MEMLOCK)
}

/// RLIMIT_FSIZE of this process; `u64::MAX` is no limit.
pub fn file_size_limit() -> Option<ResourceLimit> {
    limit(libc::RLIMIT_FSIZE)
}

fn limit(which: libc::__rlimit_resource_t) -> Option<ResourceLimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid structure.
    let result = unsafe { libc::getrlimit(which, &raw mut limit) };
    (result == 0).then_some(ResourceLimit { soft: limit.rlim_cur, hard: limit.rlim_max })
}

/// Restores the limit of open files (in the child that becomes the user's command).
pub fn restore_open_files(before: ResourceLimit) {
    let limit = libc::rlimit { rlim_cur: before.soft, rlim_max: before.hard };
    // SAFETY: a valid structure.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
}

/// Sets the niceness of a thread (0: this one); `false` where that is not permitted, or the thread
/// is gone.
pub fn set_niceness_of(thread: u32, niceness: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, niceness) == 0 }
}

/// Whether this process may give its threads this niceness (CAP_SYS_NICE, or RLIMIT_NICE). The
/// function tries it on this thread and then restores the thread's own niceness.
pub fn may_take_niceness(niceness: i32) -> bool {
    let Some(before) = niceness_of(0) else { return false };
    set_niceness_of(0, niceness) && set_niceness_of(0, before)
}

/// Asks for short time slices on the processor (in nanoseconds, at least 100 µs), for this thread
/// and those that it starts: a thread that wakes up with a shorter time slice than the running
/// thread preempts it at once. This needs no privilege; kernels before 6.12 ignore it without an
/// error. Source: sched_setattr(2), `sched_runtime` of an ordinary thread.
pub fn set_turn(nanoseconds: u64) -> bool {
    scheduling_of(0).is_some_and(|now| set_scheduling(0, &SchedulingAttributes { runtime: nanoseconds, ..now }))
}

/// From now on this thread runs only on processors that no other thread wants (SCHED_IDLE).
pub fn run_last() -> bool {
    let idle = libc::SCHED_IDLE as u32;
    set_scheduling(0, &SchedulingAttributes { policy: idle, ..SchedulingAttributes::default() })
}

/// Gives `thread` (0: this one) the ordinary policy with this niceness and time slices of `turn`
/// nanoseconds; `false` where that is not permitted.
pub fn run_ordinarily(thread: u32, niceness: i32, turn: u64) -> bool {
    let ordinary = libc::SCHED_OTHER as u32;
    let attributes =
        SchedulingAttributes { policy: ordinary, nice: niceness, runtime: turn, ..SchedulingAttributes::default() };
    set_scheduling(thread, &attributes)
}

/// The scheduling policy of a thread (0: this one), as the kernel's number.
pub fn policy_of(thread: u32) -> Option<u32> {
    scheduling_of(thread).map(|attributes| attributes.policy)
}

/// The niceness of a thread (0: this one).
pub fn niceness_of(thread: u32) -> Option<i32> {
    scheduling_of(thread).map(|attributes| attributes.nice)
}

fn scheduling_of(thread: u32) -> Option<SchedulingAttributes> {
    let mut attributes = SchedulingAttributes::default();
    let size = size_of::<SchedulingAttributes>();
    // SAFETY: the kernel writes as much as it is told.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, size, 0) };
    (got == 0).then_some(attributes)
}

fn set_scheduling(thread: u32, attributes: &SchedulingAttributes) -> bool {
    let whole = SchedulingAttributes { size: size_of::<SchedulingAttributes>() as u32, ..*attributes };
    // SAFETY: a structure that says its own size.
    unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const whole, 0) == 0 }
}

/// The id of the calling thread.
pub fn this_thread() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() as u32 }
}

/// `struct sched_attr`, version 0.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Lets this thread run before all ordinary threads (SCHED_RR, lowest rank, not inherited by
/// children); `false` where that is not permitted. Only for threads that run for microseconds at a
/// time.
pub fn run_first() -> bool {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure lives for the call; 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const parameter) == 0 }
}

/// The scheduling of a thread before its priority boost.
#[derive(Clone, Copy)]
pub struct Scheduling(SchedulingAttributes);

/// Lets another thread run before all ordinary threads, until [`put_back`]; `None` where it is no
/// ordinary thread or that is not permitted. Threads that it makes meanwhile are ordinary.
pub fn hurry_thread(thread: u32) -> Option<Scheduling> {
    const RESET_ON_FORK: u64 = 1;
    let before = scheduling_of(thread).filter(|now| now.policy == libc::SCHED_OTHER as u32)?;
    let (policy, priority, flags) = (libc::SCHED_RR as u32, 1, RESET_ON_FORK);
    let first = SchedulingAttributes { policy, priority, flags, ..SchedulingAttributes::default() };
    set_scheduling(thread, &first).then_some(Scheduling(before))
}

/// Restores the scheduling of a thread.
pub fn put_back(thread: u32, before: &Scheduling) {
    // For a thread that has ended there is nothing to do.
    set_scheduling(thread, &before.0);
}

/// Keeps the pages of this process in RAM, also those mapped later, each from its first touch on
/// (MCL_ONFAULT). Memory that is only reserved stays untouched.
///
/// # Errors
/// EPERM: RLIMIT_MEMLOCK is not unlimited and CAP_IPC_LOCK is missing. The memory is not locked
/// then: reaching the limit later would make mmap fail.
pub fn lock_memory() -> io::Result<()> {
    const CAP_IPC_LOCK: u32 = 14;
    if !has_capability(CAP_IPC_LOCK) && !raise_locked_memory() {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // SAFETY: no pointers.
    check_int(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) }).map(drop)
}

/// Undoes [`lock_memory`].
pub fn unlock_memory() {
    // SAFETY: no pointers.
    unsafe { libc::munlockall() };
}

/// Removes the soft limit of locked memory if the hard limit is unlimited.
fn raise_locked_memory() -> bool {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let hard = locked_memory_limit().map_or(0, |limit| limit.hard);
    // SAFETY: a valid structure.
    hard == libc::RLIM_INFINITY && unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) } == 0
}

/// Whether the effective set contains the capability of this number.
fn has_capability(number: u32) -> bool {
    let version_3 = [0x2008_0522u32, 0];
    let mut sets = [0u32; 6];
    // SAFETY: the header of version 3 and its two times three words.
    let result = unsafe { libc::syscall(libc::SYS_capget, version_3.as_ptr(), sets.as_mut_ptr()) };
    result == 0 && sets[0] >> number & 1 == 1
}

/// The value that the kernel's OOM killer reads for this process.
const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";

/// Makes the kernel's OOM killer choose this process later than before (-1000: never, 1000: first);
/// returns the previous value. Children inherit the value.
///
/// # Errors
/// EACCES: CAP_SYS_RESOURCE is missing, without which the value can only fall to the one last set
/// with that capability, mostly 0.
pub fn lower_oom_score_adj(to: i32) -> io::Result<i32> {
    let text = std::fs::read_to_string(OOM_SCORE_ADJ)?;
    let before = text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    if before > to {
        let set = |value: i32| std::fs::write(OOM_SCORE_ADJ, value.to_string());
        set(to).or_else(|error| if before > 0 { set(0) } else { Err(error) })?;
    }
    Ok(before)
}

/// Restores the previous value.
///
/// # Errors
/// None if that value is higher than the current one.
pub fn restore_oom_score_adj(before: i32) -> io::Result<()> {
    std::fs::write(OOM_SCORE_ADJ, before.to_string())
}

/// Makes the C allocator always return large blocks to the system at once: the allocator no longer
/// adjusts the threshold to the blocks that were freed.
pub fn fix_mmap_threshold(bytes: i32) {
    // SAFETY: no pointers.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, bytes) };
}

/// Eight random bytes.
///
/// # Errors
/// None on Linux since 5.6.
pub fn random_word() -> io::Result<u64> {
    let mut word = 0u64;
    // SAFETY: eight bytes.
    check(unsafe { libc::getrandom((&raw mut word).cast(), 8, 0) } as libc::c_long)?;
    Ok(word)
}

/// $TMPDIR; an empty value counts as not set.
pub fn temporary_folder() -> Option<std::path::PathBuf> {
    std::env::var_os("TMPDIR").filter(|path| !path.is_empty()).map(Into::into)
}
