//! Each page on two devices, so that one device may fail without loss.
//!
//! **The rule.** A write succeeds when every half that is *in* has taken it. A half that did not
//! take a write that the other half took is *out* before the write returns, and it stays out: it is
//! never read or written again, because no list of the pages that it missed is kept. So every half
//! that is in has every page whose write succeeded. The last half is never put out; its errors are
//! errors of the mirror. A half that has no room is not put out: the write then fails, and the
//! store does not read those slots.
//!
//! Reads go to the faster half. A read that fails there is repeated at the other half, and if that
//! half has the page, the first is put out: otherwise each read would wait for the whole time limit
//! of a server that is gone. A page whose bytes turn out to be wrong is read from the other half
//! ([`Device::read_again`]).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use uswap_core::util::growth::{Growth, during};

use crate::device::{ConnectionStatus, Device, DeviceClass, Errno, News, ReadRequest};

/// The value of `left` while both halves are in.
const BOTH: u8 = 2;

/// Two devices as one.
pub struct Mirror {
    name: String,
    halves: [Box<dyn Device>; 2],
    /// Index of the half that reads go to.
    faster: usize,
    /// [`BOTH`], or the index of the half that is left.
    left: AtomicU8,
    told: Mutex<MirrorTold>,
}

#[derive(Default)]
struct MirrorTold {
    note: Option<String>,
    news: Option<News>,
}

impl Mirror {
    /// Mirrors `first` and `second`; the size is that of the smaller one.
    pub fn new(first: Box<dyn Device>, second: Box<dyn Device>) -> Self {
        let name = format!("{},mirror={}", first.name(), second.name());
        let faster = usize::from(second.class().latency < first.class().latency);
        Self { name, halves: [first, second], faster, left: AtomicU8::new(BOTH), told: Mutex::default() }
    }

    /// Puts out a half that failed at what the other half did. `false`: it is the last half that is
    /// in.
    fn put_out(&self, half: usize, errno: Errno) -> bool {
        let other = 1 - half;
        match self.left.compare_exchange(BOTH, other as u8, SeqCst, SeqCst) {
            Ok(_) => {
                during(Growth::Telling, || self.tell(self.halves[half].name(), self.halves[other].name(), errno));
                true
            }
            Err(left) => left == other as u8,
        }
    }

    fn tell(&self, lost: &str, stays: &str, errno: Errno) {
        let text = format!("{lost} is out of the mirror for good ({errno}); pages are on {stays} only");
        let mut told = self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        told.note = Some(format!("{lost} is out ({errno})"));
        told.news = Some(News { grave: true, text });
    }

    /// The result of a write that only one of the two halves took.
    fn half_written(&self, failed: usize, errno: Errno) -> Result<(), Errno> {
        if errno.is_no_room() || !self.put_out(failed, errno) { Err(errno) } else { Ok(()) }
    }

    /// Reads from the half that is left; while both are in, from `first`, and after an error from
    /// the other.
    fn read_from(&self, first: usize, slot: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        match self.left.load(SeqCst) {
            BOTH => match self.halves[first].read_part(slot, skip, bytes) {
                Err(errno) => self.read_other(first, errno, slot, skip, bytes),
                read => read,
            },
            left => self.halves[left as usize].read_part(slot, skip, bytes),
        }
    }

    /// Repeats at the other half a read that failed at one half.
    fn read_other(&self, failed: usize, errno: Errno, slot: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        // A request that is invalid is invalid at both halves.
        if errno == Errno::INVALID || self.left.load(SeqCst) == failed as u8 {
            return Err(errno);
        }
        self.halves[1 - failed].read_part(slot, skip, bytes)?;
        // The other half may have been put out meanwhile: then its bytes do not count.
        if self.put_out(failed, errno) { Ok(()) } else { Err(errno) }
    }
}

impl Device for Mirror {
    fn name(&self) -> &str {
        &self.name
    }

    fn slots(&self) -> u32 {
        self.halves[0].slots().min(self.halves[1].slots())
    }

    fn class(&self) -> DeviceClass {
        self.halves[self.faster].class()
    }

    fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno> {
        match self.left.load(SeqCst) {
            BOTH => match [0, 1].map(|half: usize| self.halves[half].write(first, bytes)) {
                [Ok(()), Ok(())] => Ok(()),
                [Err(errno), Ok(())] => self.half_written(0, errno),
                [Ok(()), Err(errno)] => self.half_written(1, errno),
                [Err(one), Err(other)] => Err(if one.is_no_room() { one } else { other }),
            },
            left => self.halves[left as usize].write(first, bytes),
        }
    }

    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        self.read_from(self.faster, first, 0, bytes)
    }

    /// The coarser sector of the two halves, since a read meant for one half may go to the other.
    fn sector(&self) -> usize {
        self.halves[0].sector().max(self.halves[1].sector())
    }

    fn read_part(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        self.read_from(self.faster, first, skip, bytes)
    }

    fn read_again(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        self.read_from(1 - self.faster, first, skip, bytes)
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        match self.left.load(SeqCst) {
            BOTH => {
                self.halves[self.faster].read_many(requests);
                for request in requests {
                    if let Err(errno) = request.result {
                        let ReadRequest { slot, skip, .. } = *request;
                        request.result = self.read_other(self.faster, errno, slot, skip, request.buf);
                    }
                }
            }
            left => self.halves[left as usize].read_many(requests),
        }
    }

    fn discard(&self, first: u32, count: u32) -> Result<(), Errno> {
        match self.left.load(SeqCst) {
            BOTH => {
                let [one, other] = [0, 1].map(|half: usize| self.halves[half].discard(first, count));
                one.and(other)
            }
            left => self.halves[left as usize].discard(first, count),
        }
    }

    fn keep(&self) -> bool {
        // Both are told. A half that is out when the mirror is closed has old bytes, which their
        // checksums tell.
        let [one, other] = [0, 1].map(|half: usize| self.halves[half].keep());
        one && other
    }

    fn connections(&self) -> Vec<ConnectionStatus> {
        self.halves.iter().flat_map(|half| half.connections()).collect()
    }

    fn note(&self) -> Option<String> {
        let own = self.told.lock().ok()?.note.clone();
        own.or_else(|| self.halves.iter().find_map(|half| half.note()))
    }

    fn news(&self) -> Option<News> {
        let own = self.told.lock().ok()?.news.take();
        own.or_else(|| self.halves.iter().find_map(|half| half.news()))
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
