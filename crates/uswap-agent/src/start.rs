//! The constructor and the fork handler, which run on the program's own threads.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::birth::{self, INHERITED, WAITED_FOR};
use crate::layout::{ANSWERED, AREA_BYTES, HEADER, NOTICE, PAGE, SA, STACK_BYTES};
use crate::syscall::{self, call};

/// Address of this process's area; [`NO_AREA`] until there is one. Not zero, so that it lies in the
/// file-backed data of the agent and not in anonymous memory that could grow together with the
/// program's.
static AREA: AgentArea =
    AgentArea { marker: *b"uswap:area:uswap", address: AtomicU64::new(NO_AREA), brought: AtomicU64::new(NO_AREA) };
const NO_AREA: u64 = 1;
const MADV_DONTNEED: usize = 4;
const MADV_DONTDUMP: usize = 16;

/// The engine finds it by its marker.
#[repr(C)]
struct AgentArea {
    marker: [u8; 16],
    address: AtomicU64,
    /// The same address, where the engine has injected the agent: no fork handler starts another
    /// agent in fork children.
    brought: AtomicU64,
}

/// The engine writes an S over its first letter while memory is short, or while new programs that
/// all begin together could make it short.
#[used]
static SHORTAGE: [u8; 24] = *b"uswap:memory-is-short:no";

/// At most how often and for how long the program waits: together a little longer than the engine
/// makes it wait (300 ms).
const MAX_WAITS: u32 = 30;
const WAIT_NANOSECONDS: u64 = 10_000_000;
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
);

unsafe extern "C" {
    fn uswap_glibc_atfork() -> usize;
    fn uswap_musl_atfork() -> usize;
}

type Handler = Option<extern "C" fn()>;

extern "C" fn constructor() {
    if syscall::is_emulated() {
        return;
    }
    let Some(area) = reserve_area() else { return };
    AREA.address.store(area, SeqCst);
    watch_forks();
    begin(area, 0);
}

/// Starts the agent, and waits for it where memory may soon be short.
fn begin(area: u64, flags: u64) {
    if !memory_may_be_short() {
        return birth::start(area, flags);
    }
    answered(area).store(0, SeqCst);
    birth::start(area, flags | WAITED_FOR);
}

/// Whether new programs are to wait: memory that a program touches before the engine knows of it is
/// taken without the engine's consent.
fn memory_may_be_short() -> bool {
    // SAFETY: it is ours; volatile, because the engine changes it in the file behind the mapping.
    unsafe { (&raw const SHORTAGE).cast::<u8>().read_volatile() == b'S' }
}

pub fn answered(area: u64) -> &'static AtomicU32 {
    // SAFETY: an aligned word of the area, which is mapped for the life of this image and begins as
    // zero.
    unsafe { &*((area + ANSWERED) as *const AtomicU32) }
}

/// Waits until the engine has answered the agent, but not for long.
pub fn wait_for_answer(area: u64) {
    let word = answered(area);
    for _ in 0..MAX_WAITS {
        if word.load(SeqCst) != 0 {
            return;
        }
        match syscall::wait_while_zero(word, WAIT_NANOSECONDS) {
            0 | syscall::INTERRUPTED | syscall::CHANGED | syscall::TIMED_OUT => {}
            _ => return,
        }
    }
}

/// Runs before fork. While memory is short it touches the notice page, which is never present: the
/// engine serves this fault when there is room for the child's page tables, of which no event
/// tells. Then the page is dropped again.
extern "C" fn before_fork() {
    let Some(area) = area().filter(|_| memory_may_be_short()) else { return };
    // SAFETY: the page is ours, readable, and mapped for the life of this image.
    unsafe { ((area + NOTICE) as *const u8).read_volatile() };
    drop_notice(area);
}

/// Runs in the child, before fork returns to the program.
extern "C" fn after_fork_in_child() {
    let area = AREA.address.load(SeqCst);
    if area != NO_AREA {
        begin(area, INHERITED);
    }
}

/// Notes that the engine has injected the agent into this program.
pub fn was_brought(area: u64) {
    // SAFETY: volatile only so that the marker stays in the image.
    unsafe { (&raw const AREA.marker).read_volatile() };
    AREA.address.store(area, SeqCst);
    AREA.brought.store(area, SeqCst);
}

/// The agent's area of this process, for the hooks.
pub fn area() -> Option<u64> {
    Some(AREA.address.load(SeqCst)).filter(|area| *area != NO_AREA)
}

/// Drops the notice page of the area, which the engine sees as an event.
pub fn drop_notice(area: u64) {
    // SAFETY: the page is ours and holds nothing.
    unsafe { call(syscall::MADVISE, [(area + NOTICE) as usize, PAGE as usize, MADV_DONTNEED, 0, 0, 0]) };
}

fn watch_forks() {
    // SAFETY: the two stubs return the address of the libc's function or 0; the signatures are
    // glibc's (prepare, parent, child, dso) and POSIX's (prepare, parent, child).
    unsafe {
        let glibc = uswap_glibc_atfork();
        let musl = uswap_musl_atfork();
        if glibc != 0 {
            let register: extern "C" fn(Handler, Handler, Handler, usize) -> i32 = core::mem::transmute(glibc);
            register(Some(before_fork), None, Some(after_fork_in_child), 0);
        } else if musl != 0 {
            let register: extern "C" fn(Handler, Handler, Handler) -> i32 = core::mem::transmute(musl);
            register(Some(before_fork), None, Some(after_fork_in_child));
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
        // Otherwise a core file would contain the whole area.
        call(syscall::MADVISE, [area as usize, AREA_BYTES as usize, MADV_DONTDUMP, 0, 0, 0]);
        let halves = AREA_BYTES - SA - PAGE;
        let staging = call(syscall::MPROTECT, [(area + SA) as usize, halves as usize, 3, 0, 0, 0]);
        (stack == 0 && staging == 0).then_some(area)
    }
}
