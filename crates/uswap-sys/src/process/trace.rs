//! ptrace(2) of one thread of another process: seize, stop, inspect, set registers, detach.
//!
//! A traced thread belongs to the thread that seized it: only that thread may call the functions
//! here. If the tracer ends meanwhile, the kernel kills the traced process (PTRACE_O_EXITKILL),
//! from [`Tracee::follow_clones`] on: that process must not run on with registers that are not its
//! own.

use std::io;
use std::time::{Duration, Instant};

use crate::{check, check_int};

/// The registers of a stopped thread (x86-64).
pub type Registers = libc::user_regs_struct;

const EVENT_STOP: i32 = 128;
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
const GET_RSEQ: libc::c_uint = 0x420f;
const GET_DISPATCH: libc::c_uint = 0x4210;
const GET_SIGMASK: libc::c_uint = 0x420a;
const SET_SIGMASK: libc::c_uint = 0x420b;

/// Why a traced thread is stopped, or that it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was asked to stop, or is a new thread.
    Asked,
    /// Its process is stopped by this signal (SIGSTOP, SIGTSTP and so on).
    Group(i32),
    /// This signal is about to be delivered to it.
    Signal(i32),
    /// It enters or leaves a system call.
    Syscall,
    /// It has made a new thread.
    Cloned,
    /// Something else happened to it.
    Other,
    /// It has ended, or executes another program under another thread id.
    Gone,
}

/// A thread that this thread traces. Dropping the value does not detach it: [`Tracee::detach`]
/// does.
#[derive(Debug)]
pub struct Tracee {
    tid: u32,
    leader: bool,
}

impl Tracee {
    /// Begins to trace a thread, which runs on. `leader`: it is the first thread of its process.
    ///
    /// # Errors
    /// EPERM: not permitted, or another process traces it; ESRCH: there is no such thread.
    pub fn seize(tid: u32, leader: bool) -> io::Result<Self> {
        request(libc::PTRACE_SEIZE, tid, 0, 0)?;
        Ok(Self { tid, leader })
    }

    /// A thread that is traced from its start, because its maker was traced ([`Stop::Cloned`]).
    pub fn born(tid: u32) -> Self {
        Self { tid, leader: false }
    }

    /// The thread id.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// Asks the thread to stop.
    ///
    /// # Errors
    /// ESRCH: the thread has ended.
    pub fn interrupt(&self) -> io::Result<()> {
        request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)
    }

    /// Waits for a stop that may take long; `None`: the thread has not stopped within `patience`.
    pub fn wait_for_arrival(&self, patience: Duration) -> Option<Stop> {
        let begun = Instant::now();
        loop {
            match self.look() {
                Ok(Some(stop)) => return Some(stop),
                Err(_) => return Some(Stop::Gone),
                Ok(None) if begun.elapsed() > patience => return None,
                Ok(None) => std::thread::sleep(Duration::from_micros(20)),
            }
        }
    }

    /// Waits for the next stop of the thread, or for its end. The kernel does not report the end of
    /// a first thread before the other traced threads of its process were waited for: so this
    /// function polls for the end instead of waiting in the kernel.
    pub fn wait(&self) -> Stop {
        const PROMPT: Duration = Duration::from_millis(1);
        let begun = Instant::now();
        loop {
            match self.look() {
                Ok(Some(stop)) => return stop,
                Err(_) => return Stop::Gone,
                Ok(None) if begun.elapsed() < PROMPT => std::thread::sleep(Duration::from_micros(5)),
                Ok(None) if self.has_ended() => return Stop::Gone,
                Ok(None) => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    fn has_ended(&self) -> bool {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.tid)).unwrap_or_default();
        text.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
    }

    /// Takes the state change of the thread, if there is one. The end of a process is left to the
    /// process that is to learn its status; other threads that have ended are waited for, since
    /// otherwise the process could not execute another program.
    fn look(&self) -> io::Result<Option<Stop>> {
        let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOHANG | libc::__WALL;
        let info = wait_id(self.tid, flags | libc::WNOWAIT)?;
        // SAFETY: filled in by the kernel, or zero.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        if pid == 0 {
            return Ok(None);
        }
        if !matches!(info.si_code, libc::CLD_TRAPPED | libc::CLD_STOPPED) {
            if !self.leader {
                wait_id(self.tid, flags)?;
            }
            return Ok(Some(Stop::Gone));
        }
        wait_id(self.tid, libc::WSTOPPED | libc::WNOHANG | libc::__WALL)?;
        Ok(Some(match (status >> 8, status & 0xff) {
            (EVENT_STOP, libc::SIGTRAP) => Stop::Asked,
            (EVENT_STOP, signal) => Stop::Group(signal),
            (libc::PTRACE_EVENT_CLONE, _) => Stop::Cloned,
            (0, SYSCALL_STOP) => Stop::Syscall,
            (0, signal) => Stop::Signal(signal),
            _ => Stop::Other,
        }))
    }

    /// Lets the thread run on to its next stop; `signal` is delivered to it (0: none).
    ///
    /// # Errors
    /// ESRCH: it is not stopped.
    pub fn go_on(&self, signal: i32) -> io::Result<()> {
        request(libc::PTRACE_CONT, self.tid, 0, signal as usize)
    }

    /// The same, but the thread stops at the latest when it enters or leaves a system call.
    ///
    /// # Errors
    /// ESRCH: it is not stopped.
    pub fn go_on_to_syscall(&self) -> io::Result<()> {
        request(libc::PTRACE_SYSCALL, self.tid, 0, 0)
    }

    /// From now on stops at system calls can be told from SIGTRAP, and the threads that this thread
    /// makes are traced too.
    ///
    /// # Errors
    /// ESRCH: it is not stopped.
    pub fn follow_clones(&self) -> io::Result<()> {
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
        request(libc::PTRACE_SETOPTIONS, self.tid, 0, options as usize)
    }

    /// From now on stops at system calls can be told from SIGTRAP.
    ///
    /// # Errors
    /// ESRCH: it is not stopped.
    pub fn tell_system_calls(&self) -> io::Result<()> {
        request(libc::PTRACE_SETOPTIONS, self.tid, 0, libc::PTRACE_O_TRACESYSGOOD as usize)
    }

    /// The id of the new thread; only at [`Stop::Cloned`].
    ///
    /// # Errors
    /// ESRCH: it is not stopped.
    pub fn newborn(&self) -> io::Result<u32> {
        let mut number: libc::c_ulong = 0;
        request(libc::PTRACE_GETEVENTMSG, self.tid, 0, &raw mut number as usize)?;
        Ok(number as u32)
    }

    /// The registers of the thread.
    ///
    /// # Errors
    /// ESRCH: it is not stopped.
    pub fn registers(&self) -> io::Result<Registers> {
        // SAFETY: a structure of integers.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        request(libc::PTRACE_GETREGS, self.tid, 0, &raw mut registers as usize)?;
        Ok(registers)
    }

    /// A set of registers in the format of a core file's note of type `kind` (PTRACE_GETREGSET).
    ///
    /// # Errors
    /// ESRCH: the thread is not stopped; EINVAL, ENODEV: the processor has no such registers.
    pub fn register_set(&self, kind: u32) -> io::Result<Vec<u8>> {
        // Larger than every register set of x86-64: AMX tiles take 8 KiB.
        let mut bytes = vec![0u8; 32 << 10];
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        request(libc::PTRACE_GETREGSET, self.tid, kind as usize, &raw mut vector as usize)?;
        bytes.truncate(vector.iov_len);
        Ok(bytes)
    }

    /// Sets the registers.
    ///
    /// # Errors
    /// ESRCH: it is not stopped.
    pub fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        request(libc::PTRACE_SETREGS, self.tid, 0, std::ptr::from_ref(registers) as usize)
    }

    /// The signals that the thread blocks, one bit each.
    ///
    /// # Errors
    /// ESRCH: it is not stopped.
    pub fn signal_mask(&self) -> io::Result<u64> {
        let mut mask = 0u64;
        request(GET_SIGMASK, self.tid, 8, &raw mut mask as usize)?;
        Ok(mask)
    }

    /// Sets the signals that the thread blocks.
    ///
    /// # Errors
    /// ESRCH: it is not stopped.
    pub fn set_signal_mask(&self, mask: u64) -> io::Result<()> {
        request(SET_SIGMASK, self.tid, 8, &raw const mask as usize)
    }

    /// Address of the thread's `struct rseq`; `None`: it has registered none.
    pub fn restartable_sequences(&self) -> Option<u64> {
        // struct ptrace_rseq_configuration: pointer, size, signature, flags, padding.
        let mut configuration = [0u64; 3];
        let size = size_of_val(&configuration);
        let asked = ask(GET_RSEQ, self.tid, size, configuration.as_mut_ptr() as usize);
        (asked.is_ok() && configuration[0] != 0).then_some(configuration[0])
    }

    /// Whether the kernel turns the thread's system calls into signals
    /// (PR_SET_SYSCALL_USER_DISPATCH).
    pub fn dispatches_syscalls(&self) -> bool {
        let mut configuration = [0u64; 4];
        let size = size_of_val(&configuration);
        let asked = ask(GET_DISPATCH, self.tid, size, configuration.as_mut_ptr() as usize);
        asked.is_ok() && configuration[0] != 0
    }

    /// Ends tracing; the thread runs on. A thread that has ended is no longer traced anyway.
    ///
    /// # Errors
    /// ESRCH: it is not stopped, or has ended.
    pub fn detach(&self) -> io::Result<()> {
        self.detach_with(0)
    }

    /// The same from a stop at a signal, which is delivered to the thread.
    ///
    /// # Errors
    /// ESRCH: it is not stopped, or has ended.
    pub fn detach_with(&self, signal: i32) -> io::Result<()> {
        request(libc::PTRACE_DETACH, self.tid, 0, signal as usize)
    }
}

/// Writes into another process's memory with the access rights of that process. Returns the number
/// of bytes written.
///
/// # Errors
/// ESRCH, EPERM; EFAULT: not even the first byte could be written.
pub fn write_memory(pid: u32, address: u64, bytes: &[u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the local bytes are only read; the remote side is checked by the kernel.
    let n = unsafe { libc::process_vm_writev(pid as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0) };
    check(n as libc::c_long).map(|n| n as usize)
}

/// Whether two processes share one address space (kcmp(2), KCMP_VM).
///
/// # Errors
/// ENOSYS: the kernel was built without it; EPERM; ESRCH.
pub fn share_memory(one: u32, other: u32) -> io::Result<bool> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) }).map(|order| order == 0)
}

/// Address of a thread's list of robust futexes (0: it has none).
///
/// # Errors
/// ESRCH, EPERM.
pub fn robust_list(tid: u32) -> io::Result<u64> {
    let (mut head, mut length) = (0u64, 0usize);
    // SAFETY: two words of ours.
    check(unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut length) })?;
    Ok(head)
}

fn request(request: libc::c_uint, tid: u32, address: usize, data: usize) -> io::Result<()> {
    ask(request, tid, address, data).map(drop)
}

fn ask(request: libc::c_uint, tid: u32, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: what `data` points to is as large as the request says; the raw call has no result by
    // pointer.
    check(unsafe { libc::syscall(libc::SYS_ptrace, request, tid, address, data) })
}

fn wait_id(tid: u32, flags: libc::c_int) -> io::Result<libc::siginfo_t> {
    // SAFETY: a plain structure for which zero means "nothing".
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is ours.
    check_int(unsafe { libc::waitid(libc::P_PID, tid, &raw mut info, flags) })?;
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    /// A busy child is stopped, inspected, left unchanged, and runs on to its end.
    #[test]
    fn a_stopped_thread_goes_on_as_if_nothing_had_been() {
        let count = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let mut child = std::process::Command::new("sh").args(["-c", count]).spawn().expect("a shell");
        let tracee = Tracee::seize(child.id(), true).expect("our own child");
        tracee.interrupt().expect("alive");
        assert_eq!(tracee.wait_for_arrival(Duration::from_secs(5)), Some(Stop::Asked));
        let registers = tracee.registers().expect("stopped");
        let general = tracee.register_set(1).expect("stopped");
        assert_eq!(general.len(), size_of::<Registers>());
        assert_eq!(general[16 * 8..17 * 8], registers.rip.to_ne_bytes());
        assert!(tracee.register_set(0xffff).is_err(), "no such registers");
        let mask = tracee.signal_mask().expect("stopped");
        tracee.set_signal_mask(u64::MAX).expect("stopped");
        tracee.set_signal_mask(mask).expect("stopped");
        tracee.set_registers(&registers).expect("stopped");
        assert!(!tracee.dispatches_syscalls());
        assert!(!share_memory(child.id(), process::this_thread()).expect("kcmp"));
        tracee.detach().expect("stopped");
        assert!(child.wait().expect("its end").success());
    }
}
