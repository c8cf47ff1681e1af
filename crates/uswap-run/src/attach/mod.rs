//! Programs outside any run: whether they can be attached to, and how they are let go.

pub mod eligibility;
pub mod leave;
pub mod session;
