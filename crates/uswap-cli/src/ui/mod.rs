//! Output for users: tables, the man page, completions.

pub(crate) mod manual;
pub(crate) mod table;
