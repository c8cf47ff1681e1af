//! Neighbours that come with a page whose fault belongs to no stream: on both sides of it, from the
//! pool, or from a device as far as the same request reads them. How many are worth it is measured
//! (`neighbours.rs` of the core).

use uswap_core::PAGE;
use uswap_core::page::word::PageState;
use uswap_core::readahead::neighbours::{Around, Place, pages_below};
use uswap_store::{ObjectId, PageLoad};

use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::fault::swap_in::refault_distance;
use crate::io::reader::ReadBuffer;
use crate::space::Space;

/// The address down to which pages below the page at `address` may come. `None`: none may.
fn border_below<M: AddressSpace>(space: &Space<M>, address: u64, below: u32) -> Option<u64> {
    if below == 0 {
        return None;
    }
    space.coverage.range_of(address).map(|range| range.start)
}

impl<M: AddressSpace> Pager<M> {
    /// The neighbours that are worth bringing with the page at `address`, which lies in `place`.
    pub fn worthwhile(&self, space: &mut Space<M>, address: u64, place: Place) -> Around {
        if self.shared.faults.no_prefetch {
            return Around::default();
        }
        let (distance, now) = (refault_distance(space, address), space.now());
        let (table, store) = (&space.table, &self.shared.store);
        let lies_there = |page| match table.get(page).state() {
            PageState::Stored(object) => {
                store.spot_of(ObjectId::from_bits(object)).is_some() == (place == Place::Device)
            }
            _ => false,
        };
        let Around { above, below } = space.readahead.neighbours.fault(address, place, distance, now, lies_there);
        let most = |pages| self.most_along(space, pages + 1) - 1;
        Around { above: most(above), below: most(below) }
    }

    /// Installs at most `below` pages of the pool that lie right below the page at `address`,
    /// before that page: its thread wakes up when all are present. Returns how many were
    /// installed. The page at `address` lies in the buffer.
    pub fn install_below(&mut self, space: &mut Space<M>, address: u64, below: u32) -> u64 {
        let Some(border) = border_below(space, address, below) else { return 0 };
        let (mut first, store) = (address, &self.shared.store);
        let is_in_pool =
            |state| matches!(state, PageState::Stored(object) if store.spot_of(ObjectId::from_bits(object)).is_none());
        for page in pages_below(address, below, border) {
            let others = ((address - page) / PAGE) as i64;
            if !self.fits_beside(space, page, others, is_in_pool) {
                break;
            }
            first = page;
        }
        let mut pages = 0;
        while first + pages * PAGE < address && self.load_from_pool(space, first + pages * PAGE, 1 + pages as usize) {
            pages += 1;
        }
        if pages == 0 { 0 } else { self.install_buffer(space, first, 1, pages).1 }
    }

    /// Adds at most `below` pages to a read that lie right below the page at `address`, which is
    /// its first, as far as each lies beside the one before on the device. They come to the front
    /// of the buffer.
    pub fn read_below(&self, space: &Space<M>, address: u64, below: u32, buffer: &mut ReadBuffer) {
        let Some(border) = border_below(space, address, below) else { return };
        let mut last = buffer.pages.first().and_then(|load| self.shared.store.spot_of(load.id));
        for page in pages_below(address, below, border) {
            let PageState::Stored(object) = space.table.get(page).state() else { return };
            let object = ObjectId::from_bits(object);
            let Some((spot, known)) = self.shared.store.spot_of(object).zip(last) else { return };
            let is_beside = spot.is_read_with(&known) || known.is_read_with(&spot);
            let is_full = buffer.pages.len() == buffer.capacity();
            if !is_beside || is_full || !self.may_come_along(space, page, buffer.pages.len() as i64) {
                return;
            }
            last = Some(spot);
            buffer.pages.insert(0, PageLoad::new(page, object));
        }
    }
}
