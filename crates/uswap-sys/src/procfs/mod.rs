//! Information from /proc about processes: memory, names, children.

pub mod maps;
pub mod memory;
pub mod pagemap;
pub mod vmread;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use crate::io::spares::is_shortage;
use uswap_abi::message::{AGENT_NAME, CALL_NAME};

/// Anonymous memory of a process, read again and again (1.2 µs per read, since the file stays
/// open).
#[derive(Debug)]
pub struct Statm(File);

/// One reading, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryFigures {
    /// Anonymous resident pages.
    pub anonymous: i64,
    /// All mapped address space.
    pub size: i64,
}

impl Statm {
    /// Opens the statm of `pid`; the file stays with that process, whichever program it executes.
    ///
    /// # Errors
    /// ENOENT: the process is gone.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/statm")).map(Self)
    }

    /// Reads the figures (size, resident and shared pages; shared are file and shmem pages).
    ///
    /// # Errors
    /// ESRCH: the process is gone.
    pub fn read(&self) -> io::Result<MemoryFigures> {
        let mut text = [0u8; 128];
        let n = self.0.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(&text[..n]).unwrap_or_default();
        let mut fields = text.split(' ').map(|field| field.trim().parse::<i64>().unwrap_or(0));
        let mut next = || fields.next().unwrap_or(0);
        let (size, resident, shared) = (next(), next(), next());
        Ok(MemoryFigures { anonymous: (resident - shared).max(0), size })
    }
}

/// Bytes of resident shared memory in a process's mappings (RssShmem).
pub fn shared_memory(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssShmem:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Anonymous pages that are also counted in related processes: all anonymous pages less the
/// proportional share. A page that two processes share counts half in each.
///
/// # Errors
/// The process is gone, or no descriptor is free.
pub fn shared_pages(pid: u32) -> io::Result<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(shared_of(&text).unwrap_or(0))
}

fn shared_of(text: &str) -> Option<i64> {
    let kib = |name: &str| -> Option<i64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some((kib("Anonymous:")? - kib("Pss_Anon:")?).max(0) / 4)
}

/// For each of these flags, the mappings that have it (VmFlags in proc_pid_smaps(5)). Reading them
/// walks all page tables.
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

/// The address range at the start of a line of maps or smaps.
fn range_of(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// The command name.
pub fn name(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_string())
}

/// Device and inode of the program file that a process executes, which identify the file.
pub fn executable(pid: u32) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/{pid}/exe")).ok().map(|file| (file.dev(), file.ino()))
}

/// The same as one number; 0 if the file cannot be seen.
pub fn program(pid: u32) -> u64 {
    executable(pid).map_or(0, |(device, inode)| inode.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ device)
}

/// The agent's thread of a process: the thread `named`, or, if the process has its own pid
/// namespace with other numbers, the thread with the agent's name.
pub fn agent_thread(pid: u32, named: u32) -> u32 {
    let is_agent = |tid: u32| name_of_thread(pid, tid).is_some_and(|name| name.as_bytes() == AGENT_NAME.to_bytes());
    if is_agent(named) {
        return named;
    }
    threads(pid).into_iter().find(|tid| is_agent(*tid)).unwrap_or(pid)
}

/// Whether a thread is in a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// In no system call: it began to wait in user mode, and it holds no lock of the kernel.
    User,
    /// In a system call, or a kernel thread that works for one.
    Call,
    /// Still running: it has not gone to sleep yet.
    Running,
}

/// Whether thread `tid` of process `pid` is in a system call; `None`: it is not one of its threads,
/// or may not be inspected. Waits until a thread that is about to sleep has gone to sleep. Source:
/// `proc_pid_syscall` in fs/proc/base.c: -1, stack and instruction for a thread that is in no call;
/// the latter two are 0 for workers of io_uring.
pub fn mode(pid: u32, tid: u32) -> Option<Mode> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let mut words = text.split_whitespace();
    match words.next()? {
        "running" => Some(Mode::Running),
        "-1" if words.next() != Some("0x0") => Some(Mode::User),
        _ => Some(Mode::Call),
    }
}

/// Whether a thread of the process, other than `agent`, is runnable.
pub fn is_runnable(pid: u32, agent: u32) -> bool {
    let runs = |tid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
        text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
    };
    threads(pid).iter().filter(|tid| **tid != agent).any(runs)
}

/// Idle time of all processors together since the machine started (proc_stat(5), in hundredths of a
/// second).
pub fn idle_time() -> Option<std::time::Duration> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields = text.lines().next()?.split_whitespace().skip(4).take(2);
    Some(std::time::Duration::from_millis(10 * fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>()))
}

/// The parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Whether the thread is an agent, or one that waits for an engine to fetch it.
pub fn is_agent(pid: u32, tid: u32) -> bool {
    name_of_thread(pid, tid).is_some_and(|name| is_name_of_agent(&name))
}

/// The same for an agent that is a process of its own.
pub fn is_agent_process(pid: u32) -> bool {
    name(pid).is_some_and(|name| is_name_of_agent(&name))
}

fn is_name_of_agent(name: &str) -> bool {
    name.as_bytes() == AGENT_NAME.to_bytes() || name.starts_with(CALL_NAME)
}

/// The id of the process behind a pidfd; `None`: it has ended.
pub fn process_of(pidfd: &impl std::os::fd::AsRawFd) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok().filter(|pid| *pid != 0)
}

/// Start of code and stack (fields 26 to 28 of proc_pid_stat(5)), which distinguish the program
/// that a process executes from one that it executes later.
pub fn image_signature(pid: u32) -> Option<[u64; 3]> {
    stat_words(pid, 26).filter(|words| words[2] != 0)
}

/// Start of the program's static data, and start of its heap (fields 45 to 47 of proc_pid_stat(5)).
pub fn static_data(pid: u32) -> Option<(u64, u64)> {
    stat_words(pid, 45).map(|[start, _, heap]| (start, heap)).filter(|(start, heap)| *start != 0 && start <= heap)
}

/// Start time of a process, in clock ticks since the machine started (field 22 of
/// proc_pid_stat(5)): a process id that is used again has another start time. `None`: the process
/// has ended, even if its status was not collected yet.
pub fn start_time(pid: u32) -> Option<u64> {
    born(pid).ok().flatten()
}

/// The same, for callers that must not take "cannot be seen" for "has ended".
///
/// # Errors
/// No descriptor or no memory is free.
pub fn born(pid: u32) -> io::Result<Option<u64>> {
    let text = seen(fs::read_to_string(format!("/proc/{pid}/stat")))?;
    let Some((_, after_name)) = text.rsplit_once(") ") else { return Ok(None) };
    let mut fields = after_name.split_whitespace();
    // The other threads can outlive the first one.
    let ended = match fields.next() {
        Some("Z" | "X") => seen(threads_of(pid))?.len() < 2,
        state => state.is_none(),
    };
    Ok(fields.nth(18).filter(|_| !ended).and_then(|field| field.parse().ok()))
}

/// Turns an error into an empty result, except a shortage of descriptors or memory, which says
/// nothing about the process.
fn seen<T: Default>(looked: io::Result<T>) -> io::Result<T> {
    looked.or_else(|error| if is_shortage(&error) { Err(error) } else { Ok(T::default()) })
}

/// The ids of all processes that can be seen.
pub fn everybody() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Three fields of /proc/PID/stat from number `first` on, which is above 2.
fn stat_words(pid: u32, first: usize) -> Option<[u64; 3]> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(first - 3).map(|field| field.parse().ok());
    Some([fields.next()??, fields.next()??, fields.next()??])
}

/// Whether a thread is stopped, by a signal or a tracer.
pub fn is_stopped(tid: u32) -> bool {
    state(tid).is_some_and(|state| matches!(state, b'T' | b't'))
}

/// Whether a thread has ended, or is about to end (proc_pid_stat(5): its state, or PF_EXITING among
/// its flags).
pub fn has_ended(tid: u32) -> bool {
    const EXITING: u64 = 4;
    let text = fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    let Some((_, after_name)) = text.rsplit_once(") ") else { return true };
    let flags = after_name.split_whitespace().nth(6).and_then(|flags| flags.parse::<u64>().ok());
    after_name.starts_with(['Z', 'X']) || flags.is_none_or(|flags| flags & EXITING != 0)
}

/// Whether a thread has ended altogether: nothing of its memory is used any more.
pub fn is_dead(tid: u32) -> bool {
    state(tid).is_none_or(|state| matches!(state, b'Z' | b'X'))
}

/// The state of a thread, as a letter (proc_pid_stat(5)); `None` if it is gone.
fn state(tid: u32) -> Option<u8> {
    let text = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.bytes().next()
}

/// Whether a sleeping thread is inside a system call; also `true` when that cannot be read.
pub fn is_in_system_call(tid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{tid}/syscall")).unwrap_or_default();
    !text.starts_with("-1 ")
}

/// The threads of a process.
pub fn threads(pid: u32) -> Vec<u32> {
    threads_of(pid).unwrap_or_default()
}

fn threads_of(pid: u32) -> io::Result<Vec<u32>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect())
}

fn name_of_thread(pid: u32, tid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok()?.trim_end().to_string())
}

/// The agent's thread, if it waits for an engine to fetch it, and its descriptor.
pub fn caller(pid: u32) -> Option<(u32, i32)> {
    threads(pid)
        .into_iter()
        .find_map(|tid| Some((tid, name_of_thread(pid, tid)?.strip_prefix(CALL_NAME)?.parse().ok()?)))
}

/// The children of `pid`, those of all its threads.
pub fn children(pid: u32) -> Vec<u32> {
    children_seen(pid).unwrap_or_default()
}

/// The same, for callers that must not take "cannot be seen" for "has none".
///
/// # Errors
/// No descriptor or no memory is free.
pub fn children_seen(pid: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for tid in seen(threads_of(pid))? {
        let text = seen(fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")))?;
        found.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Ok(found)
}

/// The children of the thread that opened the file, a main thread: orphans of its process become
/// its children too.
#[derive(Debug)]
pub struct OwnChildren(File);

impl OwnChildren {
    /// # Errors
    /// EMFILE.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/thread-self/children").map(Self)
    }

    /// The ids of all children, or of as many as fit; the others are returned once some of these
    /// have ended.
    pub fn read(&self) -> Vec<u32> {
        let mut text = [0u8; 4096];
        let length = self.0.read_at(&mut text, 0).unwrap_or(0);
        // The last number may be cut off.
        let whole = text[..length].iter().rposition(|byte| *byte == b' ').unwrap_or(0);
        let text = std::str::from_utf8(&text[..whole]).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }
}

/// Processes, as far as they could be seen.
#[derive(Debug, Default)]
pub struct ProcessSeen {
    /// The ids of those that were seen.
    pub pids: Vec<u32>,
    /// No process was left out because no descriptor was free.
    pub complete: bool,
}

/// All descendants of `pid`.
pub fn descendants(pid: u32) -> ProcessSeen {
    let first = children_seen(pid);
    let mut found = ProcessSeen { complete: first.is_ok(), pids: first.unwrap_or_default() };
    let mut next = 0;
    while next < found.pids.len() {
        match children_seen(found.pids[next]) {
            Ok(below) => found.pids.extend(below.into_iter().filter(|pid| *pid != 0)),
            Err(_) => found.complete = false,
        }
        next += 1;
    }
    found
}

/// Relatives of a process, nearest first: its ancestors below `top`, then the leaders of its
/// process group and of its session (fields 4 to 6 of proc_pid_stat(5)).
pub fn kin(pid: u32, top: u32) -> Vec<u32> {
    const MAX: usize = 64;
    let read = |pid: u32| -> Option<[u32; 3]> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, after_name) = text.rsplit_once(')')?;
        let mut fields = after_name.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0));
        Some([fields.next()?, fields.next()?, fields.next()?])
    };
    let Some([first, leader, session]) = read(pid) else { return Vec::new() };
    let parents = std::iter::successors(Some(first), |parent| read(*parent).map(|[above, ..]| above));
    let mut kin: Vec<u32> = parents.take_while(|parent| *parent != top && *parent > 1).take(MAX).collect();
    kin.extend([leader, session].into_iter().filter(|leader| *leader != pid && *leader != 0));
    kin
}

/// Locked memory in pages.
pub fn locked_pages(pid: u32) -> Option<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmLck:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<i64>().ok()? / 4)
}

/// The processor of a thread, read again and again (half as costly while the file stays open).
#[derive(Debug)]
pub struct WhereThread {
    thread: u32,
    stat: File,
}

impl WhereThread {
    /// Opens the stat of a thread of process `pid`; the file stays with that thread. `None`: it is
    /// not one of its threads.
    pub fn open(pid: u32, thread: u32) -> Option<Self> {
        let stat = File::open(format!("/proc/{pid}/task/{thread}/stat")).ok()?;
        Some(Self { thread, stat })
    }

    /// The id of the thread.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// The processor on which the thread ran last (field 39 of proc_pid_stat(5)); `None`: it has
    /// ended.
    pub fn processor(&self) -> Option<u32> {
        let mut text = [0u8; 512];
        let length = self.stat.read_at(&mut text, 0).ok()?;
        let after_name = text[..length].rsplit(|byte| *byte == b')').next()?;
        let field = after_name.split(|byte| *byte == b' ').filter(|field| !field.is_empty()).nth(36)?;
        std::str::from_utf8(field).ok()?.trim().parse().ok()
    }
}

/// The id of the process to which a thread belongs.
pub fn process_of_thread(tid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_children_are_told_again_and_again_by_one_descriptor() {
        let own = OwnChildren::open().expect("a descriptor");
        let mut children = [(); 2].map(|()| std::process::Command::new("sleep").arg("60").spawn().expect("sleep"));
        let seen = own.read();
        assert!(children.iter().all(|child| seen.contains(&child.id())), "{seen:?}");
        for child in &mut children {
            child.kill().and_then(|()| child.wait()).expect("our child");
        }
        let seen = own.read();
        assert!(children.iter().all(|child| !seen.contains(&child.id())), "{seen:?}");
    }

    #[test]
    fn who_has_ended_is_known() {
        let mut child = std::process::Command::new("true").spawn().expect("true");
        let begun = std::time::Instant::now();
        while !has_ended(child.id()) {
            assert!(begun.elapsed().as_secs() < 10, "true goes on");
            std::thread::yield_now();
        }
        child.wait().expect("its status");
        assert!(has_ended(child.id()) && !has_ended(std::process::id()));
    }

    #[test]
    fn a_thread_that_sleeps_in_a_call_is_in_a_call() {
        let (say, hear) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            say.send(crate::process::this_thread()).expect("somebody listens");
            wait.recv().expect_err("nothing is ever said");
        });
        let tid = hear.recv().expect("a thread");
        let me = std::process::id();
        let asleep = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            mode(me, tid) == Some(Mode::Call)
        });
        assert!(asleep, "{:?}", mode(me, tid));
        assert_eq!(mode(me, 1), None, "not one of ours");
        assert!(is_runnable(me, 0));
        drop(end);
        sleeper.join().expect("it ends");
    }

    #[test]
    fn reads_this_process() {
        let me = std::process::id();
        let memory = Statm::open(me).and_then(|statm| statm.read()).expect("statm");
        assert!(memory.anonymous > 0 && memory.size > memory.anonymous);
        assert!(shared_pages(me).is_ok_and(|pages| pages < memory.anonymous));
        assert_eq!(process_of_thread(me), Some(me));
        let thread = WhereThread::open(me, crate::process::this_thread()).expect("a thread of ours");
        assert!((0..3).all(|_| thread.processor().is_some_and(|number| number < 4096)));
        let thread = crate::process::processor_time_of_thread(crate::process::this_thread()).expect("a clock");
        let all = crate::process::processor_time(me).expect("a clock");
        assert!(!thread.is_zero() && thread <= all, "{thread:?} of {all:?}");
        assert!(idle_time().is_some() && parent(me) == Some(std::os::unix::process::parent_id()));
        assert!(name(me).is_some_and(|name| !name.is_empty()));
    }
}
