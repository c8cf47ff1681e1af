//! The part of an engine's shared state that is about its run.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::control::swapon::Orders;
use crate::measure::unmanaged::Unmanaged;
use uswap_remote::EngineContext;

/// State about the run that all threads share.
#[derive(Default)]
pub struct RunShared {
    /// Orders that came while the tree runs.
    pub orders: Orders,
    /// Memory may have to be managed soon: the threads for it are to begin (`threads.rs`).
    pub is_expecting: AtomicBool,
    /// Bytes of shared memory that one process had when the user was told of it; 0 until then.
    pub shared_memory: AtomicU64,
    /// Programs without an agent, as the scan for unmanaged programs has found them.
    pub unmanaged: Mutex<Vec<Unmanaged>>,
}

impl RunShared {
    /// The run's part of an engine's shared state, which `supervisor.rs` has stored there.
    pub fn of(context: &EngineContext) -> &Self {
        context.of_memory.above.downcast_ref().expect("the run of this engine")
    }
}
