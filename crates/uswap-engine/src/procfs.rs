//! What /proc tells of processes: memory, names, children.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use uswap_abi::message::{AGENT_NAME, CALL_NAME};

/// Anonymous memory of a process, read again and again (1.2 µs with the file kept open).
#[derive(Debug)]
pub struct Statm(File);

/// One reading, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Anonymous resident pages.
    pub anonymous: i64,
    /// All mapped address space.
    pub size: i64,
}

impl Statm {
    /// Opens the statm of `pid`; it stays with that process whatever it executes.
    ///
    /// # Errors
    /// ENOENT: gone.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/statm")).map(Self)
    }

    /// Reads it: size, resident, shared (file and shmem pages).
    ///
    /// # Errors
    /// ESRCH: gone.
    pub fn read(&self) -> io::Result<Memory> {
        let mut text = [0u8; 128];
        let n = self.0.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(&text[..n]).unwrap_or_default();
        let mut fields = text.split(' ').map(|field| field.trim().parse::<i64>().unwrap_or(0));
        let mut next = || fields.next().unwrap_or(0);
        let (size, resident, shared) = (next(), next(), next());
        Ok(Memory { anonymous: (resident - shared).max(0), size })
    }
}

/// Proportional share of anonymous memory in pages: pages shared by a fork count by halves, thirds and so on.
pub fn proportional_pages(pid: u32) -> Option<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 4)
}

/// For each of these flags the mappings that have it (VmFlags in proc_pid_smaps(5)). Reading them walks all page tables.
pub fn ranges_with_flags<const N: usize>(pid: u32, flags: [&str; N]) -> Option<[Vec<(u64, u64)>; N]> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).ok().filter(|text| !text.is_empty())?;
    let mut current = (0, 0);
    let mut found = [const { Vec::new() }; N];
    for line in text.lines() {
        if let Some(set) = line.strip_prefix("VmFlags:") {
            let has = |flag: &str| set.split_whitespace().any(|word| word == flag);
            flags.iter().zip(&mut found).filter(|(flag, _)| has(flag)).for_each(|(_, ranges)| ranges.push(current));
        } else if let Some(range) = range_of(line) {
            current = range;
        }
    }
    Some(found)
}

/// The range at the start of a line of maps or smaps.
fn range_of(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// The command name.
pub fn name(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_string())
}

/// The agent's thread of a process: the one it named, or, when it counts in a pid namespace of its own, the one with
/// its name.
pub fn agent_thread(pid: u32, named: u32) -> u32 {
    let is_agent = |tid: u32| name_of_thread(pid, tid).is_some_and(|name| name.as_bytes() == AGENT_NAME.to_bytes());
    if is_agent(named) {
        return named;
    }
    threads(pid).into_iter().find(|tid| is_agent(*tid)).unwrap_or(pid)
}

/// Whether a thread is stopped, by a signal or a tracer.
pub fn is_stopped(tid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// The threads of a process.
pub fn threads(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

fn name_of_thread(pid: u32, tid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok()?.trim_end().to_string())
}

/// The agent's thread of a process that waits to be fetched, and its descriptor.
pub fn caller(pid: u32) -> Option<(u32, i32)> {
    threads(pid)
        .into_iter()
        .find_map(|tid| Some((tid, name_of_thread(pid, tid)?.strip_prefix(CALL_NAME)?.parse().ok()?)))
}

/// The direct children of `pid`, of all its threads.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let files = tasks.flatten().map(|task| task.path().join("children"));
    let texts = files.filter_map(|file| fs::read_to_string(file).ok());
    texts.flat_map(|text| text.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// All descendants of `pid`.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    let mut next = 0;
    while next < found.len() {
        let below = children(found[next]);
        found.extend(below.into_iter().filter(|pid| *pid != 0));
        next += 1;
    }
    found
}

/// Relatives of a process, nearest first: parents up to (and without) `top`, then the leaders of its process group and of
/// its session (fields 4 to 6 of proc_pid_stat(5)).
pub fn kin(pid: u32, top: u32) -> Vec<u32> {
    const MOST: usize = 64;
    let read = |pid: u32| -> Option<[u32; 3]> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, after_name) = text.rsplit_once(')')?;
        let mut fields = after_name.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0));
        Some([fields.next()?, fields.next()?, fields.next()?])
    };
    let Some([first, leader, session]) = read(pid) else { return Vec::new() };
    let parents = std::iter::successors(Some(first), |parent| read(*parent).map(|[above, ..]| above));
    let mut kin: Vec<u32> = parents.take_while(|parent| *parent != top && *parent > 1).take(MOST).collect();
    kin.extend([leader, session].into_iter().filter(|leader| *leader != pid && *leader != 0));
    kin
}

/// Locked memory in pages.
pub fn locked_pages(pid: u32) -> Option<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmLck:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<i64>().ok()? / 4)
}

/// The processor that a thread of process `pid` ran on last (field 39 of proc_pid_stat(5)); `None`: it is not one of
/// its threads.
pub fn processor_of(pid: u32, tid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_whitespace().nth(36)?.parse().ok()
}

/// The process a thread belongs to.
pub fn process_of_thread(tid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_process() {
        let me = std::process::id();
        let memory = Statm::open(me).and_then(|statm| statm.read()).expect("statm");
        assert!(memory.anonymous > 0 && memory.size > memory.anonymous);
        assert!(proportional_pages(me).is_some_and(|pages| pages > 0));
        assert_eq!(process_of_thread(me), Some(me));
        assert!(processor_of(me, uswap_sys::process::this_thread()).is_some_and(|number| number < 4096));
        assert!(name(me).is_some_and(|name| !name.is_empty()));
    }
}
