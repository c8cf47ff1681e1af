//! Loading pages by one request for which no thread waits: plans the request, and takes its result.
//!
//! This is only for pages that one request can bring: uncompressed pages in neighbouring slots,
//! which come straight to their places, or compressed pages that lie side by side, which come to
//! the end of the buffer and are expanded to its beginning. Between request and answer an object
//! may move, so it is looked up again, and a page that is not as expected is left to
//! [`Store::load_pages`], which tries again and decides.

use uswap_core::PAGE_SIZE;
use uswap_device::ReadQueue;

use crate::config::LoadError;
use crate::device::extent::UNIT;
use crate::device::{slot_and_skip, whole_sectors};
use crate::path::load::Wanted;
use crate::path::load_pages::PageLoad;
use crate::store::Store;

/// A request that brings some pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuedLoad {
    /// Device.
    pub device: u8,
    /// First slot.
    pub slot: u32,
    /// Bytes of the first slot that are skipped.
    pub skip: usize,
    /// Bytes to be read.
    pub length: usize,
    /// Offset in the buffer to which they are read.
    pub at: usize,
    /// The pages are not compressed.
    whole: bool,
}

impl Store {
    /// A queue of reads of one thread; see [`uswap_device::Device::read_queue`].
    pub fn read_queue(&self, device: u8) -> Option<Box<dyn ReadQueue>> {
        self.bay(device).read_queue()
    }

    /// The request that brings these pages into a buffer of `room` bytes. `None`: no single request
    /// does.
    pub fn plan_queued(&self, pages: &[PageLoad], room: usize) -> Option<QueuedLoad> {
        let first = self.wanted_of(pages.first()?.id)?.extent;
        let (mut end, mut last) = (first.bytes().start, first.bytes().start);
        for load in pages {
            let extent = self.wanted_of(load.id)?.extent;
            let alike = extent.device == first.device && extent.is_page() == first.is_page();
            let follows = if first.is_page() { extent.bytes().start == end } else { extent.bytes().start >= last };
            if !alike || !follows {
                return None;
            }
            (last, end) = (extent.bytes().start, extent.bytes().end);
        }
        let sectors = whole_sectors(&(first.bytes().start..end), self.bay(first.device).sector()?);
        let (slot, skip) = slot_and_skip(sectors.start);
        let length = (sectors.end - sectors.start) as usize;
        let pages_end = pages.len() * PAGE_SIZE;
        let at = if first.is_page() { Some(0) } else { room.checked_sub(length).filter(|at| *at >= pages_end) };
        let at = at.filter(|at| at + length <= room)?;
        Some(QueuedLoad { device: first.device, slot, skip, length, at, whole: first.is_page() })
    }

    /// Takes the bytes that the request brought. Afterwards each page lies verified at its place in
    /// `bytes`, or its result is an error, which means only that [`load_pages`](Self::load_pages)
    /// must load it. `true`: all pages are there.
    pub fn accept_queued(&self, load: &QueuedLoad, pages: &mut [PageLoad], bytes: &mut [u8]) -> bool {
        self.bay(load.device).note_read(load.length);
        let (outs, read) = bytes.split_at_mut(if load.whole { load.length } else { load.at });
        let outs = outs.as_chunks_mut::<PAGE_SIZE>().0;
        let start = u64::from(load.slot) * PAGE_SIZE as u64 + load.skip as u64;
        let mut all = true;
        for (position, page) in pages.iter_mut().enumerate() {
            let place = self.wanted_of(page.id).filter(|wanted| wanted.extent.device == load.device);
            let right = place.is_some_and(|wanted| match load.whole {
                true => {
                    wanted.extent.bytes().start == start + (position * PAGE_SIZE) as u64
                        && wanted.extent.is_page()
                        && self.is_right(&wanted, &outs[position])
                }
                false => units_in(&wanted, start, &read[..load.length])
                    .is_some_and(|units| self.accept(&wanted, units, &mut outs[position])),
            });
            page.result = if right { Ok(()) } else { Err(LoadError::Gone) };
            all &= right;
        }
        all
    }
}

/// The units of a compressed object in bytes that were read from `start` on.
fn units_in<'a>(wanted: &Wanted, start: u64, read: &'a [u8]) -> Option<&'a [u8]> {
    let at = wanted.extent.bytes().start.checked_sub(start)? as usize;
    let length = usize::from(wanted.extent.units) * UNIT;
    if wanted.extent.is_page() { None } else { read.get(at..at + length) }
}
