//! Which process a userfaultfd belongs to.

pub mod area_faults;
pub mod lookup;
pub mod probe;
