//! Measuring one command: its group, its processes, the kernel's figures, and statistics.

pub mod cgroup;
pub mod launch;
pub mod machine;
pub mod proc_text;
pub mod sample;
pub mod statistics;
