//! When unmanaged programs were looked for, and what was found.

use std::time::{Duration, Instant};

use crate::remote::agent::unreachable::Callers;
use crate::run::measure::unmanaged::UnmanagedScan;

/// When unmanaged programs were looked for, and what was found.
#[derive(Debug)]
pub struct CensusState {
    pub last: Instant,
    pub took: Duration,
    pub found: UnmanagedScan,
    pub callers: Callers,
}
