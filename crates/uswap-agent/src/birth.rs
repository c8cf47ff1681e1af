//! How the agent is started.
//!
//! It is a process of its own that shares the program's memory (clone with CLONE_VM, without
//! CLONE_THREAD): the program sees no further thread. The program may leave its user namespace, may
//! be stopped, traced or put under a seccomp filter, and the agent goes on. Its exit signal is 0,
//! and a short-lived process in between clones it, so that its parent is not the program but the
//! nearest reaper, which is the engine. Its process group is its own: signals to the program's
//! group and from the terminal do not reach it. (A session of its own would be scheduled as a group
//! of its own, beside the engine's.) CLONE_UNTRACED hides it from a tracer of the program.
//!
//! It is a thread of the program where a process would be worse: where the engine injects it (one
//! system call of a stopped thread makes it); where children of the program are born into another
//! pid namespace, whose first process the agent would become; and in the first process of a pid
//! namespace, which no other process inside can end, although it must not go on without engine and
//! keeper. A program that is its own reaper has the agent as a child that only `__WALL` shows.

use core::arch::global_asm;
use core::sync::atomic::Ordering::SeqCst;

use crate::layout::{HEADER, PAGE, STACK_TOP};
use crate::start::{answered, wait_for_answer, was_brought};
use crate::syscall::{self, call};

/// For tests: with an S in the place of its first letter the agent is made with CLONE_FS.
#[used]
static FOLDER: [u8; 24] = *b"uswap:folder-is-shared:n";
/// For tests: with an S in the place of its first letter the agent is a thread.
#[used]
static THREAD: [u8; 24] = *b"uswap:agent-is-thread:no";

/// Flags in the argument of the agent: it is a fork child's; the program waits for it; it is the
/// process in between; the agent is a process, and the second argument, `program`, names its
/// program.
pub const INHERITED: u64 = 1;
pub const WAITED_FOR: u64 = 2;
const BETWEEN: u64 = 4;
const PROCESS: u64 = 8;
const FLAGS: u64 = INHERITED | WAITED_FOR | BETWEEN | PROCESS;

/// Niceness of the agent, where it is allowed: its work frees memory, and it sleeps otherwise.
const NICENESS: isize = -10;
/// How long it runs at a time, in nanoseconds.
const TURN: u64 = 100_000;

const CLONE_VM: usize = 0x100;
const CLONE_FS: usize = 0x200;
const CLONE_FILES: usize = 0x400;
const CLONE_SIGHAND: usize = 0x800;
const CLONE_VFORK: usize = 0x4000;
const CLONE_THREAD: usize = 0x1_0000;
const CLONE_UNTRACED: usize = 0x80_0000;
/// Without CLONE_FILES (fds of its own), CLONE_FS (setns keeps working) and CLONE_SYSVSEM.
const THREAD_FLAGS: usize = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD;
/// The same for a process; no signal announces its end.
const PROCESS_FLAGS: usize = CLONE_VM | CLONE_UNTRACED;
/// The program's thread sleeps until the process in between has ended; it copies nothing.
const BETWEEN_FLAGS: usize = PROCESS_FLAGS | CLONE_VFORK | CLONE_FILES | CLONE_FS | CLONE_SIGHAND;

/// Offset where the stack of the process in between begins: far below the agent's.
const BETWEEN_TOP: u64 = HEADER + 8 * PAGE;

const PR_GET_CHILD_SUBREAPER: usize = 37;
/// wait4(2): waits for a child whatever its exit signal.
const WALL: usize = 0x4000_0000;
const SIGCHLD: usize = 17;

global_asm!(
    // long uswap_clone(flags, stack_top): the child pops its argument and never returns.
    ".hidden uswap_clone",
    ".globl uswap_clone",
    "uswap_clone:",
    "mov eax, 56",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "syscall",
    "test rax, rax",
    "jnz 2f",
    "xor ebp, ebp",
    "pop rdi",
    "pop rsi",
    "call {main}",
    "ud2",
    "2: ret",
    // Entry point of a thread that the engine has made in a program: rdi the area (lowest bit: it
    // was inherited), rsi a socket; rsp on top of the area's stack.
    ".hidden uswap_entry",
    ".globl uswap_entry",
    "uswap_entry:",
    "xor ebp, ebp",
    "call {brought}",
    "ud2",
    main = sym agent_main,
    brought = sym brought_main,
);

unsafe extern "C" {
    fn uswap_clone(flags: usize, stack_top: u64) -> isize;
}

/// Starts the agent on the stack in the area, and waits for the engine's answer if `flags` say so.
/// After a fork the stack of the parent's agent lies there, abandoned. Signals are blocked
/// meanwhile, so that the agent begins with all of them blocked.
///
/// The process in between does the waiting, and the kernel waits for its end as after vfork: if the
/// program's thread itself slept, others would see it asleep before fork returns.
pub fn start(area: u64, flags: u64) {
    let everything = u64::MAX;
    let mut before = 0u64;
    // SAFETY: two words of ours.
    unsafe { call(syscall::RT_SIGPROCMASK, [0, &raw const everything as usize, &raw mut before as usize, 8, 0, 0]) };
    // SAFETY: no pointers.
    let program = unsafe { call(syscall::GETPID, [0; 6]) } as u64;
    let has_waited = if program == 1 || is_set(&raw const THREAD) || is_elsewhere() {
        born(area + STACK_TOP, THREAD_FLAGS | folder(), area | flags, 0);
        false
    } else {
        start_process(area, flags | PROCESS, program)
    };
    // SAFETY: as above.
    unsafe { call(syscall::RT_SIGPROCMASK, [2, &raw const before as usize, 0, 8, 0, 0]) };
    if flags & WAITED_FOR != 0 && !has_waited {
        wait_for_answer(area);
    }
}

/// `false`: it did not wait for the answer, if there is one to wait for.
fn start_process(area: u64, flags: u64, program: u64) -> bool {
    if is_own_reaper() {
        born(area + STACK_TOP, PROCESS_FLAGS | folder(), area | flags, program);
        return false;
    }
    let between = |signal| born(area + BETWEEN_TOP, BETWEEN_FLAGS | signal, area | flags | BETWEEN, program);
    if flags & INHERITED == 0 { bury(between(0)) } else { unburied(|| between(SIGCHLD)) }
}

/// Waits for the end of the process in between.
fn bury(between: isize) -> bool {
    // SAFETY: no status is asked for.
    between > 0 && unsafe { call(syscall::WAIT4, [between as usize, 0, WALL, 0, 0, 0]) } > 0
}

/// In a fork child: wait4(2), even if it did not sleep, would show the child asleep before fork
/// returns. The child has no children yet, so it may ignore SIGCHLD for a moment: then the kernel
/// reaps the process in between.
fn unburied(make: impl FnOnce() -> isize) -> bool {
    // struct sigaction of the kernel: handler, flags, restorer, mask.
    const SIG_IGN: u64 = 1;
    let ignore = [SIG_IGN, 0, 0, 0];
    let mut before = [0u64; 4];
    // SAFETY: both structures are ours.
    unsafe {
        call(syscall::RT_SIGACTION, [SIGCHLD, ignore.as_ptr() as usize, before.as_mut_ptr() as usize, 8, 0, 0]);
    }
    let between = make();
    // SAFETY: no pointers, and no signal is sent.
    while between > 0 && unsafe { call(syscall::KILL, [between as usize, 0, 0, 0, 0, 0]) } == 0 {
        syscall::yield_now();
    }
    // SAFETY: as above.
    unsafe { call(syscall::RT_SIGACTION, [SIGCHLD, before.as_ptr() as usize, 0, 8, 0, 0]) };
    between > 0
}

/// Makes an agent, or the process in between, with two words on a stack that no thread uses.
fn born(top: u64, flags: usize, argument: u64, program: u64) -> isize {
    // SAFETY: the stack is ours and nobody runs on it.
    unsafe {
        ((top - 16) as *mut u64).write(argument);
        ((top - 8) as *mut u64).write(program);
        uswap_clone(flags, top - 16)
    }
}

fn folder() -> usize {
    if is_set(&raw const FOLDER) { CLONE_FS } else { 0 }
}

fn is_set(letter: *const [u8; 24]) -> bool {
    // SAFETY: it is ours; volatile, because the engine writes it into the image.
    unsafe { letter.cast::<u8>().read_volatile() == b'S' }
}

/// Whether the program itself adopts the orphans among its descendants.
fn is_own_reaper() -> bool {
    let mut subreaper = 0u32;
    // SAFETY: an int of ours.
    unsafe { call(syscall::PRCTL, [PR_GET_CHILD_SUBREAPER, &raw mut subreaper as usize, 0, 0, 0, 0]) };
    subreaper != 0
}

/// Whether the program's children are born into another pid namespace than its own.
fn is_elsewhere() -> bool {
    let own = syscall::inode(b"/proc/self/ns/pid\0");
    own.is_some() && own != syscall::inode(b"/proc/self/ns/pid_for_children\0")
}

/// The agent, or the process in between: `argument` is the area's address with flags in its lowest
/// bits.
extern "C" fn agent_main(argument: u64, program: u64) -> ! {
    if argument & BETWEEN != 0 {
        let area = argument & !FLAGS;
        // The agent has its name from its first moment on, so that nothing takes it for a program.
        syscall::name_thread(crate::message::AGENT_NAME);
        born(area + STACK_TOP, PROCESS_FLAGS | folder(), argument & !BETWEEN, program);
        if argument & WAITED_FOR != 0 {
            wait_for_answer(area);
        }
        syscall::exit_thread()
    }
    let program = (argument & PROCESS != 0).then(|| become_process(program));
    let keep = program.unwrap_or(-1);
    close_all_but(keep);
    serve(argument, None, program)
}

/// A process group of its own; a descriptor of the program, by which the engine sees its end.
fn become_process(program: u64) -> i32 {
    syscall::name_thread(crate::message::AGENT_NAME);
    // SAFETY: no pointers.
    let pidfd = unsafe {
        call(syscall::SETPGID, [0; 6]);
        call(syscall::PIDFD_OPEN, [program as usize, 0, 0, 0, 0, 0])
    };
    if pidfd < 0 {
        // The program has ended already.
        syscall::exit_thread()
    }
    pidfd as i32
}

fn close_all_but(kept: i32) {
    let close = |from: i32, to: u32| {
        // SAFETY: the fds closed are those of this agent's own table.
        unsafe { call(syscall::CLOSE_RANGE, [from as usize, to as usize, 0, 0, 0, 0]) };
    };
    if kept > 0 {
        close(0, kept as u32 - 1);
    }
    close(kept.max(-1) + 1, u32::MAX);
}

/// The thread that the engine has made: it closes its descriptors except the socket; the engine has
/// the other end.
extern "C" fn brought_main(argument: u64, socket: u64) -> ! {
    was_brought(argument & !FLAGS);
    serve(argument, Some(socket as i32), None)
}

fn serve(argument: u64, socket: Option<i32>, program: Option<i32>) -> ! {
    syscall::name_thread(crate::message::AGENT_NAME);
    syscall::hurry(NICENESS);
    syscall::set_turn(TURN);
    let area = argument & !FLAGS;
    let agent = crate::link::connect(area, argument & INHERITED != 0, socket, program);
    if argument & WAITED_FOR != 0 {
        answered(area).store(1, SeqCst);
        syscall::wake_all(answered(area));
    }
    match agent {
        Some(mut agent) => agent.run(),
        None => syscall::exit_thread(),
    }
}
