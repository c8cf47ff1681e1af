//! Programs outside any run: whether they can be attached to, and how they are let go.

pub mod detach;
pub mod eligibility;
pub mod session;
