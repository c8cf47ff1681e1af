//! Files, sockets, rings and events.

pub(crate) mod aligned;
pub mod events;
pub(crate) mod file;
pub mod net;
pub(crate) mod read_ring;
pub(crate) mod ring;
pub mod socket;
pub mod spares;
pub mod terminal;
