//! Loading pages: from memory at once, from devices by one read or a batch of reads, every page verified.

use uswap_core::{PAGE_SIZE, PageBuf, PageHash};

use crate::codec::{MAX_COMPRESSED, TAG, expand, fill};
use crate::config::{Load, LoadError, ObjectId};
use crate::devices::Bay;
use crate::put::{IO_PAGES, Scratch};
use crate::stats::add;
use crate::store::Store;
use crate::table::Place;

/// A page to be read from a device.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    device: u8,
    length: u16,
    slot: u32,
    hash: PageHash,
    /// Its position in the caller's batch.
    position: usize,
}

/// What the table says of an object, with the bytes if the pool has them.
enum Found {
    Filled(u64),
    Compressed { length: usize, hash: PageHash },
    Device(Wanted),
    Gone,
}

impl Store {
    /// Loads without ever waiting for a device.
    ///
    /// # Errors
    /// [`LoadError::Gone`] when the copy was given up; [`LoadError::Checksum`] when the pool's bytes are damaged.
    pub fn load(&self, id: ObjectId, out: &mut PageBuf) -> Result<Load, LoadError> {
        self.load_memory(id, out).map(|wanted| if wanted.is_none() { Load::Ready } else { Load::OnDevice })
    }

    /// Where the object lies if its only copy is on a device now: the device's number and the slot. Objects of one
    /// device in slots that follow one another are read by one request.
    pub fn spot_of(&self, id: ObjectId) -> Option<(u8, u32)> {
        let (shard, index) = self.split(id);
        match self.shards[shard].lock().entry(index).place {
            Place::Device { device, slot, .. } => Some((device, slot)),
            _ => None,
        }
    }

    /// Loads, waiting for a device if need be. A page with a bad checksum is read a second time. The caller has a
    /// reference; with a cached one only, the page may be `Gone` while it is read.
    ///
    /// # Errors
    /// [`LoadError`]; `out` is then undefined.
    pub fn load_blocking(&self, id: ObjectId, out: &mut PageBuf, scratch: &mut Scratch) -> Result<(), LoadError> {
        let mut last = LoadError::Gone;
        for _ in 0..2 {
            let Some(wanted) = self.load_memory(id, out)? else { return Ok(()) };
            let bay = self.bay(wanted.device);
            let page = &mut scratch.io[..PAGE_SIZE];
            let name = bay.name.clone();
            last = match bay.read(wanted.slot, page) {
                Ok(()) if self.accept(&wanted, page, out) => return Ok(()),
                Ok(()) => LoadError::Checksum { device: Some(name), slot: wanted.slot },
                Err(errno) => LoadError::Io { device: name, slot: wanted.slot, errno: errno.0 },
            };
            // Of a device that went meanwhile the second look finds the page elsewhere.
            if matches!(last, LoadError::Io { .. }) && bay.is_open() {
                return Err(last);
            }
        }
        Err(last)
    }

    /// Loads several pages, reading from each device in batches. `results` receives one result per id, in order;
    /// pages whose result is an error are undefined.
    ///
    /// # Panics
    /// When `ids` and `outs` differ in length.
    pub fn load_many_blocking(
        &self,
        ids: &[ObjectId],
        outs: &mut [Box<PageBuf>],
        results: &mut Vec<Result<(), LoadError>>,
        scratch: &mut Scratch,
    ) {
        assert_eq!(ids.len(), outs.len());
        results.clear();
        let mut wanted = std::mem::take(&mut scratch.wanted);
        wanted.clear();
        for (position, (&id, out)) in ids.iter().zip(&mut *outs).enumerate() {
            let found = self.load_memory(id, out);
            wanted.extend(found.as_ref().ok().and_then(|w| *w).map(|w| Wanted { position, ..w }));
            results.push(found.map(|_| ()));
        }
        wanted.sort_unstable_by_key(|w| (w.device, w.slot));
        for batch in wanted.chunk_by(|a, b| a.device == b.device).flat_map(|same| same.chunks(IO_PAGES)) {
            let good = self.read_batch(batch, outs, scratch);
            for (w, good) in batch.iter().zip(good) {
                if !good {
                    results[w.position] = self.load_blocking(ids[w.position], &mut outs[w.position], scratch);
                }
            }
        }
        scratch.wanted = wanted;
    }

    /// Reads pages of one device, sorted by slot, contiguous ones in one request. Says which are good; the others are
    /// to be tried alone.
    fn read_batch(&self, batch: &[Wanted], outs: &mut [Box<PageBuf>], scratch: &mut Scratch) -> [bool; IO_PAGES] {
        let bay = self.bay(batch[0].device);
        let mut good = [false; IO_PAGES];
        let slots: Vec<u32> = batch.iter().map(|w| w.slot).collect();
        let read = bay.read_slots(&slots, &mut scratch.io);
        let pages = read.into_iter().zip(scratch.io.chunks(PAGE_SIZE));
        for ((w, good), (read, page)) in batch.iter().zip(&mut good).zip(pages) {
            *good = read && self.accept(w, page, &mut outs[w.position]);
        }
        good
    }

    fn bay(&self, device: u8) -> &Bay {
        self.devices.bay(device)
    }

    /// Expands a page; `false` when it is not the one of that hash.
    pub(crate) fn expand_whole(&self, bytes: &[u8], hash: PageHash, out: &mut PageBuf) -> bool {
        expand(bytes, out) && self.hasher.hash(out) == hash
    }

    /// Expands a page as read from its slot and verifies it.
    fn accept(&self, wanted: &Wanted, page: &[u8], out: &mut PageBuf) -> bool {
        add(&self.counters.pswpin, 1);
        let right = self.expand_whole(&page[..wanted.length as usize], wanted.hash, out);
        add(&self.counters.checksum_errors, !right as u64);
        right
    }

    /// Loads from the memory tier, or says where to read.
    fn load_memory(&self, id: ObjectId, out: &mut PageBuf) -> Result<Option<Wanted>, LoadError> {
        let mut bytes = [0; MAX_COMPRESSED];
        match self.find(id, &mut bytes) {
            Found::Gone => return Err(LoadError::Gone),
            Found::Device(wanted) => return Ok(Some(wanted)),
            Found::Filled(word) => fill(out, word),
            Found::Compressed { length, hash } => {
                if !self.expand_whole(&bytes[..length], hash, out) {
                    add(&self.counters.checksum_errors, 1);
                    return Err(LoadError::Checksum { device: None, slot: 0 });
                }
            }
        }
        add(&self.counters.zswpin, 1);
        Ok(None)
    }

    /// Looks an object up, and copies its compressed bytes out.
    fn find(&self, id: ObjectId, bytes: &mut [u8; MAX_COMPRESSED]) -> Found {
        let (shard, index) = self.split(id);
        let mut guard = self.shards[shard].lock();
        let entry = guard.entry(index);
        debug_assert!(entry.refs > 0, "{id:?} is loaded without a reference");
        let hash = entry.hash;
        match entry.place {
            Place::Filled(word) => Found::Filled(word),
            Place::Device { device, length, slot } => Found::Device(Wanted { device, length, slot, hash, position: 0 }),
            Place::Gone | Place::Vacant { .. } => Found::Gone,
            Place::Pool { handle, .. } => {
                guard.set_referenced(index);
                let pool = self.pool.lock();
                let stored = &pool.read(handle)[TAG..];
                bytes[..stored.len()].copy_from_slice(stored);
                Found::Compressed { length: stored.len(), hash }
            }
        }
    }
}
