//! Where swap slots live: the [`Device`] trait, its implementations, and wrappers that delay, fail, corrupt and count.
#![forbid(unsafe_code)]

mod device;
mod file;
mod open;
mod ram;
mod wrap;

pub use device::{Device, DeviceClass, Errno, ReadRequest};
pub use file::FileDevice;
pub use open::{IoBackend, OpenError};
pub use ram::RamDevice;
pub use wrap::{Corrupt, Delay, DeviceCounters, Fail, Stats, When};
