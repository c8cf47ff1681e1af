//! What a run is asked to do.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use uswap_core::size::Size;

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

impl std::str::FromStr for SwapSpec {
    type Err = String;

    /// `PLACE[,prio=N][,size=SIZE]`, where PLACE is a path or `ram`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let place = match parts.next().unwrap_or_default() {
            "" => return Err("a place is missing".into()),
            "ram" => SwapPlace::Ram,
            url if url.contains("://") => return Err("network devices are not built in yet".into()),
            path if Path::new(path).is_dir() => {
                return Err("that is a directory; name a file in it, or a block device".into());
            }
            path => SwapPlace::Path(path.into()),
        };
        let mut spec = Self { place, priority: 0, size: None };
        parts.try_for_each(|option| spec.set(option))?;
        Ok(spec)
    }
}

impl SwapSpec {
    fn set(&mut self, option: &str) -> Result<(), String> {
        match option.split_once('=') {
            Some(("prio", number)) => {
                self.priority = number.parse().map_err(|_| format!("prio={number} is not a number"))?;
            }
            Some(("size", size)) => match size.parse() {
                Ok(Size::Bytes(bytes)) => self.size = Some(bytes),
                Ok(Size::Percent(_)) => return Err("size in bytes, please".into()),
                Err(error) => return Err(error.to_string()),
            },
            _ => return Err(format!("unknown option {option:?} (prio=N, size=SIZE)")),
        }
        Ok(())
    }
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
    /// Most of the budget for the pool, in percent; `None`: by what faults cost.
    pub pool_percent: Option<f64>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_places_are_read_with_their_options() {
        let spec: SwapSpec = "/no/such/swap,prio=-3,size=1.5G".parse().expect("a spec");
        let place = SwapPlace::Path("/no/such/swap".into());
        assert_eq!(spec, SwapSpec { place, priority: -3, size: Some(3 << 29) });
        assert_eq!("ram".parse(), Ok(SwapSpec { place: SwapPlace::Ram, priority: 0, size: None }));
        for bad in ["", ",prio=1", "/", "nbd://host/x", "f,prio=", "f,prio=x", "f,size=50%", "f,size=x", "f,x=1", "f,"]
        {
            assert!(bad.parse::<SwapSpec>().is_err(), "{bad}");
        }
    }
}
