//! Where the threads of the engine run, and before whom.

pub mod affinity;
pub mod boost;
