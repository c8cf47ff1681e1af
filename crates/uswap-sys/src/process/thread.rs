//! Threads of the engine.

/// Stack size of a thread in bytes.
const STACK: usize = 256 << 10;

/// Starts a thread. No other thread waits for its end, so it must hold nothing that outlives the
/// process.
///
/// # Errors
/// EAGAIN: no memory, or no more threads are permitted.
pub fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name).stack_size(STACK).spawn(body).map(drop)
}
