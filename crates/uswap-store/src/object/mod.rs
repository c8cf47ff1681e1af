//! Stored pages by name: where each lies, and when an earlier copy serves again.

pub(crate) mod entry;
pub(crate) mod table;
pub(crate) mod unchanged;
