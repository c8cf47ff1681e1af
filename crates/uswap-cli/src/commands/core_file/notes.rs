//! The notes of a core file (linux `fs/binfmt_elf.c`): the process's identity, its auxiliary
//! vector, its files, and the registers of each thread.

use std::os::unix::ffi::OsStrExt;
use uswap_core::PAGE;

use super::mappings::CoreMapping;
use super::threads::{StoppedThreads, Thread};

const NT_PRSTATUS: u32 = 1;
const NT_FPREGSET: u32 = 2;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;
const NT_X86_XSTATE: u32 = 0x202;
/// Length in bytes of the program name in `struct elf_prpsinfo`.
const NAME: usize = 16;
const ARGUMENTS: usize = 80;
/// Clock ticks per second in the files of /proc.
const TICKS: u64 = 100;

/// All notes.
///
/// # Errors
/// A message for the user: the registers of a thread cannot be read.
pub fn of(pid: u32, stopped: &StoppedThreads, mappings: &[CoreMapping]) -> Result<Vec<u8>, String> {
    let reader = stopped.reader();
    let mut notes = Vec::new();
    for (number, thread) in stopped.threads().iter().enumerate() {
        let failed = |error| format!("the registers of thread {} cannot be read: {error}", thread.tracee.tid());
        add(&mut notes, b"CORE", NT_PRSTATUS, &thread_status(thread).map_err(failed)?);
        if number == 0 {
            add(&mut notes, b"CORE", NT_PRPSINFO, &process_information(pid, reader));
            let vector = std::fs::read(format!("/proc/{reader}/auxv")).unwrap_or_default();
            add(&mut notes, b"CORE", NT_AUXV, &vector);
            add(&mut notes, b"CORE", NT_FILE, &files(mappings));
        }
        for (name, kind) in [(&b"CORE"[..], NT_FPREGSET), (b"LINUX", NT_X86_XSTATE)] {
            // Some processors do not have these registers.
            if let Ok(registers) = thread.tracee.register_set(kind) {
                add(&mut notes, name, kind, &registers);
            }
        }
    }
    Ok(notes)
}

/// Appends a note: the lengths of its name and of its bytes, its type, and both texts, each padded
/// to a multiple of four bytes.
fn add(notes: &mut Vec<u8>, name: &[u8], kind: u32, bytes: &[u8]) {
    let head = [name.len() as u32 + 1, bytes.len() as u32, kind];
    notes.extend(head.into_iter().flat_map(u32::to_le_bytes));
    notes.extend(name);
    notes.push(0);
    fill_up(notes);
    notes.extend(bytes);
    fill_up(notes);
}

fn fill_up(notes: &mut Vec<u8>) {
    notes.resize(notes.len().next_multiple_of(4), 0);
}

/// The fields of /proc/TID/stat, from the third one on.
struct ProcessStat(Vec<String>);

impl ProcessStat {
    fn of(tid: u32) -> Self {
        let text = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
        let rest = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
        Self(rest.split_whitespace().map(str::to_owned).collect())
    }

    /// A field, by its number in proc(5).
    fn number(&self, field: usize) -> i64 {
        self.0.get(field - 3).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Ids of the parent, the process group and the session.
    fn relatives(&self) -> [i32; 3] {
        [4, 5, 6].map(|field| self.number(field) as i32)
    }
}

/// The value of a line of /proc/TID/status.
fn status(tid: u32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_default().trim().to_owned()
}

/// `struct elf_prstatus`.
fn thread_status(thread: &Thread) -> std::io::Result<Vec<u8>> {
    let tid = thread.tracee.tid();
    let (stat, signals) = (ProcessStat::of(tid), |name| u64::from_str_radix(&status(tid, name), 16).unwrap_or(0));
    let mut bytes: Vec<u8> = [thread.signal, 0, 0].into_iter().flat_map(i32::to_le_bytes).collect();
    bytes.extend((thread.signal as u32).to_le_bytes());
    bytes.extend([signals("SigPnd"), signals("SigBlk")].into_iter().flat_map(u64::to_le_bytes));
    bytes.extend([tid as i32].into_iter().chain(stat.relatives()).flat_map(i32::to_le_bytes));
    for field in 14..18 {
        let ticks = stat.number(field) as u64;
        bytes.extend([ticks / TICKS, ticks % TICKS * (1_000_000 / TICKS)].into_iter().flat_map(u64::to_le_bytes));
    }
    bytes.extend(thread.tracee.register_set(NT_PRSTATUS)?);
    // The flag that floating point registers are available, and padding.
    bytes.extend([1u32, 0].into_iter().flat_map(u32::to_le_bytes));
    Ok(bytes)
}

/// `struct elf_prpsinfo`.
fn process_information(pid: u32, reader: u32) -> Vec<u8> {
    let stat = ProcessStat::of(pid);
    let state = stat.0.first().and_then(|text| text.bytes().next()).unwrap_or(b'R');
    let number = b"RSDTZW".iter().position(|letter| *letter == state.to_ascii_uppercase()).unwrap_or(0) as u8;
    let mut bytes = vec![number, state, u8::from(state == b'Z'), stat.number(19) as u8, 0, 0, 0, 0];
    bytes.extend((stat.number(9) as u64).to_le_bytes());
    for name in ["Uid", "Gid"] {
        let id = status(reader, name).split_whitespace().next().and_then(|id| id.parse().ok()).unwrap_or(0u32);
        bytes.extend(id.to_le_bytes());
    }
    bytes.extend([pid as i32].into_iter().chain(stat.relatives()).flat_map(i32::to_le_bytes));
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    bytes.extend(text::<NAME>(name.trim_ascii_end()));
    let mut arguments = std::fs::read(format!("/proc/{reader}/cmdline")).unwrap_or_default();
    arguments.pop();
    arguments.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    bytes.extend(text::<ARGUMENTS>(&arguments));
    bytes
}

/// As many bytes as fit, with a zero at the end.
fn text<const ROOM: usize>(from: &[u8]) -> [u8; ROOM] {
    let mut room = [0; ROOM];
    let length = from.len().min(ROOM - 1);
    room[..length].copy_from_slice(&from[..length]);
    room
}

/// The mapped files: their number, the size of a page, then start address, end address and page
/// offset of each mapping, then the names.
fn files(mappings: &[CoreMapping]) -> Vec<u8> {
    let found: Vec<_> = mappings.iter().filter_map(|mapping| Some((mapping, mapping.file.as_ref()?))).collect();
    let mut bytes: Vec<u8> = [found.len() as u64, PAGE].into_iter().flat_map(u64::to_le_bytes).collect();
    for (mapping, _) in &found {
        bytes.extend([mapping.start, mapping.end, mapping.offset / PAGE].into_iter().flat_map(u64::to_le_bytes));
    }
    for (_, name) in found {
        bytes.extend(name.as_bytes());
        bytes.push(0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_filled_up_and_structures_have_the_kernels_size() {
        let mut notes = Vec::new();
        add(&mut notes, b"LINUX", 7, b"abcde");
        assert_eq!(notes.len(), 12 + 8 + 8);
        assert_eq!(notes[12..], *b"LINUX\0\0\0abcde\0\0\0");
        let me = std::process::id();
        assert_eq!(process_information(me, me).len(), 136);
        assert_eq!(text::<4>(b"abcdef"), *b"abc\0");
    }
}
