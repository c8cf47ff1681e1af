//! Buffers that a waiting thread lends to the thread that receives their bytes.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A place at which one buffer at a time can be lent. The lender waits meanwhile; another thread
/// may fill the buffer.
#[derive(Default)]
pub struct Desk(Mutex<Option<Lent>>);

struct Lent {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the bytes belong to the lender, who does not touch them; they are reached under the
// desk's lock only.
unsafe impl Send for Lent {}

/// Takes the buffer back, even if the lender panics.
struct TakeBack<'a>(&'a Desk);

impl Drop for TakeBack<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl Desk {
    /// A desk without a buffer.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Lends `buffer` while `work` runs. After the return no other thread touches the buffer.
    ///
    /// # Panics
    /// When another buffer is lent at this desk.
    pub fn lend<R>(&self, buffer: &mut [u8], work: impl FnOnce() -> R) -> R {
        let lent = Lent { start: NonNull::from(&mut *buffer).cast(), length: buffer.len() };
        let before = self.lock().replace(lent);
        let _end = TakeBack(self);
        assert!(before.is_none(), "two buffers on one desk");
        work()
    }

    /// Runs `work` on the lent buffer; `None` when no buffer is lent. The lender cannot take the
    /// buffer back meanwhile.
    pub fn fill<R>(&self, work: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let mut guard = self.lock();
        let lent = guard.as_mut()?;
        // SAFETY: `lend` holds the only reference to these bytes and does not use it before it has
        // taken the lock that we hold and removed the pointer; so they are alive and nobody else's.
        let bytes = unsafe { std::slice::from_raw_parts_mut(lent.start.as_ptr(), lent.length) };
        Some(work(bytes))
    }

    /// Locks the desk. A panic of the thread that filled the buffer leaves its bytes undefined, not
    /// the desk.
    fn lock(&self) -> MutexGuard<'_, Option<Lent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_fills_what_is_lent_and_nothing_afterwards() {
        let desk = Desk::new();
        let mut buffer = [0; 64];
        assert_eq!(desk.fill(|_| ()), None);
        desk.lend(&mut buffer, || {
            std::thread::scope(|scope| {
                scope.spawn(|| desk.fill(|bytes| bytes.fill(7)));
            });
        });
        assert_eq!(buffer, [7; 64]);
        assert_eq!(desk.fill(|_| ()), None);
    }

    #[test]
    fn a_panic_takes_the_buffer_back() {
        let desk = Desk::new();
        let mut buffer = [0; 8];
        let lender = std::panic::AssertUnwindSafe(|| desk.lend(&mut buffer, || panic!("the lender gives up")));
        assert!(std::panic::catch_unwind(lender).is_err());
        assert_eq!(desk.fill(|_| ()), None);
    }
}
