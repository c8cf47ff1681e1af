//! Memory for compressed pages: what every allocator of the pool promises, and the objects' names.
//!
//! Two allocators stand behind one trait: [`Slabs`], dense, which is used, and [`Zbud`], two
//! objects a page, which it is measured against. Both take their memory from a [`Supply`], which
//! holds the limit.
//!
//! All methods take `&self`: an allocator has the locks that it needs. Calls that name *different*
//! objects may run at the same time. Calls that name the *same* object are kept apart by whoever
//! owns its handle.

mod slabs;
mod supply;
mod whole;
mod zbud;

pub use slabs::{SLAB_SIZE, Slabs};
pub use supply::{PoolPiece, Supply};
pub use whole::OneLock;
pub use zbud::Zbud;

/// Longest object in bytes that a caller may ask for.
pub const MAX_OBJECT: usize = 4094;
/// Before the bytes of an object: their number.
const HEADER: usize = 2;

/// Names a live object of an [`Allocator`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Handle(u32);

impl Handle {
    /// The handle as a number, for packed tables.
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// The handle whose number is `bits`.
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// Why an object was not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// The limit allows no more memory.
    Limit,
    /// The limit would allow it, but there is no memory, no name, or no place for an object of this
    /// length.
    NoMemory,
}

/// What an allocator holds, at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Live objects.
    pub objects: u64,
    /// Bytes of all live objects together.
    pub stored_bytes: u64,
    /// Bytes of memory taken.
    pub used_bytes: u64,
    /// The most that `used_bytes` has been.
    pub used_max_bytes: u64,
    /// The most that `used_bytes` may become.
    pub limit_bytes: u64,
    /// Of `used_bytes`: places of objects that were freed, which only objects of their size can
    /// use.
    pub hole_bytes: u64,
    /// Pages that were given back because objects were moved, since the beginning.
    pub compacted_pages: u64,
}

/// Memory for objects of 0 to [`MAX_OBJECT`] bytes.
pub trait Allocator: Send + Sync {
    /// Its name, as users write it.
    fn name(&self) -> &'static str;

    /// Stores a copy of `bytes`.
    ///
    /// # Errors
    /// [`AllocError`]; then nothing is changed.
    ///
    /// # Panics
    /// When `bytes` is longer than [`MAX_OBJECT`].
    fn alloc(&self, bytes: &[u8]) -> Result<Handle, AllocError>;

    /// Shows the bytes of a live object. A lock is held meanwhile: copy, and no more.
    ///
    /// # Panics
    /// When `handle` names no live object.
    fn read(&self, handle: Handle, see: &mut dyn FnMut(&[u8]));

    /// Ends the life of an object. Memory that it leaves empty is given back to the system before
    /// this returns.
    ///
    /// # Panics
    /// When `handle` names no live object.
    fn free(&self, handle: Handle);

    /// Shows the objects of a thin piece of memory that would become empty if they were moved
    /// ([`Allocator::relocate`]); false when there is none. Sizes take turns, from `turn` on. A
    /// lock is held meanwhile.
    fn pick_thin(&self, turn: usize, see: &mut dyn FnMut(Handle, &[u8])) -> bool;

    /// Moves a live object to where it leaves fewer holes, and returns its new name. The old one is
    /// free.
    fn relocate(&self, handle: Handle) -> Option<Handle>;

    /// The most memory that is taken from now on. What is stored stays.
    fn set_limit(&self, bytes: u64);

    /// Bytes of memory taken: one load.
    fn used_bytes(&self) -> u64;

    /// What it holds.
    fn usage(&self) -> Usage;
}

fn length_at(memory: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([memory[at], memory[at + 1]])
}

fn set_length_at(memory: &mut [u8], at: usize, value: u16) {
    memory[at..at + HEADER].copy_from_slice(&value.to_ne_bytes());
}

fn write_object(memory: &mut [u8], at: usize, bytes: &[u8]) {
    set_length_at(memory, at, bytes.len() as u16);
    memory[at + HEADER..at + HEADER + bytes.len()].copy_from_slice(bytes);
}

// Its locks and atomics are loom's in a build for the models, and work only inside one.
#[cfg(all(test, not(loom)))]
mod tests;
