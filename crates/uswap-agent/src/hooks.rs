//! The calls that change memory without any userfaultfd event. The agent interposes them: a hook
//! leaves a note in the header page, or first makes a call that does send an event. A program that
//! makes the raw system call itself bypasses the hooks.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Release, SeqCst},
};

use crate::layout::{
    NOTE_BYTES, NOTE_DO_FORK, NOTE_DONE, NOTE_DONT_FORK, NOTE_KEEP_ON_FORK, NOTE_WIPE_ON_FORK, NOTES, NOTES_COUNT,
    NOTES_START, SILENT_HOOKS,
};
use crate::start;
use crate::syscall::{self, call};

const MADV_DONTNEED: i32 = 4;
const MADV_DONTFORK: i32 = 10;
const MADV_DOFORK: i32 = 11;
const MADV_WIPEONFORK: i32 = 18;
const MADV_KEEPONFORK: i32 = 19;
const MADV_GUARD_INSTALL: i32 = 102;
const SHM_REMAP: i32 = 0o40000;

unsafe extern "C" {
    fn __errno_location() -> *mut i32;
}

/// Turns a raw result into the libc's convention.
pub fn finish(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        // SAFETY: the libc of the program provides it.
        unsafe { *__errno_location() = -result as i32 };
        return -1;
    }
    result
}

/// `madvise(2)`: leaves a note for WIPEONFORK, DONTFORK and their opposites. GUARD_INSTALL drops
/// pages without an event, so the hook first calls DONTNEED, which drops them with one.
///
/// # Safety
/// As the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: usize, length: usize, advice: i32) -> i32 {
    let kind = match advice {
        MADV_WIPEONFORK => Some(NOTE_WIPE_ON_FORK),
        MADV_DONTFORK => Some(NOTE_DONT_FORK),
        MADV_KEEPONFORK => Some(NOTE_KEEP_ON_FORK),
        MADV_DOFORK => Some(NOTE_DO_FORK),
        _ => None,
    };
    if advice == MADV_GUARD_INSTALL && !are_silent() {
        // SAFETY: the program asks for these pages to be dropped.
        unsafe { call(syscall::MADVISE, [address, length, MADV_DONTNEED as usize, 0, 0, 0]) };
    }
    let number = kind.and_then(|kind| note(address, length, kind));
    // SAFETY: the program's own call.
    let result = finish(unsafe { call(syscall::MADVISE, [address, length, advice as usize, 0, 0, 0]) }) as i32;
    if let (Some(number), Some(kind)) = (number, kind) {
        note_done(number, kind);
    }
    result
}

/// `shmat(2)`: SHM_REMAP replaces mappings without an event, so the hook first maps other memory
/// there, which sends one.
///
/// # Safety
/// As the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: i32, address: usize, flags: i32) -> *mut u8 {
    if flags & SHM_REMAP != 0 && address != 0 && !are_silent() {
        announce_remap(id, address);
    }
    // SAFETY: the program's own call.
    finish(unsafe { call(syscall::SHMAT, [id as usize, address, flags as usize, 0, 0, 0]) }) as *mut u8
}

/// Silences the hooks of the process with this area.
pub fn silence(area: u64) {
    // SAFETY: an aligned word of the header page, which is always present.
    unsafe { &*((area + SILENT_HOOKS) as *const AtomicU64) }.store(1, SeqCst);
}

/// Whether tests have switched off the rule that an announcing event precedes each call that sends
/// none.
fn are_silent() -> bool {
    // SAFETY: as in `silence`.
    start::area().is_some_and(|area| unsafe { &*((area + SILENT_HOOKS) as *const AtomicU64) }.load(SeqCst) != 0)
}

fn announce_remap(id: i32, address: usize) {
    let mut info = [0u64; 16];
    // IPC_STAT; the segment's size is the word after struct ipc64_perm (48 bytes). SAFETY: the
    // buffer is larger than struct shmid64_ds; the program is about to replace this very range.
    unsafe {
        if call(syscall::SHMCTL, [id as usize, 2, info.as_mut_ptr() as usize, 0, 0, 0]) == 0 {
            let length = (info[6] as usize).next_multiple_of(4096);
            call(syscall::MMAP, [address, length, 0, 0x4032, usize::MAX, 0]);
        }
    }
}

/// Leaves a note for the engine and announces it: the event is in one order with those of forks,
/// and the hook makes the program's call only after the engine has read it. The notes form a ring;
/// while no memory is registered there is no event, and the engine may find later that it has
/// missed some notes.
fn note(address: usize, length: usize, kind: u64) -> Option<u64> {
    let area = start::area()?;
    // SAFETY: the header page is ours, always present, and the index is kept within its room. The
    // kind is written last, with the note's number: another number means another note.
    let number = unsafe {
        let count = &*((area + NOTES_COUNT) as *const AtomicU64);
        let number = count.fetch_add(1, SeqCst);
        let note = (area + NOTES_START + number % NOTES as u64 * NOTE_BYTES) as *mut u64;
        note.write_volatile(address as u64);
        note.add(1).write_volatile((length as u64).next_multiple_of(4096));
        (*note.add(2).cast::<AtomicU64>()).store(number << 8 | kind, Release);
        number
    };
    start::drop_notice(area);
    Some(number)
}

/// Marks a note as done, unless another note has taken its place: the program's call has been made,
/// and from now on the kernel knows.
fn note_done(number: u64, kind: u64) {
    let Some(area) = start::area() else { return };
    let note = area + NOTES_START + number % NOTES as u64 * NOTE_BYTES;
    // SAFETY: as in `note`.
    let state = unsafe { &*((note + 16) as *const AtomicU64) };
    let _ = state.compare_exchange(number << 8 | kind, number << 8 | kind | NOTE_DONE, SeqCst, SeqCst);
}
