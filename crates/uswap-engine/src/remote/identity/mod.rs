//! Which process a userfaultfd belongs to.

pub mod lookup;
pub mod probe;
