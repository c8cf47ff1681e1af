//! The three messages of the socket between agent and engine (SOCK_SEQPACKET, fds by SCM_RIGHTS).
//!
//! ```text
//! agent: connect
//! engine: Welcome + [ring memfd, kill-on-close files of program and agent, /dev/userfaultfd or nothing]
//! agent: Hello + [event userfaultfd, staging userfaultfd, pidfd of the program]
//!        (no event userfaultfd in a fork child of a managed parent; no pidfd where the agent is a thread of the program)
//! engine: Go + [eventfd, event userfaultfd of this fork child if it is one, pagemap and /proc/PID/task if asked for]
//! then: each byte that the engine sends is a ring of the doorbell
//! ```
//! A fork child that cannot connect (another root directory, another user, another /proc) makes a
//! pair of sockets instead and names its thread [`CALL_NAME`] followed by the descriptor number of
//! the far end. The engine fetches that descriptor with pidfd_getfd, and the handshake goes on as
//! above.
//!
//! Each message is a small array of 64-bit words, so that both sides agree without a serialiser.

/// First word of every message; changes with the layout of anything in this crate.
pub const MAGIC: u64 = 0x7573_7761_7000_0005;

/// Name of an agent's thread that waits for the engine to fetch its socket; the number of its
/// descriptor follows.
pub const CALL_NAME: &str = "uswap-call-";

/// Name of an agent's thread at all other times.
pub const AGENT_NAME: &core::ffi::CStr = c"uswap-agent";

/// Words in every message.
pub const WORDS: usize = 9;

/// A message: `MAGIC`, then words whose meaning is given by the `*_AT` positions.
pub type AgentMessage = [u64; WORDS];

/// Welcome: the low half of the nonce of this image.
pub const WELCOME_NONCE_LO_AT: usize = 1;
/// Welcome: the high half of the nonce of this image.
pub const WELCOME_NONCE_HI_AT: usize = 2;

/// Hello: address of the agent's area.
pub const HELLO_AREA_AT: usize = 1;
/// Hello: thread id of the agent in its own pid namespace.
pub const HELLO_TID_AT: usize = 2;
/// Hello: first word of the identity page (0 in an image that is not a fork child of a managed
/// parent).
pub const HELLO_IDENTITY_AT: usize = 3;
/// Hello: 0, or the errno with which no userfaultfd could be made.
pub const HELLO_ERRNO_AT: usize = 4;
/// Hello: address where the agent's code lies (for the list of what is never managed).
pub const HELLO_CODE_AT: usize = 5;

/// Hello: 1 when the agent cannot open its own files in /proc and wants descriptors of them.
pub const HELLO_BLIND_AT: usize = 6;
/// Hello: 1 in a fork child, whether its parent was managed or not.
pub const HELLO_FORKED_AT: usize = 7;

/// Hello: 1 when the agent is a process, and a pidfd of its program comes last.
pub const HELLO_PROCESS_AT: usize = 8;

/// Go: 1 when a userfaultfd comes with it, behind the eventfd.
pub const GO_HAS_FD_AT: usize = 1;
/// Go: 1 when the agent shall end: this process will not be managed.
pub const GO_REFUSED_AT: usize = 2;
