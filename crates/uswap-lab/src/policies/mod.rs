//! The policies by name: a policy of the lab is a file of this folder and a line in this file. The
//! engine's policies are here too, from the registry of `uswap-core`.

#[cfg(test)]
#[path = "tests/properties.rs"]
mod properties;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use uswap_core::reclaim::PolicyKind;

use crate::pager::SimulatedPager;
use crate::policy::Policy;
pub use opt::NEVER;
pub use uswap::Uswap;

/// Description of the engine's own policy in help texts.
const ENGINE: &str = "the engine's own code, which sees faults and soft faults only";

/// Takes `Name = file::Type SEES "name", "what it is";` for each policy, and makes its module, its
/// name, its help and its simulator. SEES is `accesses` for a [`Policy`], which has
/// `new(distinct, capacity)`, `faults` for a [`FaultPolicy`](crate::pager::FaultPolicy), which has
/// `new(distinct)`, and `future` for a policy that knows the trace beforehand.
macro_rules! policies {
    ($($(#[$only:meta])* $kind:ident = $file:ident::$policy:ident $sees:ident $name:literal, $about:literal;)+) => {
        $($(#[$only])* mod $file;)+
        $($(#[$only])* pub use $file::$policy;)+

        /// A policy, by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$only])* #[doc = $about] $kind,)+
            /// A policy of the engine, run by the engine's own code.
            Engine(PolicyKind),
        }

        /// The policies that only the lab has.
        const OWN: &[Kind] = &[$($(#[$only])* Kind::$kind,)+];

        impl Kind {
            /// The name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $($(#[$only])* Self::$kind => $name,)+
                    Self::Engine(kind) if kind.is_default() => "uswap",
                    Self::Engine(kind) => kind.full_name(),
                }
            }

            /// A short description.
            pub fn about(self) -> &'static str {
                match self {
                    $($(#[$only])* Self::$kind => $about,)+
                    Self::Engine(kind) if kind.is_default() => ENGINE,
                    Self::Engine(kind) => kind.about(),
                }
            }

            /// A simulator with this many pages of memory.
            pub fn simulator(self, trace: &Knowledge, capacity: usize) -> Box<dyn Policy> {
                match self {
                    $($(#[$only])* Self::$kind => policies!(@$sees $policy, trace, capacity),)+
                    Self::Engine(kind) => {
                        Box::new(SimulatedPager::new(Uswap::of(kind.build(), trace.distinct), trace.distinct, capacity))
                    }
                }
            }
        }
    };
    (@accesses $policy:ident, $trace:ident, $capacity:ident) => { Box::new($policy::new($trace.distinct, $capacity)) };
    (@faults $policy:ident, $trace:ident, $capacity:ident) => {
        Box::new(SimulatedPager::new($policy::new($trace.distinct), $trace.distinct, $capacity))
    };
    (@future $policy:ident, $trace:ident, $capacity:ident) => {
        Box::new($policy::new($trace.distinct, $capacity, Arc::clone(&$trace.next_uses)))
    };
}

policies! {
    Opt = opt::Opt future "opt", "knows the future: the page that is used again last goes";
    Lru = lru::Lru accesses "lru", "least recently used";
    Fifo = fifo::FirstInFirstOut accesses "fifo", "first in, first out";
    Clock = clock::Clock accesses "clock", "FIFO with a second chance for pages that were touched";
    TwoQueue = two_queue::TwoQueue accesses "2q", "a FIFO for newcomers, an LRU list for pages that return";
    Arc = arc::AdaptiveReplacement accesses "arc",
        "pages touched once and pages touched more often, in shares that adapt";
    Lirs = lirs::Lirs accesses "lirs", "low inter-reference recency: pages by the distance of their last two touches";
    S3Fifo = s3fifo::S3Fifo accesses "s3fifo", "a small FIFO that filters for the main one";
    KernelLists = kernel::KernelLists accesses "kernel", "Linux's inactive and active list with refault distance";
    TwoList = two_list::TwoList faults "two-list", "two lists with staged pages, which see faults and soft faults only";
    UswapBits = uswap::UswapBits faults "uswap-bits",
        "the same where the kernel notes accesses: a touch of a page under test costs nothing";
    UswapMount = recency::UswapMount accesses "uswap-mount",
        "what uswap mount runs, its very code: it sees each access, and compares reuse with idle time";
    #[cfg(test)] RandomVictim = random_victim::RandomVictim accesses "random", "any page goes";
}

/// The properties of a trace that a policy may know before it runs.
#[derive(Clone, Debug)]
pub struct Knowledge {
    /// Number of pages; they are numbered from zero.
    pub distinct: usize,
    /// For each access, the index of the next access to the same page, or [`NEVER`]; empty if `opt`
    /// was not asked for.
    pub next_uses: Arc<Vec<u32>>,
}

impl Kind {
    /// All policies, in the order in which they are reported.
    pub const ALL: [Self; OWN.len() + PolicyKind::ALL.len()] = all();
}

/// The engine's default policy comes before its variant with access bits, its other policies at the
/// end.
const fn all() -> [Kind; OWN.len() + PolicyKind::ALL.len()] {
    let mut all = [Kind::Opt; OWN.len() + PolicyKind::ALL.len()];
    let (mut own, mut engine) = (0, 0);
    while own + engine < all.len() {
        let is_next = own == OWN.len() || (engine == 0 && matches!(OWN[own], Kind::UswapBits));
        if is_next {
            all[own + engine] = Kind::Engine(PolicyKind::ALL[engine]);
            engine += 1;
        } else {
            all[own + engine] = OWN[own];
            own += 1;
        }
    }
    all
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("there is no policy {text:?}; there are: {known}")
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
