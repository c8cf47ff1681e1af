//! How an attempt to serve a fault ended.

/// How an attempt to serve a page ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// The page is there, or its address is none of ours any more.
    Done,
    /// Something is under way for it, or the kernel puts it off.
    Wait,
}
