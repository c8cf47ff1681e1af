//! Descriptors held in reserve, for calls that must not fail when no other descriptor is free.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::check_int;

/// The reserve. A descriptor that a thread gives up is free for a moment only: another thread may
/// take it first.
#[derive(Debug)]
pub struct Spares {
    held: Mutex<Vec<OwnedFd>>,
    wanted: usize,
    short: AtomicBool,
    given_up: AtomicBool,
}

impl Spares {
    /// Holds `wanted` descriptors.
    ///
    /// # Errors
    /// EMFILE, ENFILE: fewer descriptors are free.
    pub fn hold(wanted: usize) -> io::Result<Self> {
        let mut held = Vec::with_capacity(wanted);
        for _ in 0..wanted {
            held.push(another()?);
        }
        let (short, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { held: Mutex::new(held), wanted, short, given_up })
    }

    /// Whether the reserve may hold fewer descriptors than it should.
    pub fn are_short(&self) -> bool {
        self.short.load(SeqCst)
    }

    /// Whether all descriptors were given up for good: from then on other users should take none.
    pub fn are_given_up(&self) -> bool {
        self.given_up.load(SeqCst)
    }

    /// Closes one descriptor; `false`: the reserve is empty.
    pub fn give_up_one(&self) -> bool {
        self.short.store(true, SeqCst);
        self.held().pop().is_some()
    }

    /// Closes all descriptors, for good.
    pub fn give_up_all(&self) {
        self.short.store(true, SeqCst);
        self.given_up.store(true, SeqCst);
        self.held().clear();
    }

    /// Refills the reserve, if at least `headroom` descriptors stay free for others then. Returns
    /// whether they do.
    pub fn fill(&self, headroom: usize) -> bool {
        if self.are_given_up() {
            return false;
        }
        let mut held = self.held();
        let mut room = Vec::with_capacity(headroom);
        while room.len() < headroom
            && let Ok(one) = another()
        {
            room.push(one);
        }
        while room.len() == headroom
            && held.len() < self.wanted
            && let Ok(one) = another()
        {
            held.push(one);
        }
        let enough = held.len() == self.wanted && room.len() == headroom;
        self.short.store(!enough, SeqCst);
        enough
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Vec<OwnedFd>> {
        self.held.lock().expect("spares")
    }
}

/// A descriptor that only takes up its place.
fn another() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = check_int(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
    // SAFETY: a new fd that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether a call failed because descriptors, or memory for them, were short, so that its failure
/// says nothing else.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_up_is_taken_back_but_not_after_all_were() {
        let spares = Spares::hold(3).expect("three");
        assert!(!spares.are_short());
        assert!((0..3).all(|_| spares.give_up_one()) && !spares.give_up_one());
        assert!(spares.are_short() && spares.fill(2) && !spares.are_short());
        spares.give_up_all();
        assert!(!spares.fill(0) && spares.are_given_up() && !spares.give_up_one());
    }
}
