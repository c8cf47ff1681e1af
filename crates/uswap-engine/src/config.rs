//! What a run is asked to do.

use std::ffi::CString;
use std::path::PathBuf;

/// A place for swapped pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapPlace {
    /// An unnamed file in this directory.
    UnnamedIn(PathBuf),
    /// This file or block device.
    Path(PathBuf),
    /// Uncompressed memory (for experiments).
    Ram,
}

/// A place with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapSpec {
    /// Where.
    pub place: SwapPlace,
    /// Higher is used first.
    pub priority: i32,
    /// Most bytes used there.
    pub size: Option<u64>,
}

/// How the budget follows the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ram {
    /// A fixed number of bytes.
    Bytes(u64),
    /// In a cgroup with a limit: in balance with its file pages.
    Auto,
}

/// One run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The budget.
    pub ram: Ram,
    /// The budget in bytes to begin with.
    pub limit: u64,
    /// Most of the budget for the pool, in percent.
    pub pool_percent: f64,
    /// Devices, highest priority first; none: an unnamed file in $TMPDIR or /var/tmp.
    pub swap: Vec<SwapSpec>,
    /// Where to write the counters at the end.
    pub stats: Option<PathBuf>,
    /// The run's name.
    pub name: String,
    /// 0 quiet, 1 summary, 2 and more: what happens.
    pub verbosity: u8,
    /// The program, found.
    pub program: CString,
    /// Its arguments, the name first.
    pub arguments: Vec<CString>,
    /// Fault points of a test.
    pub fault_points: String,
}

/// Exit statuses of uswap itself; everything else is the command's own.
pub mod exit {
    /// Bad usage, or something that is needed is missing: nothing was started.
    pub const REFUSED: i32 = 125;
    /// The command may not be executed.
    pub const NOT_EXECUTABLE: i32 = 126;
    /// There is no such command.
    pub const NOT_FOUND: i32 = 127;
    /// The engine died; the tree was killed.
    pub const ENGINE_DIED: i32 = 70;
    /// Swap space was exhausted; the tree was killed.
    pub const EXHAUSTED: i32 = 71;
    /// An internal rule was broken; the tree was killed before it could read wrong bytes.
    pub const BROKEN: i32 = 72;
}
