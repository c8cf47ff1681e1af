//! The paths of a page into the store and out of it.

pub(crate) mod load;
pub(crate) mod load_pages;
pub(crate) mod put;
pub(crate) mod queued;
