//! Load control of a run: what its policy sees of the processes, and decides.

pub mod controller;
pub mod servers;
