//! Background work that moves stored pages while programs run: writeback, compaction, draining,
//! repacking.

pub(crate) mod compact;
pub(crate) mod drain;
pub(crate) mod relocate;
pub(crate) mod repack;
pub(crate) mod squeeze;
pub(crate) mod writeback;
