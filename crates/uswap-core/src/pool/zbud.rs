//! An allocator with at most two objects in a page: a new implementation of the allocator that
//! zswap began with in 2013 ("zbud: add to mm/", PATCHv12), to compare the dense one with.
//!
//! ```text
//! page:  | header chunk | first buddy -> ...... free ...... <- last buddy |        64 chunks of 64 bytes
//! ```
//! A page holds one object from its beginning and one up to its end, the *buddies*, in whole
//! chunks. A page with one object is *unbuddied* and is in the list for its number of free chunks.
//! A new object goes into the first page of the first list whose pages have enough free chunks,
//! else into a new page. An empty page goes back to the system. So no page holds more than two
//! objects, whatever their size, and no object is ever moved.
//!
//! As in the kernel there is one lock, and one chunk of each page is set aside for a header,
//! although here the header lies outside the page.

use super::supply::{PoolPiece, Supply};
use super::{AllocError, Allocator, HEADER, Handle, MAX_OBJECT, Usage, length_at, set_length_at, write_object};
use crate::PAGE_SIZE;
use crate::util::rank::{RankedMutex, ranks};

const CHUNK: usize = 64;
/// Chunks for objects.
const CHUNKS: usize = PAGE_SIZE / CHUNK - 1;
const NONE: u32 = u32::MAX;
const FREE_MARK: u16 = u16::MAX;

struct ZbudPage<P> {
    /// `None`: the entry has no page and can be used again.
    memory: Option<P>,
    /// Links of the list of unbuddied pages; `next` also of vacant ones.
    prev: u32,
    next: u32,
    /// Chunks of the first and of the last buddy, 0 for none.
    chunks: [u8; 2],
}

impl<P: PoolPiece> ZbudPage<P> {
    fn bytes(&self) -> &[u8] {
        self.memory.as_ref().expect("a handle names a page").bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().expect("a handle names a page").bytes_mut()
    }

    fn free_chunks(&self) -> usize {
        CHUNKS - usize::from(self.chunks[0]) - usize::from(self.chunks[1])
    }

    fn is_unbuddied(&self) -> bool {
        (self.chunks[0] == 0) != (self.chunks[1] == 0)
    }

    fn start_of(&self, buddy: usize) -> usize {
        if buddy == 0 { CHUNK } else { PAGE_SIZE - usize::from(self.chunks[1]) * CHUNK }
    }
}

struct ZbudPages<P> {
    pages: Vec<ZbudPage<P>>,
    vacant: u32,
    /// Lists of unbuddied pages, by their number of free chunks.
    unbuddied: [u32; CHUNKS + 1],
    live: u64,
    stored_bytes: u64,
    /// Free chunks of all pages.
    free_chunks: u64,
}

/// The allocator.
pub struct Zbud<P> {
    supply: Supply<P>,
    pages: RankedMutex<ZbudPages<P>>,
}

impl<P: PoolPiece> Zbud<P> {
    /// An allocator on pieces of one page.
    ///
    /// # Panics
    /// When the pieces have another size.
    pub fn new(supply: Supply<P>) -> Self {
        let unbuddied = [NONE; CHUNKS + 1];
        let pages = ZbudPages { pages: Vec::new(), vacant: NONE, unbuddied, live: 0, stored_bytes: 0, free_chunks: 0 };
        Self { supply, pages: RankedMutex::new(ranks::POOL, pages) }
    }
}

impl<P: PoolPiece> Allocator for Zbud<P> {
    fn name(&self) -> &'static str {
        "zbud"
    }

    fn alloc(&self, bytes: &[u8]) -> Result<Handle, AllocError> {
        assert!(bytes.len() <= MAX_OBJECT);
        let chunks = (bytes.len() + HEADER).div_ceil(CHUNK);
        if chunks > CHUNKS {
            return Err(AllocError::NoMemory);
        }
        self.pages.lock().alloc(&self.supply, chunks, bytes)
    }

    fn read(&self, handle: Handle, see: &mut dyn FnMut(&[u8])) {
        see(self.pages.lock().read(handle));
    }

    fn free(&self, handle: Handle) {
        let emptied = self.pages.lock().free(handle);
        if let Some(piece) = emptied {
            self.supply.take_back(piece, 1);
        }
    }

    fn pick_thin(&self, _turn: usize, _see: &mut dyn FnMut(Handle, &[u8])) -> bool {
        false
    }

    fn relocate(&self, _handle: Handle) -> Option<Handle> {
        None
    }

    fn set_limit(&self, bytes: u64) {
        self.supply.set_limit(bytes);
    }

    fn used_bytes(&self) -> u64 {
        self.supply.used_bytes()
    }

    fn usage(&self) -> Usage {
        let pages = self.pages.lock();
        Usage {
            objects: pages.live,
            stored_bytes: pages.stored_bytes,
            used_bytes: self.supply.used_bytes(),
            used_max_bytes: self.supply.used_max_bytes(),
            limit_bytes: self.supply.limit_bytes(),
            hole_bytes: pages.free_chunks * CHUNK as u64,
            compacted_pages: 0,
        }
    }
}

impl<P: PoolPiece> ZbudPages<P> {
    fn alloc(&mut self, supply: &Supply<P>, chunks: usize, bytes: &[u8]) -> Result<Handle, AllocError> {
        let index = match self.unbuddied[chunks..].iter().copied().find(|head| *head != NONE) {
            Some(index) => {
                self.unlist(index);
                index
            }
            None => self.begin_page(supply)?,
        };
        let page = &mut self.pages[index as usize];
        let buddy = usize::from(page.chunks[0] != 0);
        page.chunks[buddy] = chunks as u8;
        let start = page.start_of(buddy);
        write_object(page.bytes_mut(), start, bytes);
        self.list(index);
        self.free_chunks -= chunks as u64;
        self.live += 1;
        self.stored_bytes += bytes.len() as u64;
        Ok(Handle(index << 1 | buddy as u32))
    }

    fn read(&self, handle: Handle) -> &[u8] {
        let (page, buddy) = (&self.pages[(handle.0 >> 1) as usize], (handle.0 & 1) as usize);
        assert!(page.memory.is_some() && page.chunks[buddy] != 0, "object {handle:?} is not live");
        let start = page.start_of(buddy) + HEADER;
        &page.bytes()[start..start + length_at(page.bytes(), start - HEADER) as usize]
    }

    fn free(&mut self, handle: Handle) -> Option<P> {
        self.stored_bytes -= self.read(handle).len() as u64;
        self.live -= 1;
        let (index, buddy) = (handle.0 >> 1, (handle.0 & 1) as usize);
        self.unlist(index);
        let page = &mut self.pages[index as usize];
        let start = page.start_of(buddy);
        set_length_at(page.bytes_mut(), start, FREE_MARK);
        self.free_chunks += u64::from(std::mem::take(&mut page.chunks[buddy]));
        if page.chunks == [0, 0] {
            self.free_chunks -= CHUNKS as u64;
            page.next = std::mem::replace(&mut self.vacant, index);
            return page.memory.take();
        }
        self.list(index);
        None
    }

    fn begin_page(&mut self, supply: &Supply<P>) -> Result<u32, AllocError> {
        if self.vacant == NONE && self.pages.len() >= 1 << 31 {
            return Err(AllocError::NoMemory);
        }
        if !supply.charge(1) {
            return Err(AllocError::Limit);
        }
        let Some(memory) = supply.lend() else {
            supply.uncharge(1);
            return Err(AllocError::NoMemory);
        };
        assert_eq!(memory.bytes().len(), PAGE_SIZE, "zbud is made of pieces of one page");
        self.free_chunks += CHUNKS as u64;
        let page = ZbudPage { memory: Some(memory), prev: NONE, next: NONE, chunks: [0, 0] };
        if self.vacant == NONE {
            self.pages.push(page);
            return Ok(self.pages.len() as u32 - 1);
        }
        let index = self.vacant;
        self.vacant = std::mem::replace(&mut self.pages[index as usize], page).next;
        Ok(index)
    }

    /// Puts a page with one object into its list.
    fn list(&mut self, index: u32) {
        let page = &mut self.pages[index as usize];
        if !page.is_unbuddied() {
            return;
        }
        page.prev = NONE;
        let head = &mut self.unbuddied[page.free_chunks()];
        page.next = std::mem::replace(head, index);
        if page.next != NONE {
            let next = page.next as usize;
            self.pages[next].prev = index;
        }
    }

    /// Takes a page out of its list, before anything of the page changes.
    fn unlist(&mut self, index: u32) {
        let page = &self.pages[index as usize];
        if !page.is_unbuddied() {
            return;
        }
        let (prev, next, list) = (page.prev, page.next, page.free_chunks());
        match prev {
            NONE => self.unbuddied[list] = next,
            prev => self.pages[prev as usize].next = next,
        }
        if next != NONE {
            self.pages[next as usize].prev = prev;
        }
    }
}
