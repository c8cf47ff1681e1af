//! What the C library's allocator has given out.

/// Bytes given out at this moment, with what the allocator adds to each piece; `None` where it does
/// not tell.
#[cfg(target_env = "gnu")]
pub fn in_use() -> Option<u64> {
    // SAFETY: it takes no pointer, and reads what the allocator keeps under its own locks.
    let told = unsafe { libc::mallinfo2() };
    Some((told.uordblks + told.hblkhd) as u64)
}

/// Bytes given out at this moment, with what the allocator adds to each piece; `None` where it does
/// not tell.
#[cfg(not(target_env = "gnu"))]
pub fn in_use() -> Option<u64> {
    None
}
