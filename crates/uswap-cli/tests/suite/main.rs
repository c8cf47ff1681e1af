//! The tests of the command that can run side by side, one module for one subject: one program, so
//! that it is linked once and there is something to run while a test waits. Tests of figures that
//! other load would change are programs of their own beside it.

#[path = "../common/mod.rs"]
#[macro_use]
mod common;

mod agent;
mod attach;
mod command;
mod compressors;
mod core;
mod counters;
mod dependencies;
mod detach;
mod doctor;
mod failures;
mod groups;
mod growing;
mod hints;
mod house;
mod lab;
mod mount;
mod mount_groups;
mod mount_rights;
mod nbd;
mod network;
mod programs;
mod rules;
mod sanitizers;
mod status;
mod swapoff;
mod swaps;
mod terminal;
mod torture;
mod users;
mod victims;
