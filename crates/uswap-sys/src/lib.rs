//! System calls behind safe types: the only crate with unsafe besides the agent.

mod aligned;
mod file;
mod reservation;
mod ring;

pub use aligned::AlignedBuf;
pub use file::{is_memory_file_system, punch_hole};
pub use reservation::Reservation;
pub use ring::{Ring, RingOp};
