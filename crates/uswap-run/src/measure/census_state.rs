//! When unmanaged programs were looked for, and what was found.

use std::time::{Duration, Instant};

use crate::measure::unmanaged::UnmanagedScan;
use uswap_remote::agent::unreachable::Callers;

/// When unmanaged programs were looked for, and what was found.
#[derive(Debug)]
pub struct CensusState {
    pub last: Instant,
    pub took: Duration,
    pub found: UnmanagedScan,
    pub callers: Callers,
}
