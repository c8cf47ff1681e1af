//! Why a program runs without an agent, as far as /proc shows it.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmanagedReason {
    /// Its file names no program interpreter: there is no dynamic loader that would read
    /// LD_PRELOAD.
    Static,
    /// It is not a 64-bit x86 program.
    OtherMachine,
    /// It runs as this user, and that user may not open the agent's image.
    OtherUser(u32),
    /// setuid, setgid or file capabilities: the loader ignores LD_PRELOAD.
    Privileged,
    /// Its environment has no LD_PRELOAD: some program has removed it.
    NoPreload,
    /// This process traces it.
    Traced(u32),
    /// It has seccomp filters of its own, which might kill it for an agent's system calls.
    Filtered,
    /// Its threads wait in calls that an attach would disturb.
    Busy,
    /// It cannot be attached to.
    Unfit(&'static str),
    /// The kernel refused a step of attaching, with this errno.
    Refused(&'static str, i32),
    /// LD_PRELOAD is there but the agent is not: another root directory or pid namespace, or its
    /// agent was refused.
    NotLoaded,
}

impl fmt::Display for UnmanagedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => f.write_str("static"),
            Self::OtherMachine => f.write_str("not a 64-bit x86 program"),
            Self::OtherUser(user) => write!(f, "runs as user {user}"),
            Self::Privileged => f.write_str("setuid or file capabilities"),
            Self::NoPreload => f.write_str("environment without LD_PRELOAD"),
            Self::Traced(tracer) => write!(f, "traced by process {tracer}"),
            Self::Filtered => f.write_str("seccomp filters of its own"),
            Self::Busy => f.write_str("all threads wait in calls that must not be disturbed"),
            Self::Unfit(why) => f.write_str(why),
            Self::Refused(what, errno) => {
                write!(f, "{what}: {}", std::io::Error::from_raw_os_error(*errno))
            }
            Self::NotLoaded => f.write_str("agent not loaded"),
        }
    }
}

/// Why the process has no agent.
pub fn why(pid: u32) -> UnmanagedReason {
    if let Some(user) = effective_user(pid).filter(|user| *user != uswap_sys::process::user()) {
        return UnmanagedReason::OtherUser(user);
    }
    match program_kind(pid) {
        Some(ProgramKind::Static) => return UnmanagedReason::Static,
        Some(ProgramKind::OtherMachine) => return UnmanagedReason::OtherMachine,
        Some(ProgramKind::Dynamic) | None => {}
    }
    if is_secure(pid) == Some(true) {
        return UnmanagedReason::Privileged;
    }
    match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) if !has_preload(&environment) => UnmanagedReason::NoPreload,
        _ => UnmanagedReason::NotLoaded,
    }
}

fn effective_user(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

/// AT_SECURE of the auxiliary vector.
fn is_secure(pid: u32) -> Option<bool> {
    const AT_SECURE: u64 = 23;
    let bytes = fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    words.as_chunks::<2>().0.iter().find(|[key, _]| *key == AT_SECURE).map(|[_, value]| *value != 0)
}

fn has_preload(environment: &[u8]) -> bool {
    environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(b"LD_PRELOAD="))
}

/// The kind of a program, by the head of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// It has a program interpreter.
    Dynamic,
    /// It has none.
    Static,
    /// 32-bit, or for another processor.
    OtherMachine,
}

/// The kind of program that a process executes.
pub fn program_kind(pid: u32) -> Option<ProgramKind> {
    let file = File::open(format!("/proc/{pid}/exe")).ok()?;
    let mut head = vec![0; 8192];
    let n = file.read_at(&mut head, 0).ok()?;
    kind_of_program(&head[..n])
}

/// Reads the head of an ELF file (elf(5)). Returns `None` if it is no ELF file, or if its program
/// headers lie behind `head`.
pub fn kind_of_program(head: &[u8]) -> Option<ProgramKind> {
    const CLASS_64: u8 = 2;
    const X86_64: u16 = 62;
    const PT_INTERP: u32 = 3;
    let half = |at: usize| Some(u16::from_le_bytes(head.get(at..at.checked_add(2)?)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(head.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(head.get(at..at.checked_add(8)?)?.try_into().ok()?));
    if head.get(..4)? != b"\x7fELF" {
        return None;
    }
    if *head.get(4)? != CLASS_64 || half(18)? != X86_64 {
        return Some(ProgramKind::OtherMachine);
    }
    let (start, size, count) = (usize::try_from(long(32)?).ok()?, usize::from(half(54)?), usize::from(half(56)?));
    for index in 0..count {
        if word(start.checked_add(index * size)?)? == PT_INTERP {
            return Some(ProgramKind::Dynamic);
        }
    }
    Some(ProgramKind::Static)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn this_test_is_dynamic_and_has_no_preload() {
        let me = std::process::id();
        assert_eq!(program_kind(me), Some(ProgramKind::Dynamic));
        assert_eq!(effective_user(me), Some(uswap_sys::process::user()));
        assert_eq!(is_secure(me), Some(false));
        assert!(has_preload(b"A=1\0LD_PRELOAD=x\0") && !has_preload(b"XLD_PRELOAD=x\0"));
    }

    #[test]
    fn an_elf_file_without_interpreter_is_static() {
        let mut head = vec![0u8; 64 + 56];
        head[..5].copy_from_slice(b"\x7fELF\x02");
        (head[18], head[32], head[54], head[56], head[64]) = (62, 64, 56, 1, 1);
        assert_eq!(kind_of_program(&head), Some(ProgramKind::Static));
        head[64] = 3;
        assert_eq!(kind_of_program(&head), Some(ProgramKind::Dynamic));
        head[4] = 1;
        assert_eq!(kind_of_program(&head), Some(ProgramKind::OtherMachine));
        assert_eq!(kind_of_program(b"#!/bin/sh"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(mut head in prop::collection::vec(any::<u8>(), 0..300)) {
            kind_of_program(&head);
            if head.len() > 20 {
                head[..5].copy_from_slice(b"\x7fELF\x02");
                (head[18], head[19]) = (62, 0);
                kind_of_program(&head);
            }
        }
    }
}
