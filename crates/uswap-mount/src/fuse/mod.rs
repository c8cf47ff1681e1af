//! The protocol between the kernel and a file system in user space (linux `fuse_kernel.h`, version
//! 7.31 and later).
//!
//! No crate is used for it: `fuser`, the well-kept one, brings nix, which deny.toml forbids because
//! system calls go through uswap-sys alone. The protocol is some forty records of fixed size.

pub mod reply;
pub mod request;
pub mod session;
