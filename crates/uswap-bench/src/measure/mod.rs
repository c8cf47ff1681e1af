//! One command watched: its group, its end, what the kernel tells of it, and statistics.

pub mod cgroup;
pub mod launch;
pub mod machine;
pub mod proc_text;
pub mod sample;
pub mod statistics;
