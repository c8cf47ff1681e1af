//! The terminal: reading keys one by one, for `uswap top`.

use std::fmt;
use std::io::{self, IsTerminal, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::check_int;

/// Standard input without line editing and echo; Ctrl-C arrives as a key. What was in force comes back on drop.
pub struct Keys {
    before: libc::termios,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    /// `None` when standard input is not a terminal.
    pub fn new() -> Option<Self> {
        let input = io::stdin();
        if !input.is_terminal() {
            return None;
        }
        let mut before = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: the call fills the structure or fails.
        check_int(unsafe { libc::tcgetattr(input.as_raw_fd(), before.as_mut_ptr()) }).ok()?;
        // SAFETY: the call succeeded.
        let before = unsafe { before.assume_init() };
        let mut raw = before;
        raw.c_lflag &= !(libc::ICANON | libc::ECHO | libc::ISIG);
        // SAFETY: a valid structure.
        check_int(unsafe { libc::tcsetattr(input.as_raw_fd(), libc::TCSANOW, &raw const raw) }).ok()?;
        Some(Self { before })
    }

    /// The next key, waiting at most so long.
    pub fn next(&self, patience: Duration) -> Option<u8> {
        let mut input = io::stdin();
        let ready = crate::events::poll(&[input.as_fd()], patience.as_millis() as i32).ok()?;
        let mut key = [0];
        (ready[0] && input.read(&mut key).ok()? == 1).then_some(key[0])
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // SAFETY: the structure that tcgetattr gave.
        unsafe { libc::tcsetattr(io::stdin().as_raw_fd(), libc::TCSANOW, &raw const self.before) };
    }
}
