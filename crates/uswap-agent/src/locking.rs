//! `mlockall(2)` for the program's own mappings.
//!
//! The kernel would lock, count and fill the agent's area too, which is a hundred times as large as
//! a small program, and would refuse the call to a program that may lock only a little. So the hook
//! locks the present mappings one by one, all except the area; for future mappings it makes the
//! system call itself. If the list of mappings cannot be read, or a program makes the raw system
//! call, the kernel's own behaviour applies.

use crate::hooks::finish;
use crate::layout::AREA_BYTES;
use crate::start;
use crate::syscall::{self, ENOMEM, call};

const CURRENT: i32 = 1;
const FUTURE: i32 = 2;
const ON_FAULT: i32 = 4;
/// Flag of mlock2(2).
const LOCK_ON_FAULT: usize = 1;
/// Addresses from here on belong to the kernel (`[vsyscall]`).
const USER_END: u64 = 1 << 47;

/// `mlockall(2)`.
///
/// # Safety
/// As the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: i32) -> i32 {
    let is_known = flags & CURRENT != 0 && flags & !(CURRENT | FUTURE | ON_FAULT) == 0;
    let result = match start::area().filter(|_| is_known) {
        Some(area) => lock_all(area, flags),
        None => mlockall_itself(flags),
    };
    finish(result) as i32
}

fn mlockall_itself(flags: i32) -> isize {
    // SAFETY: no pointers.
    unsafe { call(syscall::MLOCKALL, [flags as usize, 0, 0, 0, 0, 0]) }
}

fn lock_all(area: u64, flags: i32) -> isize {
    let mut refused = 0;
    let locked = each_mapping(area, |start, end| {
        let result = lock(start, end, LOCK_ON_FAULT);
        // Another thread can have unmapped it meanwhile: that answers ENOMEM too.
        if result == -syscall::EPERM || (result == -ENOMEM && is_mapped(start, end)) {
            refused = result;
        }
    });
    if locked.is_none() {
        return mlockall_itself(flags);
    }
    if flags & FUTURE != 0 && refused == 0 {
        refused = mlockall_itself(flags & !CURRENT);
    }
    if refused != 0 {
        // SAFETY: no pointers. Memory that was locked before is unlocked as well, which a failing
        // call of the kernel's would not do.
        unsafe { call(syscall::MUNLOCKALL, [0; 6]) };
        return refused;
    }
    if flags & ON_FAULT == 0 {
        let _ = each_mapping(area, |start, end| _ = lock(start, end, 0));
    }
    0
}

fn lock(start: u64, end: u64, flags: usize) -> isize {
    // SAFETY: the program asks for all of its mappings to be locked.
    unsafe { call(syscall::MLOCK2, [start as usize, (end - start) as usize, flags, 0, 0, 0]) }
}

/// Whether all of a range is mapped: msync(2) with MS_ASYNC does nothing but look.
pub fn is_mapped(start: u64, end: u64) -> bool {
    const MS_ASYNC: usize = 1;
    // SAFETY: changes nothing.
    unsafe { call(syscall::MSYNC, [start as usize, (end - start) as usize, MS_ASYNC, 0, 0, 0]) == 0 }
}

/// Calls `tell` with each mapping of the program, except the area and the kernel's own. `None` if
/// the list cannot be read.
fn each_mapping(area: u64, mut tell: impl FnMut(u64, u64)) -> Option<()> {
    let fd = syscall::open(b"/proc/self/maps\0", 0);
    if fd < 0 {
        return None;
    }
    let mut line = MapsLine::default();
    let mut buffer = [0u8; 2048];
    loop {
        let length = syscall::read(fd as i32, &mut buffer);
        if length == -syscall::EINTR {
            continue;
        }
        if length <= 0 {
            syscall::close(fd as i32);
            return (length == 0).then_some(());
        }
        for byte in &buffer[..length as usize] {
            if let Some((start, end)) = line.next(*byte)
                && end <= USER_END
                && !(start < area + AREA_BYTES && area < end)
            {
                tell(start, end);
            }
        }
    }
}

/// Reads lines like `7f00-8f00 rw-p ...`, byte by byte.
#[derive(Default)]
struct MapsLine {
    numbers: [u64; 2],
    which: usize,
}

impl MapsLine {
    /// Takes the next byte; returns the range of a line with its last byte.
    fn next(&mut self, byte: u8) -> Option<(u64, u64)> {
        match (byte, self.which) {
            (b'\n', _) => {
                let [start, end] = core::mem::take(self).numbers;
                return Some((start, end));
            }
            (b'-' | b' ', 0 | 1) => self.which += 1,
            (_, which @ (0 | 1)) => {
                let digit = (byte as char).to_digit(16).unwrap_or(0);
                self.numbers[which] = self.numbers[which] << 4 | u64::from(digit);
            }
            _ => {}
        }
        None
    }
}
