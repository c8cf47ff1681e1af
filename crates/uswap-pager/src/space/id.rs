//! The number of a space, by which threads that do not own it refer to it, and ranges of its
//! addresses.

/// Number of a space, unique among those of its pager.
pub type SpaceId = u32;

/// From the first address to before the second, both of pages.
pub type PageRange = (u64, u64);
