//! The number of a space: what threads that do not own a space know it by.

/// Number of a space, unique in a run.
pub type SpaceId = u32;
