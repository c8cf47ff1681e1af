//! What the threads of an engine share of its run.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::control::swapon::Orders;
use crate::measure::unmanaged::Unmanaged;
use uswap_remote::EngineContext;

/// Known to every thread.
#[derive(Default)]
pub struct RunShared {
    /// What was ordered while the tree runs.
    pub orders: Orders,
    /// Memory may have to be managed soon: the threads that look after it are to begin
    /// (`threads.rs`).
    pub is_expecting: AtomicBool,
    /// Bytes of shared memory that one process had when the user was told of it; 0 until then.
    pub shared_memory: AtomicU64,
    /// Programs that no agent speaks for, noted by the census.
    pub unmanaged: Mutex<Vec<Unmanaged>>,
}

impl RunShared {
    /// What an engine's threads share of its run. The run has put it there (`supervisor.rs`).
    pub fn of(context: &EngineContext) -> &Self {
        context.of_memory.above.downcast_ref().expect("the run of this engine")
    }
}
