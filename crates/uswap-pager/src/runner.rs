//! The threads that run in an address space, for load control and for figures.

/// The threads that run in an address space.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runner {
    /// The process; 0: unknown.
    pub process: u32,
    /// The agent: the thread or process that executes orders.
    pub helper: u32,
    /// Whether the agent is a thread of the process, whose work does not count as the program's.
    pub within: bool,
}
