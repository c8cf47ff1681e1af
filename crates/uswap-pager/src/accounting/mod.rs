//! Accounting: how much memory there is, which processes and groups use it, and how much of it is
//! pool.

pub mod budget;
pub mod charge;
pub mod group;
pub mod groups;
pub mod moves;
pub mod pool_share;
pub mod pool_size;
