//! The system's allocator, with a check by the rules of [`uswap_core::util::growth`] before each
//! allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;

use uswap_core::util::growth;

/// The allocator of a binary, which declares it as its global allocator.
pub struct GuardedAllocator;

// SAFETY: every call goes to the system's allocator as it came; the question before it touches no
// memory of the caller's and does not unwind (it returns or aborts).
unsafe impl GlobalAlloc for GuardedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ask(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from the system's allocator, as all that is given out here.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ask(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ask(size);
        // SAFETY: as in `dealloc`; size and layout are the caller's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

fn ask(bytes: usize) {
    if !growth::may_allocate(bytes) {
        refuse(bytes);
    }
}

/// Reports that a thread that serves pages allocates outside any permitted purpose.
#[cold]
fn refuse(bytes: usize) {
    growth::permit();
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("?").to_owned();
    eprintln!("uswap: thread {name} allocates {bytes} bytes while it serves pages\n{}", Backtrace::force_capture());
    if !growth::is_lenient() {
        std::process::abort();
    }
    growth::forbid();
}
