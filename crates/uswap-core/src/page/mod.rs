//! Pages: the bytes of a page, its page word, and the table of the page words of a space.

pub(crate) mod bytes;
pub(crate) mod slab;
pub mod table;
pub mod word;
