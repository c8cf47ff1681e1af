//! Memory for compressed pages: the trait of the pool's allocators, and the handles that name its
//! objects.
//!
//! Two allocators implement the trait: [`Slabs`], which is dense and is used, and [`Zbud`], which
//! keeps at most two objects in a page and serves for comparison. Both take their memory from a
//! [`Supply`], which holds the limit.
//!
//! All methods take `&self`: an allocator contains the locks that it needs. Calls that name
//! *different* objects may run at the same time. Calls that name the *same* object must not
//! overlap; the owner of the handle sees to that.

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
/// Bytes of the header that precedes an object and holds its length.
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
    /// The limit would allow it, but there is no memory, no free handle, or no place for an object
    /// of this length.
    NoMemory,
}

/// The use of an allocator's memory at one moment.
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
    /// The part of `used_bytes` that freed objects left, which only objects of the same size can
    /// use.
    pub hole_bytes: u64,
    /// Pages given back since the start because objects were moved.
    pub compacted_pages: u64,
}

/// Memory for objects of 0 to [`MAX_OBJECT`] bytes.
pub trait Allocator: Send + Sync {
    /// The name of the allocator, as users write it.
    fn name(&self) -> &'static str;

    /// Stores a copy of `bytes`.
    ///
    /// # Errors
    /// [`AllocError`]; then nothing is changed.
    ///
    /// # Panics
    /// When `bytes` is longer than [`MAX_OBJECT`].
    fn alloc(&self, bytes: &[u8]) -> Result<Handle, AllocError>;

    /// Calls `see` with the bytes of a live object. A lock is held meanwhile, so `see` is to copy
    /// the bytes and do nothing else.
    ///
    /// # Panics
    /// When `handle` names no live object.
    fn read(&self, handle: Handle, see: &mut dyn FnMut(&[u8]));

    /// Frees an object. Memory that becomes empty goes back to the system before this returns.
    ///
    /// # Panics
    /// When `handle` names no live object.
    fn free(&self, handle: Handle);

    /// Calls `see` with the objects of a nearly empty piece of memory that would become empty if
    /// they were moved ([`Allocator::relocate`]); false if there is no such piece. `turn` chooses
    /// the size with which the search begins. A lock is held meanwhile.
    fn pick_thin(&self, turn: usize, see: &mut dyn FnMut(Handle, &[u8])) -> bool;

    /// Moves a live object to a place where it leaves fewer holes, and returns its new handle. The
    /// old handle is free.
    fn relocate(&self, handle: Handle) -> Option<Handle>;

    /// Sets the most memory that the allocator takes from now on. Objects that are already stored
    /// stay.
    fn set_limit(&self, bytes: u64);

    /// Bytes of memory taken; costs one atomic load.
    fn used_bytes(&self) -> u64;

    /// The use of the allocator's memory now.
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

// In a build for the loom models the locks and atomics are loom's, which work only inside a model.
#[cfg(all(test, not(loom)))]
mod tests;
