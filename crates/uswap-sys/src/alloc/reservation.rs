//! A reserved range of anonymous memory: it costs only address space until it is touched, and its
//! pages can be released in parts.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// MADV_DONTNEED that drops locked pages too (Linux 5.18).
const MADV_DONTNEED_LOCKED: libc::c_int = 24;

/// Private anonymous memory of fixed address and size. Pages that were never written, or that were
/// released, read as zero.
///
/// Huge pages are turned off for it, so that only touched pages cost memory.
pub struct Reservation {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is owned by this value and handed out only by the borrow rules.
unsafe impl Send for Reservation {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `length` bytes, rounded up to whole pages (at least one).
    ///
    /// # Errors
    /// The error of mmap(2): ENOMEM when the address space or RLIMIT_AS does not allow it.
    pub fn new(length: usize) -> io::Result<Self> {
        let length = length.max(1).next_multiple_of(4096);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing
        // memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range is the mapping just made. The advice changes no content; kernels
        // without huge pages refuse it, which is as good.
        unsafe { libc::madvise(start, length, libc::MADV_NOHUGEPAGE) };
        let start = NonNull::new(start.cast()).expect("mmap does not return null");
        Ok(Self { start, length })
    }

    /// Reserves `length` bytes in one call, to be taken in pieces of `piece` bytes (whole pages;
    /// the last piece may be shorter).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Panics
    /// When a piece is not whole pages.
    pub fn in_pieces(length: usize, piece: usize) -> io::Result<Pieces> {
        assert!(piece > 0 && piece.is_multiple_of(4096), "{piece} bytes are not whole pages");
        Ok(Pieces { rest: Self::new(length)?, piece })
    }

    /// Cuts off the first `length` bytes (whole pages), or all if there are fewer; `None` when
    /// nothing is left.
    fn cut(&mut self, length: usize) -> Option<Self> {
        let length = length.min(self.length);
        let first = Self { start: self.start, length };
        // SAFETY: `length` bytes of the mapping begin at `start`. From here on each of its bytes
        // belongs to one of the two, and munmap takes any whole pages of a mapping.
        self.start = unsafe { self.start.add(length) };
        self.length -= length;
        (length > 0).then_some(first)
    }

    /// An empty reservation, as a placeholder for one that is moved elsewhere for a time.
    pub fn none() -> Self {
        Self { start: NonNull::dangling(), length: 0 }
    }

    /// The first byte of the range, for who shares out its bytes by rules of their own.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// All bytes of the range.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `length` readable bytes are mapped at `start` for the life of self, or none are;
        // untouched ones read as zero.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// All bytes of the range, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the exclusive borrow of self makes the slice exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// Releases the memory of `range` to the system; it reads as zero from then on.
    ///
    /// # Panics
    /// When the range does not consist of whole pages inside the reservation.
    pub fn release(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} is outside");
        assert!(range.start.is_multiple_of(4096) && range.end.is_multiple_of(4096), "{range:?} is not whole pages");
        // SAFETY: the range lies inside the mapping (asserted above), nobody borrows it (exclusive
        // self), and private anonymous memory that is dropped reads as zero, which is a valid u8.
        let rc =
            unsafe { libc::madvise(self.start.as_ptr().add(range.start).cast(), range.len(), MADV_DONTNEED_LOCKED) };
        debug_assert_eq!(rc, 0, "madvise: {}", io::Error::last_os_error());
        if rc != 0 {
            self.bytes_mut()[range].fill(0);
        }
    }
}

/// The pieces of a reservation ([`Reservation::in_pieces`]), cut off one by one.
#[derive(Debug)]
pub struct Pieces {
    rest: Reservation,
    piece: usize,
}

impl Iterator for Pieces {
    type Item = Reservation;

    fn next(&mut self) -> Option<Reservation> {
        self.rest.cut(self.piece)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rest.length.div_ceil(self.piece);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Pieces {}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes at {:p}", self.length, self.start)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: the mapping is ours, and no borrow of it outlives self.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_memory_reads_zero() {
        let mut memory = Reservation::new(1 << 40).expect("a reservation costs nothing");
        memory.bytes_mut()[4096..3 * 4096].fill(9);
        memory.release(4096..2 * 4096);
        assert_eq!((memory.bytes()[4096], memory.bytes()[2 * 4096]), (0, 9));
    }

    /// The engine locks all its memory: released pages must go all the same, and untouched pages
    /// must not be loaded.
    #[test]
    fn locked_memory_is_released_too() {
        let pages = 64;
        let mut memory = Reservation::new(pages * 4096).expect("a reservation");
        let start = memory.start.as_ptr().cast::<libc::c_void>();
        // SAFETY: the range is the reservation; locking changes no content.
        if unsafe { libc::mlock2(start, memory.length, libc::MLOCK_ONFAULT as libc::c_uint) } != 0 {
            return eprintln!("note: NOT TESTED: {}", io::Error::last_os_error());
        }
        let present = |memory: &Reservation| {
            let mut answer = vec![0u8; pages];
            // SAFETY: the range is the reservation, and there is a byte for each of its pages.
            let rc = unsafe { libc::mincore(start, memory.length, answer.as_mut_ptr()) };
            assert_eq!(rc, 0);
            answer.iter().filter(|byte| **byte & 1 == 1).count()
        };
        assert_eq!(present(&memory), 0);
        memory.bytes_mut()[..16 * 4096].fill(7);
        assert_eq!(present(&memory), 16);
        memory.release(0..8 * 4096);
        assert_eq!((present(&memory), memory.bytes()[8 * 4096]), (8, 7));
    }

    #[test]
    fn pieces_are_apart_and_end_one_by_one() {
        let pieces = Reservation::in_pieces(10 * 4096, 4 * 4096).expect("a reservation");
        assert_eq!(pieces.len(), 3);
        let mut pieces: Vec<Reservation> = pieces.collect();
        let lengths: Vec<usize> = pieces.iter().map(|piece| piece.bytes().len()).collect();
        assert_eq!(lengths, [4 * 4096, 4 * 4096, 2 * 4096]);
        for (piece, mark) in pieces.iter_mut().zip(1..) {
            piece.bytes_mut().fill(mark);
        }
        drop(pieces.remove(1));
        pieces[0].release(0..4096);
        assert!(pieces[0].bytes()[..4096].iter().all(|byte| *byte == 0));
        assert!(pieces[0].bytes()[4096..].iter().all(|byte| *byte == 1));
        assert!(pieces[1].bytes().iter().all(|byte| *byte == 3));
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn release_outside_panics() {
        Reservation::new(4096).unwrap().release(0..8192);
    }
}
