//! Who runs in an address space, for load control and for figures.

/// Who runs in an address space.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runner {
    /// The process; 0: not known.
    pub process: u32,
    /// The thread or process that executes orders.
    pub helper: u32,
    /// That is a thread of the process, whose work is not the program's.
    pub within: bool,
}
