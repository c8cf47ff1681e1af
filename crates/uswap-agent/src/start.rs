//! The constructor, the fork handler and the agent's thread; the entry for programs that the engine brings it to.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::layout::{ANSWERED, AREA_BYTES, HEADER, PAGE, SA, STACK_BYTES, STACK_TOP};
use crate::syscall::{self, call};

/// Address of this process's area; [`NO_AREA`] until there is one. Not zero, so that it lies in the file-backed data
/// of the agent and not in anonymous memory that could grow together with the program's.
static AREA: Area =
    Area { marker: *b"uswap:area:uswap", address: AtomicU64::new(NO_AREA), brought: AtomicU64::new(NO_AREA) };
const NO_AREA: u64 = 1;

/// The engine finds it by its marker.
#[repr(C)]
struct Area {
    marker: [u8; 16],
    address: AtomicU64,
    /// The same, where the engine has brought the agent: nobody starts another one in fork children.
    brought: AtomicU64,
}

/// The engine puts an S in the place of its first letter while memory is short or a crowd that begins could make it so.
#[used]
static SHORTAGE: [u8; 24] = *b"uswap:memory-is-short:no";

/// For tests: with an S in the place of its first letter the agent is made with CLONE_FS.
#[used]
static FOLDER: [u8; 24] = *b"uswap:folder-is-shared:n";
const CLONE_FS: usize = 0x200;

/// In the argument of the agent's thread: a fork child's; the program waits for it.
const INHERITED: u64 = 1;
const WAITED_FOR: u64 = 2;

/// How often and how long the program waits at most: a little longer than the engine lets it (300 ms).
const MOST_WAITS: u32 = 30;
const WAIT_NANOSECONDS: u64 = 10_000_000;
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
    // Where the engine lets a thread begin that it has made in a program: rdi the area (lowest bit: it was inherited), rsi
    // a socket; rsp on top of the area's stack.
    ".hidden uswap_entry",
    ".globl uswap_entry",
    "uswap_entry:",
    "xor ebp, ebp",
    "call {brought}",
    "ud2",
    main = sym thread_main,
    brought = sym brought_main,
);

unsafe extern "C" {
    fn uswap_glibc_atfork() -> usize;
    fn uswap_musl_atfork() -> usize;
    fn uswap_clone(flags: usize, stack_top: u64) -> isize;
}

type Handler = Option<extern "C" fn()>;

extern "C" fn constructor() {
    let Some(area) = reserve_area() else { return };
    AREA.address.store(area, SeqCst);
    watch_forks();
    begin(area, 0);
}

/// Starts the agent, and waits for it where memory may soon be short.
fn begin(area: u64, flags: u64) {
    if !memory_may_be_short() {
        return start_thread(area, flags);
    }
    answered(area).store(0, SeqCst);
    start_thread(area, flags | WAITED_FOR);
    wait_for_answer(area);
}

/// Whether new programs are to wait: what a program touches before the engine knows of it comes without asking.
fn memory_may_be_short() -> bool {
    // SAFETY: it is ours; volatile, because the engine changes it in the file behind the mapping.
    unsafe { (&raw const SHORTAGE).cast::<u8>().read_volatile() == b'S' }
}

fn shares_folder() -> bool {
    // SAFETY: it is ours; volatile, because the engine writes it into the image.
    unsafe { (&raw const FOLDER).cast::<u8>().read_volatile() == b'S' }
}

fn answered(area: u64) -> &'static AtomicU32 {
    // SAFETY: an aligned word of the area, which is mapped for the life of this image and begins as zero.
    unsafe { &*((area + ANSWERED) as *const AtomicU32) }
}

/// The program's first thread: until the engine has answered the agent, but not for long.
fn wait_for_answer(area: u64) {
    let word = answered(area);
    for _ in 0..MOST_WAITS {
        if word.load(SeqCst) != 0 {
            return;
        }
        match syscall::wait_while_zero(word, WAIT_NANOSECONDS) {
            0 | syscall::INTERRUPTED | syscall::CHANGED | syscall::TIMED_OUT => {}
            _ => return,
        }
    }
}

/// In the child, before fork returns to the program.
extern "C" fn after_fork_in_child() {
    let area = AREA.address.load(SeqCst);
    if area != NO_AREA {
        begin(area, INHERITED);
    }
}

/// The agent's area of this process, for the hooks.
pub fn area() -> Option<u64> {
    Some(AREA.address.load(SeqCst)).filter(|area| *area != NO_AREA)
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
fn start_thread(area: u64, flags: u64) {
    let everything = u64::MAX;
    let mut before = 0u64;
    // SAFETY: the stack is ours and nobody runs on it; signals are blocked around clone so that the agent is born with
    // all of them blocked.
    unsafe {
        let top = area + STACK_TOP;
        ((top - 8) as *mut u64).write(area | flags);
        call(syscall::RT_SIGPROCMASK, [0, &raw const everything as usize, &raw mut before as usize, 8, 0, 0]);
        uswap_clone(THREAD_FLAGS | if shares_folder() { CLONE_FS } else { 0 }, top - 8);
        call(syscall::RT_SIGPROCMASK, [2, &raw const before as usize, 0, 8, 0, 0]);
    }
}

/// The agent's thread: `argument` is the area's address with flags in its lowest bits.
extern "C" fn thread_main(argument: u64) -> ! {
    // SAFETY: the fds closed are those of this thread's own table.
    unsafe { call(syscall::CLOSE_RANGE, [0, u32::MAX as usize, 0, 0, 0, 0]) };
    serve(argument, None)
}

/// The thread that the engine has made: its descriptors are closed but for the socket, whose other end the engine has.
extern "C" fn brought_main(argument: u64, socket: u64) -> ! {
    // SAFETY: volatile only so that the marker stays in the image.
    unsafe { (&raw const AREA.marker).read_volatile() };
    AREA.address.store(argument & !1, SeqCst);
    AREA.brought.store(argument & !1, SeqCst);
    serve(argument, Some(socket as i32))
}

fn serve(argument: u64, socket: Option<i32>) -> ! {
    syscall::name_thread(crate::message::AGENT_NAME);
    syscall::hurry(NICENESS);
    syscall::set_turn(TURN);
    let area = argument & !(INHERITED | WAITED_FOR);
    let agent = crate::link::connect(area, argument & INHERITED != 0, socket);
    if argument & WAITED_FOR != 0 {
        answered(area).store(1, SeqCst);
        syscall::wake_all(answered(area));
    }
    match agent {
        Some(mut agent) => agent.run(),
        None => syscall::exit_thread(),
    }
}
