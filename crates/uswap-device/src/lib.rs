//! Where swap slots live: the [`Device`] trait, its implementations, and wrappers that delay, fail, corrupt and count.
#![forbid(unsafe_code)]

mod device;
mod file;
mod file_queue;
mod mirror;
pub mod nbd;
mod open;
mod queue;
mod ram;
mod wrap;

pub use device::{ConnectionState, ConnectionStatus, Device, DeviceClass, Errno, News, ReadRequest};
pub use file::FileDevice;
pub use mirror::Mirror;
pub use open::{IoBackend, OpenError};
pub use queue::{QUEUE_DEPTH, QueuedEnd, QueuedRead, ReadQueue};
pub use ram::RamDevice;
pub use wrap::{Corrupt, Delay, DeviceCounters, Fail, Stats, When};
