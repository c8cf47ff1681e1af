//! `uswap mount`: a folder tree with a cache of its own, which one big scan does not flush.
//!
//! [`cache`] has the content of files: in memory, compressed, on devices. [`tree`] is the file
//! system: it does on the source what the kernel asks for, and reads pass the cache. [`fuse`] is
//! the protocol with the kernel. [`mount`] ties them together.
#![forbid(unsafe_code)]

pub mod auto_ram;
pub mod cache;
pub mod control;
pub mod fuse;
pub mod group_orders;
pub mod mount;
mod pace;
pub mod swapoff;
pub mod tree;
mod warnings;

use uswap_device::{Device, SwapSpec};

/// The least memory that a mount works in, in bytes.
pub const MIN_RAM: u64 = 32 << 20;
/// Memory of the process beside the cache: its threads and their buffers.
pub const OVERHEAD: u64 = 12 << 20;
/// Size of a place for pages that has none of its own, in multiples of the memory.
const USUAL: u64 = 4;

/// Opens a place for pages that leave memory.
///
/// # Errors
/// For the user: why it cannot be used.
pub fn open_device(spec: &SwapSpec, ram: u64) -> Result<Box<dyn Device>, String> {
    spec.open(USUAL * ram)
}
