//! The terminal: reading keys one by one, for `uswap top`.

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::check_int;

/// Standard input without line editing and echo; Ctrl-C arrives as a key. The previous mode is
/// restored on drop.
pub struct Keys {
    /// Standard input without the standard library's buffer, which would hide keys from poll.
    input: File,
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
        let input = File::from(input.as_fd().try_clone_to_owned().ok()?);
        let mut before = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: the call fills the structure or fails.
        check_int(unsafe { libc::tcgetattr(input.as_raw_fd(), before.as_mut_ptr()) }).ok()?;
        // SAFETY: the call succeeded.
        let before = unsafe { before.assume_init() };
        let keys = Self { input, before };
        let mut raw = before;
        raw.c_lflag &= !(libc::ICANON | libc::ECHO | libc::ISIG);
        keys.set(&raw).ok()?;
        Some(keys)
    }

    fn set(&self, mode: &libc::termios) -> io::Result<()> {
        // SAFETY: a valid structure.
        check_int(unsafe { libc::tcsetattr(self.input.as_raw_fd(), libc::TCSANOW, mode) }).map(drop)
    }

    /// The next key, or `None` after `patience`.
    pub fn next(&mut self, patience: Duration) -> Option<u8> {
        let ready = crate::io::events::poll(&[self.input.as_fd()], patience.as_millis() as i32).ok()?;
        let mut key = [0];
        match ready[0].then(|| self.input.read(&mut key))? {
            Ok(1) => Some(key[0]),
            // The terminal is gone, or this process is in the background: the descriptor would stay
            // ready.
            _ => {
                std::thread::sleep(patience);
                None
            }
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        let _ = self.set(&self.before);
    }
}
