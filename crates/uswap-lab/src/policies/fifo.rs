//! First in, first out: a ring whose hand takes no notice of touches (see `clock.rs`).

use crate::policies::clock::Ring;

/// First in, first out.
pub type FirstInFirstOut = Ring<false>;
