//! How far a detach is, as users are told.

use serde::{Deserialize, Serialize};

/// A detach, under way or given up, as it is told to users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DetachProgress {
    /// It is under way.
    pub running: bool,
    /// Pages that were to come back when it began.
    pub pages: u64,
    /// Gauge: pages that are to come back still.
    pub pages_left: u64,
    /// Why it was given up; null: it was not.
    pub error: Option<String>,
}
