//! Memory that the C library's allocator has handed out.

/// Bytes that are allocated now, including the allocator's overhead per block; `None` where the
/// allocator does not report them.
#[cfg(target_env = "gnu")]
pub fn in_use() -> Option<u64> {
    // SAFETY: it takes no pointer, and reads what the allocator keeps under its own locks.
    let told = unsafe { libc::mallinfo2() };
    Some((told.uordblks + told.hblkhd) as u64)
}

/// Bytes that are allocated now, including the allocator's overhead per block; `None` where the
/// allocator does not report them.
#[cfg(not(target_env = "gnu"))]
pub fn in_use() -> Option<u64> {
    None
}
