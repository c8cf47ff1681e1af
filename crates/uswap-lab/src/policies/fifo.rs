//! First in, first out: a ring whose hand ignores accesses (see `clock.rs`).

use crate::policies::clock::ClockRing;

/// First in, first out.
pub type FirstInFirstOut = ClockRing<false>;
