//! State of the scans for unmanaged programs.

use std::time::{Duration, Instant};

use crate::measure::unmanaged::UnmanagedScan;
use uswap_remote::agent::unreachable::Callers;

/// State of the scans for unmanaged programs: the last scan, its duration, and its findings.
#[derive(Debug)]
pub struct CensusState {
    pub last: Instant,
    pub took: Duration,
    pub found: UnmanagedScan,
    pub callers: Callers,
}
