//! Page-aligned buffers, as direct I/O wants them.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

const ALIGNMENT: usize = 4096;

/// A byte buffer of fixed length that starts on a page boundary. Large ones cost memory only where touched.
pub struct AlignedBuf {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the buffer owns its memory and hands it out only by the borrow rules of `Deref` and `DerefMut`.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `length` zero bytes.
    ///
    /// # Panics
    /// When `length` is 0 or does not fit the address space.
    pub fn zeroed(length: usize) -> Self {
        let layout = Self::layout(length);
        // SAFETY: the layout has a size above 0 (checked in `layout`).
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, length }
    }

    fn layout(length: usize) -> Layout {
        assert!(length > 0, "an aligned buffer cannot be empty");
        Layout::from_size_align(length, ALIGNMENT).expect("length fits the address space")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this same layout and is freed only here.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.length)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `length` initialised bytes are at `start`, owned by us; the borrow of self covers the slice.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the exclusive borrow of self makes the slice exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_writable() {
        let mut buf = AlignedBuf::zeroed(3 * ALIGNMENT);
        assert!(buf.as_ptr().addr().is_multiple_of(ALIGNMENT));
        assert!(buf.iter().all(|&b| b == 0));
        buf[ALIGNMENT] = 7;
        assert_eq!(buf[ALIGNMENT], 7);
        assert_eq!(buf.len(), 3 * ALIGNMENT);
    }
}
