//! The configuration of a run.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use uswap_device::SwapSpec;

use uswap_pager::accounting::pool_share::PoolShare;
pub use uswap_remote::process_tree::Target;
pub use uswap_store::{AllocatorKind, Compression, Tier};

/// How the budget is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ram {
    /// A fixed number of bytes.
    Bytes(u64),
    /// Balanced with the file pages of the cgroup, where the cgroup has a limit.
    Auto,
}

/// The configuration of one run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The budget.
    pub ram: Ram,
    /// The budget in bytes to begin with.
    pub limit: u64,
    /// The origin of the budget, in words.
    pub origin: String,
    /// How much of the budget the pool may take.
    pub pool_share: PoolShare,
    /// How pages are kept in memory.
    pub tier: Tier,
    /// Processes may be made to wait for their turn.
    pub load_control: bool,
    /// Devices, highest priority first; none: an unnamed file in $TMPDIR or /var/tmp.
    pub swap: Vec<SwapSpec>,
    /// Where to write the counters at the end.
    pub stats: Option<PathBuf>,
    /// Agents are injected into programs that have not loaded one.
    pub attach: bool,
    /// The program to attach to; then no command is started.
    pub target: Option<Target>,
    /// Descriptor on which the run reports that it has attached; from then on its messages have no
    /// reader.
    pub ready: Option<Arc<OwnedFd>>,
    /// The run's name.
    pub name: String,
    /// 0: quiet; 1: a summary; 2 and more: events too.
    pub verbosity: u8,
    /// Path of the program, as the search has found it.
    pub program: CString,
    /// Its arguments, its name first.
    pub arguments: Vec<CString>,
    /// Where the record of page touches goes.
    pub record: Option<uswap_pager::record::TouchRecord>,
    /// Fault points of a test.
    pub fault_points: String,
}

/// Exit statuses of uswap itself; everything else is the command's own.
pub mod exit {
    /// Bad usage, or something that is needed is missing: nothing was started.
    pub const REFUSED: i32 = 125;
    /// The command cannot be executed for lack of permission.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_shares_read_as_they_are_written() {
        for (text, share) in [
            ("auto", PoolShare::Adaptive(PoolShare::MAX)),
            ("auto:40", PoolShare::Adaptive(40.0)),
            ("auto:0", PoolShare::Adaptive(0.0)),
            ("35", PoolShare::Fixed(35.0)),
            ("12.5", PoolShare::Fixed(12.5)),
        ] {
            assert_eq!((text.parse(), share.to_string().as_str()), (Ok(share), text));
        }
        assert_eq!("auto:40%".parse(), Ok(PoolShare::Adaptive(40.0)));
        assert_eq!("40%".parse(), Ok(PoolShare::Fixed(40.0)));
        for bad in ["", "auto:", "auto:91", "auto:-1", "auto40", "-1", "91", "nan", "auto:nan", "40%%", "inf"] {
            assert!(bad.parse::<PoolShare>().is_err(), "{bad}");
        }
    }
}
