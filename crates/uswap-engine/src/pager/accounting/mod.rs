//! How much memory there is, who uses it, and how much of it is pool.

pub mod budget;
pub mod charge;
pub mod group;
pub mod groups;
pub mod pool_size;
