//! Placement and priority of the engine's threads.

pub mod affinity;
pub mod boost;
