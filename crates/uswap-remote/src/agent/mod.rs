//! Agents: their connections to the engine, their identity, and the image that programs load.

pub mod absence;
pub mod admission;
pub mod handshake;
pub mod handshake_child;
pub mod image;
pub mod image_file;
pub mod link;
pub mod listener;
pub mod processes;
pub mod unreachable;
