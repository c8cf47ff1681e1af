//! Changes of mappings, reported by the kernel and by hooks, in the order in which they happened.

pub mod hook_notes;
pub mod reading;
pub mod reorder;
