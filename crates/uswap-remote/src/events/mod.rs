//! What the kernel and the hooks tell of mappings, in the order in which it happened.

pub mod hook_notes;
pub mod reading;
pub mod reorder;
