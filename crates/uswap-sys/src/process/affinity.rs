//! Which processors a thread may run on (sched_setaffinity(2)).

use std::io;

use crate::check_int;

/// Maximum number of processors in a set.
const MAX: usize = 1024;

/// A set of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processors([u64; MAX / 64]);

impl Processors {
    /// Every processor number: permits all processors that cpusets allow.
    pub const ALL: Self = Self([u64::MAX; MAX / 64]);

    /// The set of this processor alone; `None` for a number above 1023.
    pub fn only(number: u32) -> Option<Self> {
        let mut set = [0; MAX / 64];
        *set.get_mut(number as usize / 64)? |= 1 << (number % 64);
        Some(Self(set))
    }

    /// The processors that thread `tid` may use (0: the calling thread).
    ///
    /// # Errors
    /// ESRCH.
    pub fn of(tid: u32) -> io::Result<Self> {
        let mut set = [0u64; MAX / 64];
        // SAFETY: the set is as long as said.
        check_int(unsafe { libc::sched_getaffinity(tid as i32, size_of_val(&set), set.as_mut_ptr().cast()) })?;
        Ok(Self(set))
    }

    /// Restricts thread `tid` (0: the calling thread) to these processors.
    ///
    /// # Errors
    /// ESRCH; EPERM for a thread of another user; EINVAL when the thread's cpuset allows none of
    /// them.
    pub fn confine(&self, tid: u32) -> io::Result<()> {
        // SAFETY: the set is as long as said and only read.
        check_int(unsafe { libc::sched_setaffinity(tid as i32, size_of_val(&self.0), self.0.as_ptr().cast()) })
            .map(drop)
    }

    /// The number of processors in the set.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_confined_and_let_go() {
        let before = Processors::of(0).expect("affinity");
        let first =
            (0..64).find_map(|n| Processors::only(n).filter(|one| one.confine(0).is_ok())).expect("a processor");
        assert_eq!(Processors::of(0).expect("affinity"), first);
        assert_eq!(first.count(), 1);
        before.confine(0).expect("let go");
        assert_eq!(Processors::of(0).expect("affinity"), before);
        assert!(Processors::only(1024).is_none());
    }
}
