//! `mremap(2)` of a mapping that the engine begins to manage at the same moment.
//!
//! The engine reads the list of mappings and then registers one of them. If another thread has
//! replaced that mapping by a larger one meanwhile, the registration cuts the larger one in two or
//! three until the engine has registered the rest of it: microseconds later, or milliseconds where
//! the range had a hole that was filled meanwhile. mremap(2) refuses a range of several mappings
//! with EFAULT. After that answer the hook tries again for a short time if the whole range is
//! mapped; the answer for a range with a hole stays as quick as the kernel's. A program that makes
//! the raw system call sees the kernel's answer.

use crate::hooks::finish;
use crate::locking::is_mapped;
use crate::start;
use crate::syscall::{self, EFAULT, call};

/// The first and the last pause; each pause is twice the one before, 100 ms together.
const FIRST_PAUSE_US: u32 = 50;
const LAST_PAUSE_US: u32 = 51_200;

/// `mremap(2)`. The last argument is there with `MREMAP_FIXED` and `MREMAP_DONTUNMAP` only; the
/// calling convention of x86-64 passes whatever its register holds, and the kernel does not look at
/// it otherwise.
///
/// # Safety
/// As the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(old: usize, old_size: usize, new_size: usize, flags: i32, new: usize) -> *mut u8 {
    // SAFETY: the program's own call.
    let remap = || unsafe { call(syscall::MREMAP, [old, old_size, new_size, flags as usize, new, 0]) };
    let mut result = remap();
    let mut pause = FIRST_PAUSE_US;
    while result == -EFAULT && pause <= LAST_PAUSE_US && may_be_cut(old, old_size) {
        syscall::sleep(pause);
        pause *= 2;
        result = remap();
    }
    finish(result) as *mut u8
}

/// Whether the range lies in several mappings without a hole, in a program whose mappings are
/// managed.
fn may_be_cut(start: usize, size: usize) -> bool {
    let end = start.checked_add(size).and_then(|end| end.checked_next_multiple_of(4096));
    start::area().is_some() && size > 0 && end.is_some_and(|end| is_mapped(start as u64, end as u64))
}
