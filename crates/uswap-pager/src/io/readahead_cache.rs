//! The readahead cache: pages that were read ahead, and wait here for their faults.
//!
//! For a stream of faults a number of pages (the lead) is read ahead
//! ([`uswap_core::readahead::streams`]), in several reads at once. Pages that arrive are not
//! installed; they stay in their buffer and remain marked as in flight. A touch of the first of
//! them installs all pages of the buffer, shows how far the program has come, and triggers the
//! reads that follow. So a stream costs one fault for each buffer, and no fault waits for the
//! device while the lead is long enough.
//!
//! A change of a page meanwhile (unmap, remap, fork) changes its page word, and the word is checked
//! when the page is installed, as for any read. Pages that are not touched within a second are
//! dropped: they are still on the device.

pub mod ask;

use std::time::{Duration, Instant};

use uswap_store::{ObjectId, PageLoad, Spot};

use crate::io::reader::{Purpose, Read, ReadBuffer};

/// Number of pages in one read ahead.
const PER_READ: u32 = 64;
/// Number of pages from which on a read may end where its run on the device ends: the rest would be
/// a request of its own, and the next read would begin in the middle of a run.
const WORTH_A_READ: usize = 32;
/// Maximum number of reads of a space that wait for their faults.
const MAX_WAITING: usize = 64;
/// Time for which a read waits for its fault.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Reads that have arrived ahead of their faults, oldest first.
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
