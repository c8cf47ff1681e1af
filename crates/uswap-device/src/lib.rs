//! Devices that hold swap slots: the [`Device`] trait, its implementations, wrappers that delay,
//! fail, corrupt and count, and the kinds of places that a swap specification ([`SwapSpec`]) can
//! name.
#![forbid(unsafe_code)]
// Only commands speak to the user, and the standard streams are the programs'.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod device;
mod file;
mod file_queue;
pub mod kinds;
mod mirror;
pub mod nbd;
mod open;
mod queue;
mod ram;
pub mod spec;
mod wrap;

pub use device::{ConnectionState, ConnectionStatus, Device, DeviceClass, Errno, News, ReadRequest};
pub use file::FileDevice;
pub use mirror::Mirror;
pub use open::{IoBackend, OpenError};
pub use queue::{QUEUE_DEPTH, QueuedEnd, QueuedRead, ReadQueue};
pub use ram::RamDevice;
pub use spec::{SwapPlace, SwapSpec};
pub use wrap::{Corrupt, Delay, DeviceCounters, Fail, Stats, When};
