//! Threads of the engine.

/// Bytes of the stack that a thread gets.
const STACK: usize = 256 << 10;

/// Starts a thread. It holds nothing that outlives the process: nobody waits for its end.
///
/// # Errors
/// EAGAIN: no memory, or no more threads are permitted.
pub fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name).stack_size(STACK).spawn(body).map(drop)
}
