//! Agents: how they come, who they are, and what is loaded into programs.

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
