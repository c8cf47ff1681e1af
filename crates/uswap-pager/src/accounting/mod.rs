//! How much memory there is, who uses it, and how much of it is pool.

pub mod budget;
pub mod charge;
pub mod group;
pub mod groups;
pub mod moves;
pub mod pool_share;
pub mod pool_size;
