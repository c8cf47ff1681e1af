//! Page-aligned buffers for direct I/O.

use std::ops::{Deref, DerefMut};

use crate::alloc::reservation::Reservation;

/// A byte buffer of fixed length that starts on a page boundary. It costs memory only where it was
/// touched.
pub struct AlignedBuf {
    memory: Reservation,
    length: usize,
}

impl AlignedBuf {
    /// A buffer of `length` zero bytes.
    ///
    /// # Panics
    /// When the address space is not large enough.
    pub fn zeroed(length: usize) -> Self {
        let memory = Reservation::new(length).expect("address space for a buffer");
        Self { memory, length }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[..self.length]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_writable() {
        let mut buf = AlignedBuf::zeroed(3 * 4096 - 1);
        assert!(buf.as_ptr().addr().is_multiple_of(4096));
        assert!(buf.iter().all(|&b| b == 0));
        buf[4096] = 7;
        assert_eq!(buf[4096], 7);
        assert_eq!(buf.len(), 3 * 4096 - 1);
        assert!(AlignedBuf::zeroed(0).is_empty());
    }
}
