//! The policies by name.

mod arc;
mod clock;
mod kernel;
mod lirs;
mod lru;
mod opt;
mod s3fifo;
mod two_list;
mod two_queue;
mod uswap;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use arc::AdaptiveReplacement;
pub use clock::{Clock, Fifo};
pub use kernel::Kernel;
pub use lirs::Lirs;
pub use lru::Lru;
pub use opt::{NEVER, Opt};
pub use s3fifo::S3Fifo;
pub use two_list::TwoList;
pub use two_queue::TwoQueue;
pub use uswap::{Uswap, UswapBits};
use uswap_core::reclaim::working_set::WorkingSet;

use crate::pager::Pager;
use crate::policy::Policy;

/// A policy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Opt`].
    Opt,
    /// [`Lru`].
    Lru,
    /// [`Fifo`].
    Fifo,
    /// [`Clock`].
    Clock,
    /// [`TwoQueue`].
    TwoQueue,
    /// [`AdaptiveReplacement`].
    Arc,
    /// [`Lirs`].
    Lirs,
    /// [`S3Fifo`].
    S3Fifo,
    /// [`Kernel`].
    Kernel,
    /// [`TwoList`].
    TwoList,
    /// [`Uswap`].
    Uswap,
    /// [`UswapBits`].
    UswapBits,
}

/// What a policy may know of a trace before it runs.
#[derive(Clone, Debug)]
pub struct Knowledge {
    /// Pages are numbered from zero up to this.
    pub distinct: usize,
    /// For each access the index of the next one of the same page, or [`NEVER`]; empty if `opt` was not asked for.
    pub next_uses: Arc<Vec<u32>>,
}

impl Kind {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 12] = [
        Self::Opt,
        Self::Lru,
        Self::Fifo,
        Self::Clock,
        Self::TwoQueue,
        Self::Arc,
        Self::Lirs,
        Self::S3Fifo,
        Self::Kernel,
        Self::TwoList,
        Self::Uswap,
        Self::UswapBits,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Opt => "opt",
            Self::Lru => "lru",
            Self::Fifo => "fifo",
            Self::Clock => "clock",
            Self::TwoQueue => "2q",
            Self::Arc => "arc",
            Self::Lirs => "lirs",
            Self::S3Fifo => "s3fifo",
            Self::Kernel => "kernel",
            Self::TwoList => "two-list",
            Self::Uswap => "uswap",
            Self::UswapBits => "uswap-bits",
        }
    }

    /// What it is, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            Self::Opt => "knows the future: the page that is used again last goes",
            Self::Lru => "least recently used",
            Self::Fifo => "first in, first out",
            Self::Clock => "FIFO with a second chance for pages that were touched",
            Self::TwoQueue => "a FIFO for newcomers, an LRU list for pages that return",
            Self::Arc => "pages touched once and pages touched more often, in shares that adapt",
            Self::Lirs => "low inter-reference recency: pages by the distance of their last two touches",
            Self::S3Fifo => "a small FIFO that filters for the main one",
            Self::Kernel => "Linux's inactive and active list with refault distance",
            Self::Uswap => "the engine's own code, which sees faults and soft faults only",
            Self::UswapBits => "the same where the kernel notes accesses: a touch of a page under test costs nothing",
            Self::TwoList => "two lists with staged pages, which see faults and soft faults only",
        }
    }

    /// A simulator of so many pages of memory.
    pub fn simulator(self, trace: &Knowledge, capacity: usize) -> Box<dyn Policy> {
        let distinct = trace.distinct;
        match self {
            Self::Opt => Box::new(Opt::new(distinct, capacity, Arc::clone(&trace.next_uses))),
            Self::Lru => Box::new(Lru::new(distinct, capacity)),
            Self::Fifo => Box::new(Fifo::new(distinct, capacity)),
            Self::Clock => Box::new(Clock::new(distinct, capacity)),
            Self::TwoQueue => Box::new(TwoQueue::new(distinct, capacity)),
            Self::Arc => Box::new(AdaptiveReplacement::new(distinct, capacity)),
            Self::Lirs => Box::new(Lirs::new(distinct, capacity)),
            Self::S3Fifo => Box::new(S3Fifo::new(distinct, capacity)),
            Self::Kernel => Box::new(Kernel::new(distinct, capacity)),
            Self::TwoList => Box::new(Pager::new(TwoList::new(distinct), distinct, capacity)),
            Self::Uswap => Box::new(Pager::new(Uswap::of(<WorkingSet>::default(), distinct), distinct, capacity)),
            Self::UswapBits => Box::new(Pager::new(UswapBits::new(distinct), distinct, capacity)),
        }
    }
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
