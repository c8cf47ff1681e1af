//! Pages that come before their faults, and where they wait for them.
//!
//! A stream of faults is kept a lead of pages ahead ([`uswap_core::readahead::streams`]), in
//! several reads at once. What arrives is not installed but stays in its buffer, and its pages stay
//! in flight for everybody else: the touch of the first of them installs all, says how far the
//! program is, and asks for what follows. So a stream costs one fault for each buffer, as if each
//! were the first, and none of them waits for the device while the lead is long enough.
//!
//! Whatever happens to a page meanwhile (unmap, remap, fork) happens to its word, and the word is
//! looked at when the page is installed, here as for any read. What nobody touches within a second
//! is dropped: it still is on the device.

pub mod ask;

use std::time::{Duration, Instant};

use uswap_store::{ObjectId, PageLoad, Spot};

use crate::io::reader::{Purpose, Read, ReadBuffer};

/// Pages of one read ahead.
const PER_READ: u32 = 64;
/// Pages after which a read ends where its run on the device ends: the rest of it would be a
/// request of its own, and the next read would begin in the middle of a run.
const WORTH_A_READ: usize = 32;
/// Reads of a space that wait for their faults, at most.
const MAX_WAITING: usize = 64;
/// How long they wait.
const MAX_AGE: Duration = Duration::from_secs(1);

/// What arrived ahead of its faults, oldest first.
#[derive(Default, Debug)]
pub struct ReadaheadCache {
    reads: Vec<(Read, Instant)>,
}

impl ReadaheadCache {
    fn has_room(&self) -> bool {
        self.reads.len() < MAX_WAITING
    }

    fn place(&self, address: u64, object: ObjectId) -> Option<usize> {
        let is_it = |load: &PageLoad| load.address == address && load.id == object;
        self.reads.iter().position(|(read, _)| read.buffer.pages.iter().any(is_it))
    }

    /// Whether the page has arrived.
    pub fn has(&self, address: u64, object: ObjectId) -> bool {
        self.place(address, object).is_some()
    }

    /// Takes the read that brought the page.
    fn take(&mut self, address: u64, object: ObjectId) -> Option<Read> {
        self.place(address, object).map(|index| self.reads.remove(index).0)
    }
}
