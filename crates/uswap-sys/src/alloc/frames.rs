//! Frames: memory for whole pages that several threads read at once.
//!
//! A frame is taken by one thread, which writes it, and is then shared: from that moment it is only
//! read, until its last holder has let go of it. Besides its holders the *keeper* may hold a frame
//! by number, which takes no memory of its own (a page table keeps frames that way).

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use uswap_core::{PAGE_SIZE, PageBuf};

use crate::alloc::reservation::Reservation;
use crate::alloc::zeroed::atomic_words;

/// The keeper holds the frame.
const KEPT: u32 = 1 << 31;

/// Memory for a fixed number of frames. A frame that was never taken takes no memory. A frame is
/// written by the one [`NewFrame`] that names it, and read by [`Frame`]s only after that; the mutex
/// and the counts order the two.
#[derive(Debug)]
pub struct Frames {
    memory: Reservation,
    count: u32,
    /// Holders of each frame: the number of [`Frame`]s, and [`KEPT`]. 0: free, or being written.
    holders: Box<[AtomicU32]>,
    free: Mutex<FreeFrames>,
}

#[derive(Debug, Default)]
struct FreeFrames {
    /// Frames that were used before.
    used: Vec<u32>,
    /// The same, whose memory was given back.
    without_memory: Vec<u32>,
    /// Number of frames that were ever taken.
    begun: u32,
}

/// A frame that this value alone may read and write. Its bytes are those of an earlier use.
#[derive(Debug)]
pub struct NewFrame {
    frames: Arc<Frames>,
    number: u32,
}

/// A frame that is only read.
#[derive(Debug)]
pub struct Frame {
    frames: Arc<Frames>,
    number: u32,
}

impl Frames {
    /// Address space for `count` frames of one page each.
    ///
    /// # Errors
    /// ENOMEM; EINVAL: `count` is 0 or above 2^31.
    pub fn new(count: u32) -> io::Result<Arc<Self>> {
        if count == 0 || count >= KEPT {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // Without large pages: the kernel would fill them again after a part was given back.
        let memory = Reservation::new(count as usize * PAGE_SIZE)?;
        // SAFETY: the range is the reservation; a core file need not have cached files.
        unsafe { libc::madvise(memory.start().as_ptr().cast(), count as usize * PAGE_SIZE, libc::MADV_DONTDUMP) };
        let holders = atomic_words(count as usize);
        Ok(Arc::new(Self { memory, count, holders, free: Mutex::default() }))
    }

    /// A free frame; `None` when all are in use.
    pub fn take(self: &Arc<Self>) -> Option<NewFrame> {
        self.take_within(u32::MAX)
    }

    /// A free frame; `None` when there is none, or none that has memory and `most` of them have
    /// some already.
    pub fn take_within(self: &Arc<Self>, most: u32) -> Option<NewFrame> {
        let mut free = self.free.lock().expect("free frames");
        if free.used.is_empty() && free.begun - free.without_memory.len() as u32 >= most {
            return None;
        }
        let before = free.used.pop().or_else(|| free.without_memory.pop());
        let number = before.or_else(|| {
            let next = free.begun;
            (next < self.count).then(|| {
                free.begun += 1;
                next
            })
        })?;
        drop(free);
        // The thread that freed the frame has read it before.
        debug_assert_eq!(self.holders[number as usize].load(Acquire), 0);
        Some(NewFrame { frames: Arc::clone(self), number })
    }

    /// Another holder of a frame that the keeper holds.
    ///
    /// # Panics
    /// The keeper does not hold it.
    pub fn kept(self: &Arc<Self>, number: u32) -> Frame {
        let one_more = |holders: u32| (holders & KEPT != 0).then_some(holders + 1);
        let before = self.holders[number as usize].fetch_update(AcqRel, Acquire, one_more);
        assert!(before.is_ok(), "frame {number} is not kept");
        Frame { frames: Arc::clone(self), number }
    }

    /// The keeper lets go of a frame.
    ///
    /// # Panics
    /// The keeper does not hold it.
    pub fn let_go(&self, number: u32) {
        let before = self.holders[number as usize].fetch_and(!KEPT, AcqRel);
        assert!(before & KEPT != 0, "frame {number} is not kept");
        if before == KEPT {
            self.free(number);
        }
    }

    fn free(&self, number: u32) {
        self.free.lock().expect("free frames").used.push(number);
    }

    /// Number of frames that have memory: those in use, and free ones whose memory was not given
    /// back.
    pub fn with_memory(&self) -> u32 {
        let free = self.free.lock().expect("free frames");
        free.begun - free.without_memory.len() as u32
    }

    /// Number of frames in use.
    pub fn in_use(&self) -> u32 {
        let free = self.free.lock().expect("free frames");
        free.begun - (free.used.len() + free.without_memory.len()) as u32
    }

    /// Gives the memory of free frames back to the system, of at most `most`. They read as zeros
    /// afterwards.
    pub fn give_back(&self, most: u32) {
        for _ in 0..most {
            let mut free = self.free.lock().expect("free frames");
            let Some(number) = free.used.pop() else { return };
            // SAFETY: a page of the mapping that nobody holds; the lock keeps it free.
            unsafe { libc::madvise(self.at(number).cast(), PAGE_SIZE, libc::MADV_DONTNEED) };
            free.without_memory.push(number);
        }
    }

    fn at(&self, number: u32) -> *mut u8 {
        debug_assert!(number < self.count);
        // SAFETY: the number is below the count, so the address is within the mapping.
        unsafe { self.memory.start().as_ptr().add(number as usize * PAGE_SIZE) }
    }
}

impl NewFrame {
    /// Ends the writing: the frame is only read from now on.
    pub fn share(self) -> Frame {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the value is not used again, so the reference is taken out of it once.
        let frames = unsafe { std::ptr::read(&raw const this.frames) };
        frames.holders[this.number as usize].store(1, Relaxed);
        Frame { frames, number: this.number }
    }
}

impl Drop for NewFrame {
    fn drop(&mut self) {
        self.frames.free(self.number);
    }
}

impl Deref for NewFrame {
    type Target = PageBuf;

    fn deref(&self) -> &PageBuf {
        // SAFETY: the page is within the mapping, and this value alone names it.
        unsafe { &*self.frames.at(self.number).cast::<PageBuf>() }
    }
}

impl DerefMut for NewFrame {
    fn deref_mut(&mut self) -> &mut PageBuf {
        // SAFETY: as above.
        unsafe { &mut *self.frames.at(self.number).cast::<PageBuf>() }
    }
}

impl std::borrow::Borrow<PageBuf> for NewFrame {
    fn borrow(&self) -> &PageBuf {
        self
    }
}

impl std::borrow::BorrowMut<PageBuf> for NewFrame {
    fn borrow_mut(&mut self) -> &mut PageBuf {
        self
    }
}

impl Frame {
    /// Makes the keeper hold the frame as well. Returns its number.
    ///
    /// # Panics
    /// The keeper holds it already.
    pub fn keep(&self) -> u32 {
        let before = self.frames.holders[self.number as usize].fetch_or(KEPT, AcqRel);
        assert!(before & KEPT == 0, "frame {} is kept already", self.number);
        self.number
    }
}

impl Clone for Frame {
    fn clone(&self) -> Self {
        self.frames.holders[self.number as usize].fetch_add(1, Relaxed);
        Self { frames: Arc::clone(&self.frames), number: self.number }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if self.frames.holders[self.number as usize].fetch_sub(1, AcqRel) == 1 {
            self.frames.free(self.number);
        }
    }
}

impl Deref for Frame {
    type Target = PageBuf;

    fn deref(&self) -> &PageBuf {
        // SAFETY: the page is within the mapping, and is only read while it has a holder.
        unsafe { &*self.frames.at(self.number).cast::<PageBuf>() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_free_when_its_last_holder_has_gone() {
        let frames = Frames::new(2).expect("frames");
        let mut first = frames.take().expect("a frame");
        first.fill(7);
        let first = first.share();
        let number = first.keep();
        let again = first.clone();
        drop(first);
        assert_eq!((frames.in_use(), again[9]), (1, 7));
        drop(again);
        assert_eq!(frames.in_use(), 1);
        let kept = frames.kept(number);
        frames.let_go(number);
        assert_eq!((frames.in_use(), kept[4095]), (1, 7));
        drop(kept);
        assert_eq!((frames.in_use(), frames.with_memory()), (0, 1));
        let both = [frames.take().expect("one"), frames.take().expect("two")];
        assert!(frames.take().is_none());
        drop(both);
        assert_eq!(frames.in_use(), 0);
        frames.give_back(1);
        assert_eq!((frames.with_memory(), frames.in_use()), (1, 0));
        frames.give_back(u32::MAX);
        assert_eq!((frames.with_memory(), frames.in_use()), (0, 0));
        assert!(frames.take().expect("a frame").iter().all(|byte| *byte == 0));
    }

    #[test]
    #[should_panic(expected = "is not kept")]
    fn what_is_not_kept_cannot_be_had_by_number() {
        let frames = Frames::new(1).expect("frames");
        drop(frames.take().expect("a frame").share());
        frames.kept(0);
    }

    /// Threads share, keep and drop frames; each finds the bytes that were written first.
    #[test]
    fn frames_that_threads_share_keep_their_bytes() {
        let frames = Frames::new(64).expect("frames");
        std::thread::scope(|scope| {
            for mark in 1..=4u8 {
                let frames = &frames;
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let mut new = frames.take().expect("a frame");
                        new.fill(mark);
                        let frame = new.share();
                        let number = frame.keep();
                        let copy = frames.kept(number);
                        drop(frame);
                        frames.let_go(number);
                        assert!(copy[0] == mark && copy[4095] == mark);
                    }
                });
            }
        });
        assert_eq!(frames.in_use(), 0);
    }
}
