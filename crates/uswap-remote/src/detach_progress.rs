//! Progress of a detach, as the status reports it.

use serde::{Deserialize, Serialize};

/// A detach, under way or given up, as the status reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DetachProgress {
    /// It is under way.
    pub running: bool,
    /// Pages that were to come back when the detach began.
    pub pages: u64,
    /// Gauge: pages that are still to come back.
    pub pages_left: u64,
    /// Why it was given up; null: it was not.
    pub error: Option<String>,
}
