//! Relocation: moves stored pages to another place than the one that they have on a device: for a
//! swapoff ([`crate::background::drain`]) and to free thin slots ([`crate::background::repack`]).
//!
//! Each page is read, verified, and written elsewhere or put into the pool. Then its entry is
//! changed, if it still has the place and the checksum that were read. If the object was freed
//! meanwhile and another one with the same content has come to the same place, the new copy is
//! right for that one too, since it was verified against the same checksum. A reader that looked
//! the object up before reads the old place. The bytes there stay until the slot is used again;
//! after that the reader finds that they are wrong, looks the object up again, and finds the new
//! place ([`Store::load_blocking`]).
//!
//! An object that cannot be read stays where it is.

use uswap_core::util::growth::{Growth, during};
use uswap_core::{PAGE_SIZE, PageBuf};
use uswap_sys::AlignedBuf;

use crate::background::squeeze::Taker;
use crate::codec::{MAX_COMPRESSED, TAG};
use crate::config::ObjectId;
use crate::device::extent::{Extent, unpack};
use crate::device::write_batch::{BATCH_BYTES, WriteBatch};
use crate::device::{ReadPlan, WriteLists};
use crate::object::table::ObjectPlace;
use crate::store::Store;

/// The most objects that are moved at a time. Each takes at most one slot.
pub(crate) const BATCH: usize = 60;

const _: () = assert!(BATCH < BATCH_BYTES / PAGE_SIZE);

/// An object that is to leave its place.
#[derive(Clone, Copy)]
pub(crate) struct LeavingObject {
    pub id: ObjectId,
    pub extent: Extent,
    pub check: u64,
}

/// The working memory of a thread that moves pages (768 KiB, touched only when used).
pub(crate) struct Mover {
    /// Where the next step continues: the shard, and the entry in it.
    shard: usize,
    index: u32,
    found: Vec<u32>,
    /// The objects of this step.
    pub pages: Vec<LeavingObject>,
    /// Those of them that are in `batch`.
    batched: Vec<LeavingObject>,
    batch: WriteBatch,
    io: AlignedBuf,
    plan: ReadPlan,
    extents: Vec<Extent>,
    lists: WriteLists,
    /// Which slots the thread may take.
    taker: Taker,
}

/// The result of a search for objects, besides the objects that are to leave.
pub(crate) struct Next {
    /// Copies that were only cached.
    pub given_up: u32,
    /// All objects have been looked at once since the start or since this was last true.
    pub round_done: bool,
}

/// The outcome of a step, as numbers of objects.
#[derive(Clone, Copy, Default)]
pub(crate) struct Moved {
    /// Objects that lie elsewhere now, or were freed meanwhile.
    pub moved: u32,
    /// Objects that could not be read or were damaged.
    pub unreadable: u32,
    /// Objects that neither the pool nor a device took.
    pub refused: u32,
}

impl Mover {
    pub fn new() -> Self {
        Self::for_whom(Taker::Anybody)
    }

    /// The same, for a thread that may take other slots.
    pub fn for_whom(taker: Taker) -> Self {
        Self {
            shard: 0,
            index: 0,
            found: Vec::with_capacity(BATCH),
            pages: Vec::with_capacity(BATCH),
            batched: Vec::with_capacity(BATCH),
            batch: WriteBatch::new(),
            io: AlignedBuf::zeroed(BATCH_BYTES),
            plan: ReadPlan::default(),
            extents: Vec::with_capacity(BATCH),
            lists: WriteLists::default(),
            taker,
        }
    }
}

impl Store {
    /// Puts the next objects on the device that are `wanted` into `mover`, after at most `looks`
    /// entries. Copies that are only cached are given up on the way.
    pub(crate) fn find_next(
        &self,
        device: u8,
        mover: &mut Mover,
        looks: u32,
        wanted: impl Fn(&Extent) -> bool,
    ) -> Next {
        mover.found.clear();
        mover.pages.clear();
        let mut given_up = 0;
        let mut shard = self.shards[mover.shard].lock();
        let next = shard.on_device(device, mover.index, BATCH, looks, wanted, &mut mover.found);
        for index in &mover.found {
            let entry = shard.entry(*index);
            let ObjectPlace::Device(extent) = entry.place else { continue };
            if entry.all_cached() {
                shard.set_place(*index, ObjectPlace::Gone);
                self.free_copy(Some(entry.place));
                given_up += 1;
            } else {
                let id = self.join(mover.shard, *index);
                mover.pages.push(LeavingObject { id, extent, check: entry.check });
            }
        }
        drop(shard);
        (mover.shard, mover.index) = match next {
            Some(next) => (mover.shard, next),
            None => ((mover.shard + 1..self.shards.len()).find(|shard| self.is_in_use(*shard)).unwrap_or(0), 0),
        };
        Next { given_up, round_done: next.is_none() && mover.shard == 0 }
    }

    /// Moves the pages of `mover`, which lie on `device`: with `to_pool` into the pool as many as
    /// it takes, the rest to devices. May wait for devices.
    pub(crate) fn move_pages(&self, device: u8, mover: &mut Mover, to_pool: bool) -> Moved {
        debug_assert!(mover.pages.len() <= BATCH);
        let mut report = Moved::default();
        mover.pages.sort_unstable_by_key(|page| page.extent);
        mover.batch.clear();
        mover.batch.packing = self.packing();
        mover.batched.clear();
        let mut done = 0;
        while done < mover.pages.len() {
            let extents = mover.pages[done..].iter().map(|page| page.extent);
            self.devices.bay(device).read_many(extents, &mut mover.plan, &mut mover.io);
            for n in 0..mover.plan.len() {
                let page = mover.pages[done];
                let units = mover.plan.place(n).map(|place| &mover.io[place]);
                match units.and_then(|units| self.verified(&page, units)) {
                    None => report.unreadable += u32::from(self.is_at(page.id, &page.extent)),
                    Some(bytes) if to_pool && self.move_to_pool(&page, bytes) => report.moved += 1,
                    Some(bytes) => {
                        if page.extent.is_page() {
                            mover.batch.push_page(bytes)
                        } else {
                            mover.batch.push(bytes)
                        }
                        mover.batched.push(page);
                    }
                }
                done += 1;
            }
        }
        self.move_to_devices(mover, &mut report);
        report
    }

    /// The bytes of a page as read, if they match its checksum.
    fn verified<'a>(&self, page: &LeavingObject, units: &'a [u8]) -> Option<&'a [u8]> {
        let mut whole: PageBuf = [0; PAGE_SIZE];
        let bytes = unpack(units)?;
        self.expand_whole(bytes, page.check, &mut whole).then_some(bytes)
    }

    /// Moves the page into the pool, if its bytes are compressed and there is room.
    fn move_to_pool(&self, page: &LeavingObject, bytes: &[u8]) -> bool {
        let mut tagged = [0; TAG + MAX_COMPRESSED];
        let length = TAG + bytes.len();
        if length > tagged.len() {
            return false;
        }
        tagged[..TAG].copy_from_slice(&page.id.to_bits().to_ne_bytes());
        tagged[TAG..length].copy_from_slice(bytes);
        let stored = during(Growth::Pool, || self.pool.alloc(&tagged[..length]));
        let Ok(handle) = stored else { return false };
        self.settle_moved(page, ObjectPlace::pool(handle));
        true
    }

    fn move_to_devices(&self, mover: &mut Mover, report: &mut Moved) {
        mover.extents.clear();
        self.write_objects(&mut mover.batch, &mut mover.extents, &mut mover.lists, mover.taker);
        for (page, extent) in mover.batched.iter().zip(&mover.extents) {
            self.note_whole(extent);
            self.settle_moved(page, ObjectPlace::Device(*extent));
        }
        report.moved += mover.extents.len() as u32;
        report.refused += (mover.batched.len() - mover.extents.len()) as u32;
    }

    /// Makes the entry of a page name its new copy in `new`, if it still names the old place;
    /// otherwise the object was freed meanwhile, or its copy given up.
    fn settle_moved(&self, page: &LeavingObject, new: ObjectPlace) {
        let (shard, index) = self.split(page.id);
        let mut guard = self.shards[shard].lock();
        let old = ObjectPlace::Device(page.extent);
        let entry = guard.entry(index);
        let same = entry.place == old && entry.check == page.check;
        if same {
            guard.set_place(index, new);
        }
        drop(guard);
        self.free_copy(Some(if same { old } else { new }));
    }
}
