//! What a run is asked to do.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use uswap_core::util::size::Size;
use uswap_device::nbd::{MAX_CONNECTIONS, NbdUri};

use crate::pager::accounting::pool_share::PoolShare;
pub use crate::remote::process_tree::Target;
pub use uswap_store::{AllocatorKind, Compression, Tier};

/// A place for swapped pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapPlace {
    /// An unnamed file in this directory.
    UnnamedIn(PathBuf),
    /// This file or block device.
    Path(PathBuf),
    /// Uncompressed memory (for experiments).
    Ram,
    /// An export of an NBD server.
    Nbd(NbdUri),
}

impl std::str::FromStr for SwapPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("a place is missing".into()),
            "ram" => Ok(Self::Ram),
            uri if uri.contains("://") => uri.parse().map(Self::Nbd),
            path if Path::new(path).is_dir() => Err("that is a directory; name a file in it, or a block device".into()),
            size if is_meant_as_size(size) => {
                Err(format!("that is a size; a place comes first: PATH,size={size} (a file of this name is ./{size})"))
            }
            path => Ok(Self::Path(path.into())),
        }
    }
}

/// A size with its unit, and no file of that name is there.
fn is_meant_as_size(text: &str) -> bool {
    text.parse::<Size>().is_ok() && text.ends_with(|c: char| c.is_alphabetic() || c == '%') && !Path::new(text).exists()
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
    /// How long a server may take to answer before its pages count as lost.
    pub timeout: Option<Duration>,
    /// Connections to a server.
    pub connections: Option<u32>,
    /// Where each page is written too.
    pub mirror: Option<SwapPlace>,
}

impl std::str::FromStr for SwapSpec {
    type Err = String;

    /// `PLACE[,prio=N][,size=SIZE][,mirror=PLACE]`, where PLACE is a path, `ram` or a URI; of servers also
    /// `[,timeout=SECONDS][,connections=N]`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let place = parts.next().unwrap_or_default().parse()?;
        let mut spec = Self { place, priority: 0, size: None, timeout: None, connections: None, mirror: None };
        parts.try_for_each(|option| spec.set(option))?;
        if !spec.is_remote() && (spec.timeout.is_some() || spec.connections.is_some()) {
            return Err("timeout= and connections= are for NBD servers".into());
        }
        Ok(spec)
    }
}

impl SwapSpec {
    /// Whether a server has a part in it.
    fn is_remote(&self) -> bool {
        [Some(&self.place), self.mirror.as_ref()].iter().any(|place| matches!(place, Some(SwapPlace::Nbd(_))))
    }

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
            Some(("timeout", seconds)) => match seconds.parse() {
                Ok(seconds @ 1..=3600) => self.timeout = Some(Duration::from_secs(seconds)),
                _ => return Err(format!("timeout={seconds}: between 1 and 3600 seconds")),
            },
            Some(("connections", number)) => match number.parse() {
                Ok(number) if (1..=MAX_CONNECTIONS).contains(&number) => self.connections = Some(number),
                _ => return Err(format!("connections={number}: between 1 and {MAX_CONNECTIONS}")),
            },
            Some(("mirror", place)) => {
                let place = place.parse().map_err(|error| format!("mirror={place}: {error}"))?;
                if place == self.place {
                    return Err("a mirror has two different places".into());
                }
                self.mirror = Some(place);
            }
            _ => {
                let known = "prio=N, size=SIZE, timeout=SECONDS, connections=N, mirror=PLACE";
                return Err(format!("unknown option {option:?} ({known})"));
            }
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
    /// Where the budget comes from, in words.
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
    /// Agents are brought to programs that have not loaded one.
    pub attach: bool,
    /// Nothing is started: this program is attached to.
    pub target: Option<Target>,
    /// Where to tell that it was, and that nobody listens to what is said from then on.
    pub ready: Option<Arc<OwnedFd>>,
    /// The run's name.
    pub name: String,
    /// 0 quiet, 1 summary, 2 and more: what happens.
    pub verbosity: u8,
    /// The program, found.
    pub program: CString,
    /// Its arguments, the name first.
    pub arguments: Vec<CString>,
    /// Where touches are recorded.
    pub record: Option<crate::pager::record::Record>,
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
        let plain = |place| SwapSpec { place, priority: 0, size: None, timeout: None, connections: None, mirror: None };
        assert_eq!(spec, SwapSpec { priority: -3, size: Some(3 << 29), ..plain(place) });
        assert_eq!("ram".parse(), Ok(plain(SwapPlace::Ram)));
        for bad in ["", ",prio=1", "/", "http://host/x", "f,prio=", "f,prio=x", "f,size=50%", "f,size=x", "f,x=1", "f,"]
        {
            assert!(bad.parse::<SwapSpec>().is_err(), "{bad}");
        }
    }

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

    #[test]
    fn servers_have_options_of_their_own() {
        let spec: SwapSpec = "nbd://host/x,timeout=5,prio=2,connections=3".parse().expect("a spec");
        let place = SwapPlace::Nbd("nbd://host/x".parse().expect("a URI"));
        let timeout = Some(Duration::from_secs(5));
        assert_eq!(spec, SwapSpec { place, priority: 2, size: None, timeout, connections: Some(3), mirror: None });
        for bad in ["timeout=0", "timeout=x", "timeout=3601", "connections=0", "connections=17", "connections=x"] {
            assert!(format!("nbd://host/x,{bad}").parse::<SwapSpec>().is_err(), "{bad}");
        }
        let mirrored: SwapSpec = "/file,mirror=nbd://host/x,timeout=5".parse().expect("a spec");
        assert_eq!(mirrored.mirror, Some(SwapPlace::Nbd("nbd://host/x".parse().expect("a URI"))));
        for option in ["timeout=5", "connections=2", "mirror=", "mirror=/file", "mirror=/", "mirror=nbd://"] {
            assert!(format!("/file,{option}").parse::<SwapSpec>().is_err(), "{option}");
        }
    }
}
