//! The pager: pages, their faults and their reclaim, in the spaces of one owner thread each.

pub mod accounting;
pub mod context;
pub mod counters;
pub mod event_loop;
pub mod fault;
pub mod fault_points;
pub mod io;
pub mod latency;
pub mod load_control;
pub mod reclaim;
pub mod space;
