//! Attaching to running programs: whether it is possible, and how uswap detaches from them.

pub mod eligibility;
pub mod leave;
pub mod session;
