//! The outcome of an attempt to serve a fault.

/// The outcome of an attempt to serve a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// The page is in place, or its address is no longer managed.
    Done,
    /// Something is under way for the page, or the kernel puts its installation off.
    Wait,
}
