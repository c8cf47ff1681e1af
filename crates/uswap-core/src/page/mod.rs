//! A page: its bytes, its page word, and the table of a space's page words.

pub(crate) mod bytes;
pub(crate) mod slab;
pub mod table;
pub mod word;
