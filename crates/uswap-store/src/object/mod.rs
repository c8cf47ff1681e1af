//! The table of stored objects: where each lies, and whether an earlier copy can be reused.

pub(crate) mod entry;
pub(crate) mod kept;
pub(crate) mod table;
pub(crate) mod unchanged;
