//! Commands that go on in the background once what they were to begin has begun.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::Duration;

use uswap_run::config::exit;
use uswap_sys::process::{self, ChildChange, Fork};

/// Does the work in a child, which writes a byte when it has begun. Returns the exit status: 0 from
/// then on, or that of the child if it ends before.
pub fn run(work: impl FnOnce(OwnedFd) -> i32) -> i32 {
    begin(work).unwrap_or_else(|error| {
        eprintln!("uswap: cannot go to the background: {error}");
        exit::REFUSED
    })
}

fn begin(work: impl FnOnce(OwnedFd) -> i32) -> std::io::Result<i32> {
    let (reader, writer) = std::io::pipe()?;
    match process::fork()? {
        Fork::Child => {
            drop(reader);
            process::leave_session();
            process::exit_now(work(writer.into()))
        }
        Fork::Parent(child) => {
            drop(writer);
            let mut word = [0];
            match File::from(OwnedFd::from(reader)).read(&mut word)? {
                0 => wait(child),
                _ => Ok(0),
            }
        }
    }
}

/// Waits for a process that is about to end; returns its status.
fn wait(pid: u32) -> std::io::Result<i32> {
    loop {
        match process::wait_news(Some(pid))? {
            Some((_, ChildChange::Exited(status))) => return Ok(status),
            Some((_, ChildChange::Killed(signal))) => return Ok(128 + signal),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
