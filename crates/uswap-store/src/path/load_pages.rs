//! Loading pages directly to their destination, as the engine's reader threads do, without a copy
//! and without allocating.
//!
//! An uncompressed page, which fills a slot of a device, is read straight to its destination;
//! neighbours in neighbouring slots come by one request, and all requests to a device are handed
//! over together, so that one round trip serves them. Compressed pages are loaded as in `load.rs`.

use uswap_core::{PAGE_SIZE, PageBuf};
use uswap_device::{DeviceClass, ReadRequest};

use crate::config::{LoadError, ObjectId};
use crate::path::load::{LoadScratch, Wanted};
use crate::stats::add;
use crate::store::Store;

/// Pages that are handled together.
const TOGETHER: usize = 64;

/// A page to be loaded, and the result.
#[derive(Clone, Debug)]
pub struct PageLoad {
    /// The object of the page.
    pub id: ObjectId,
    /// For the caller: the address at which the page is wanted.
    pub address: u64,
    /// Valid after [`Store::load_pages`].
    pub result: Result<(), LoadError>,
}

impl PageLoad {
    /// A page that is not loaded yet.
    pub fn new(address: u64, id: ObjectId) -> Self {
        Self { id, address, result: Err(LoadError::Gone) }
    }
}

impl Store {
    /// The numbers of all devices that were not removed.
    pub fn device_numbers(&self) -> Vec<u8> {
        self.devices.open().map(|(number, _)| number).collect()
    }

    /// The speed class of the device of this number; `None`: it was removed.
    pub fn class_of(&self, device: u8) -> Option<DeviceClass> {
        self.bay(device).class()
    }

    /// Whether the device of this number is reached over connections.
    pub fn is_networked(&self, device: u8) -> bool {
        self.bay(device).is_networked()
    }

    /// Loads pages, the n-th into the n-th page of `bytes` (page aligned), waiting for devices. The
    /// bytes of a page whose result is an error are undefined. The caller has references.
    ///
    /// # Panics
    /// When `bytes` is shorter than the pages.
    pub fn load_pages(&self, pages: &mut [PageLoad], bytes: &mut [u8], scratch: &mut LoadScratch) {
        assert!(bytes.len() >= pages.len() * PAGE_SIZE, "a place for each page");
        for (pages, bytes) in pages.chunks_mut(TOGETHER).zip(bytes.chunks_mut(TOGETHER * PAGE_SIZE)) {
            self.load_together(pages, bytes, scratch);
        }
    }

    fn load_together(&self, pages: &mut [PageLoad], bytes: &mut [u8], scratch: &mut LoadScratch) {
        let mut whole: [Option<Wanted>; TOGETHER] = [None; TOGETHER];
        let mut others = std::mem::take(&mut scratch.wanted);
        others.clear();
        let outs = bytes.as_chunks_mut::<PAGE_SIZE>().0;
        for (position, load) in pages.iter_mut().enumerate() {
            let found = self.load_memory(load.id, &mut outs[position]);
            match &found {
                Ok(Some(wanted)) if wanted.extent.is_page() => whole[position] = Some(*wanted),
                Ok(Some(wanted)) => others.push(Wanted { position, ..*wanted }),
                _ => {}
            }
            load.result = found.map(|_| ());
        }
        let read = self.read_whole(&whole, bytes);
        let outs = bytes.as_chunks_mut::<PAGE_SIZE>().0;
        for (position, load) in pages.iter_mut().enumerate() {
            if let Some(wanted) = &whole[position]
                && !(read[position] && self.is_right(wanted, &outs[position]))
            {
                load.result = self.load_blocking(load.id, &mut outs[position], scratch);
            }
        }
        if !others.is_empty() {
            self.load_others(pages, outs, &mut others, scratch);
        }
        scratch.wanted = others;
    }

    fn load_others(
        &self,
        pages: &mut [PageLoad],
        outs: &mut [PageBuf],
        wanted: &mut [Wanted],
        scratch: &mut LoadScratch,
    ) {
        let mut ids = [ObjectId::from_bits(0); TOGETHER];
        ids.iter_mut().zip(pages.iter()).for_each(|(id, load)| *id = load.id);
        let mut result_of = |position: usize, result| pages[position].result = result;
        self.load_wanted(wanted, |position| ids[position], outs, &mut result_of, scratch);
    }

    /// Reads whole pages to their places, device by device. Returns which were read.
    fn read_whole(&self, wanted: &[Option<Wanted>; TOGETHER], bytes: &mut [u8]) -> [bool; TOGETHER] {
        let mut read = [false; TOGETHER];
        let next = |from: u16| wanted.iter().flatten().map(|w| u16::from(w.extent.device)).filter(|d| *d >= from).min();
        let mut device = next(0);
        while let Some(number) = device {
            self.read_from(number as u8, wanted, bytes, &mut read);
            device = next(number + 1);
        }
        read
    }

    fn read_from(
        &self,
        device: u8,
        wanted: &[Option<Wanted>; TOGETHER],
        bytes: &mut [u8],
        read: &mut [bool; TOGETHER],
    ) {
        let mut requests: [ReadRequest<'_>; TOGETHER] = std::array::from_fn(|_| ReadRequest::new(0, &mut []));
        let mut places = [(0, 0); TOGETHER];
        let slot_of =
            |at: usize| wanted.get(at).copied().flatten().filter(|w| w.extent.device == device).map(|w| w.extent.slot);
        let (mut rest, mut rest_at, mut count, mut at) = (bytes, 0, 0, 0);
        while at < TOGETHER {
            let Some(first) = slot_of(at) else {
                at += 1;
                continue;
            };
            let follows = |n: usize| slot_of(at + n) == Some(first.wrapping_add(n as u32));
            let pages = (1..=TOGETHER).find(|n| !follows(*n)).unwrap_or(TOGETHER);
            let (part, behind) = rest.split_at_mut((at + pages - rest_at) * PAGE_SIZE);
            requests[count] = ReadRequest::new(first, &mut part[(at - rest_at) * PAGE_SIZE..]);
            places[count] = (at, pages);
            (rest, count, at) = (behind, count + 1, at + pages);
            rest_at = at;
        }
        self.bay(device).serve(&mut requests[..count]);
        for (request, (first, pages)) in requests.iter().zip(places).take(count) {
            read[first..first + pages].fill(request.result.is_ok());
        }
    }

    /// Verifies a page that was read to its place. A wrong page may have been moved meanwhile: it
    /// is looked up again.
    pub(crate) fn is_right(&self, wanted: &Wanted, page: &PageBuf) -> bool {
        add(&self.counters.pswpin, 1);
        self.hasher.hash(page).check() == wanted.check
    }
}
