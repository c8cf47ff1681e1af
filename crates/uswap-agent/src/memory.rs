//! The memory functions that compilers call on their own. Hidden at link time: the program keeps
//! its libc's.

use core::arch::asm;

/// `memcpy(3)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: the caller's ranges; direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") length => _,
            options(nostack, preserves_flags));
    }
    to
}

/// `memset(3)`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
    // SAFETY: the caller's range; direction flag is clear by the ABI.
    unsafe {
        asm!("rep stosb", inout("rdi") to => _, in("al") byte as u8, inout("rcx") length => _,
            options(nostack, preserves_flags));
    }
    to
}
