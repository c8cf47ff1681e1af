//! The commands, one file or folder each.

pub(crate) mod attach;
pub(crate) mod background;
pub(crate) mod core_file;
pub(crate) mod doctor;
pub(crate) mod groups;
pub(crate) mod lab;
pub(crate) mod mount;
pub(crate) mod orders;
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod top;
