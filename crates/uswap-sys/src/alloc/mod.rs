//! Memory of this process: reservations, tables of zeros, shared memory, lent buffers, frames, the
//! guarded allocator.

pub mod frames;
pub(crate) mod guard;
pub mod heap;
pub mod loan;
pub(crate) mod reservation;
pub mod shared;
pub mod zeroed;
