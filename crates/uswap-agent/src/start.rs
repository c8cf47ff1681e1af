//! The constructor, the fork handler and the agent's thread.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::layout::{AREA_BYTES, HEADER, PAGE, SA, STACK_BYTES, STACK_TOP};
use crate::syscall::{self, call};

/// Address of this process's area; [`NO_AREA`] until there is one. Not zero, so that it lies in the file-backed data
/// of the agent and not in anonymous memory that could grow together with the program's.
static AREA: AtomicU64 = AtomicU64::new(NO_AREA);
const NO_AREA: u64 = 1;

/// Of the agent's thread, where it is allowed: what it does makes room, and it sleeps otherwise.
const NICENESS: isize = -10;
/// How long it runs at a time, in nanoseconds.
const TURN: u64 = 100_000;

/// CLONE_VM | CLONE_SIGHAND | CLONE_THREAD. Without CLONE_FILES (fds of its own), CLONE_FS (setns keeps working) and
/// CLONE_SYSVSEM.
const THREAD_FLAGS: usize = 0x100 | 0x800 | 0x10000;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

global_asm!(
    ".weak __register_atfork",
    ".weak pthread_atfork",
    ".hidden uswap_glibc_atfork",
    ".globl uswap_glibc_atfork",
    "uswap_glibc_atfork:",
    "mov rax, [rip + __register_atfork@GOTPCREL]",
    "ret",
    ".hidden uswap_musl_atfork",
    ".globl uswap_musl_atfork",
    "uswap_musl_atfork:",
    "mov rax, [rip + pthread_atfork@GOTPCREL]",
    "ret",
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
    "call {main}",
    "ud2",
    "2: ret",
    main = sym thread_main,
);

unsafe extern "C" {
    fn uswap_glibc_atfork() -> usize;
    fn uswap_musl_atfork() -> usize;
    fn uswap_clone(flags: usize, stack_top: u64) -> isize;
}

type Handler = Option<extern "C" fn()>;

extern "C" fn constructor() {
    let Some(area) = reserve_area() else { return };
    AREA.store(area, SeqCst);
    watch_forks();
    start_thread(area, 0);
}

/// In the child, before fork returns to the program.
extern "C" fn after_fork_in_child() {
    let area = AREA.load(SeqCst);
    if area != NO_AREA {
        start_thread(area, 1);
    }
}

/// The agent's area of this process, for the hooks.
pub fn area() -> Option<u64> {
    Some(AREA.load(SeqCst)).filter(|area| *area != NO_AREA)
}

fn watch_forks() {
    // SAFETY: the two stubs return the address of the libc's function or 0; the signatures are glibc's
    // (prepare, parent, child, dso) and POSIX's (prepare, parent, child).
    unsafe {
        let glibc = uswap_glibc_atfork();
        let musl = uswap_musl_atfork();
        if glibc != 0 {
            let register: extern "C" fn(Handler, Handler, Handler, usize) -> i32 = core::mem::transmute(glibc);
            register(None, None, Some(after_fork_in_child), 0);
        } else if musl != 0 {
            let register: extern "C" fn(Handler, Handler, Handler) -> i32 = core::mem::transmute(musl);
            register(None, None, Some(after_fork_in_child));
        }
    }
}

fn reserve_area() -> Option<u64> {
    // PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
    // SAFETY: a fresh mapping where the kernel likes it; then two parts of it are made accessible.
    unsafe {
        let area = call(syscall::MMAP, [0, AREA_BYTES as usize, 0, 0x4022, usize::MAX, 0]);
        if area < 0 {
            return None;
        }
        let area = area as u64;
        let stack = call(syscall::MPROTECT, [(area + HEADER) as usize, STACK_BYTES as usize, 3, 0, 0, 0]);
        let halves = AREA_BYTES - SA - PAGE;
        let staging = call(syscall::MPROTECT, [(area + SA) as usize, halves as usize, 3, 0, 0, 0]);
        (stack == 0 && staging == 0).then_some(area)
    }
}

/// Starts the agent's thread on the stack in the area. After a fork the stack of the parent's agent lies there,
/// abandoned.
fn start_thread(area: u64, inherited: u64) {
    let everything = u64::MAX;
    let mut before = 0u64;
    // SAFETY: the stack is ours and nobody runs on it; signals are blocked around clone so that the agent is born with
    // all of them blocked.
    unsafe {
        let top = area + STACK_TOP;
        ((top - 8) as *mut u64).write(area | inherited);
        call(syscall::RT_SIGPROCMASK, [0, &raw const everything as usize, &raw mut before as usize, 8, 0, 0]);
        uswap_clone(THREAD_FLAGS, top - 8);
        call(syscall::RT_SIGPROCMASK, [2, &raw const before as usize, 0, 8, 0, 0]);
    }
}

/// The agent's thread: `argument` is the area's address, lowest bit set in a fork child.
extern "C" fn thread_main(argument: u64) -> ! {
    // SAFETY: the fds closed are those of this thread's own table.
    unsafe { call(syscall::CLOSE_RANGE, [0, u32::MAX as usize, 0, 0, 0, 0]) };
    syscall::name_thread(crate::message::AGENT_NAME);
    syscall::hurry(NICENESS);
    syscall::set_turn(TURN);
    let inherited = argument & 1 == 1;
    match crate::link::connect(argument & !1, inherited) {
        Some(mut agent) => agent.run(),
        None => syscall::exit_thread(),
    }
}
