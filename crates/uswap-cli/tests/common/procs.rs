//! Processes as /proc shows them.

use std::fs;

/// Sends a signal. A process that has ended is no error.
pub fn kill(pid: u32, signal: i32) {
    let _ = uswap_sys::process::kill(pid, signal);
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// State letter and parent of a process.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// The process's name.
pub fn name(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|text| text.trim_end().to_string())
}

/// The agent's thread in a process.
pub fn agent_thread(pid: u32) -> Option<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let is_agent = |thread: &fs::DirEntry| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "uswap-agent")
    };
    threads.into_iter().find(is_agent)?.file_name().into_string().ok()
}

/// The process that is the agent of a program: it shares the program's memory.
pub fn agent(pid: u32) -> Option<u32> {
    let speaks = |agent: &u32| matches!(uswap_sys::process::trace::share_memory(pid, *agent), Ok(true));
    all().filter(|agent| name(*agent).is_some_and(|name| name == "uswap-agent")).find(speaks)
}

/// Mappings of a process that belong to uswap, recognised by names and lengths that no other
/// mapping has: image and ring of the agent, and the two halves of its area. (The path of a program
/// may contain the word *uswap* too.)
pub fn mappings_of_ours(pid: u32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let is_memfd = |line: &str| line.split_once("/memfd:").is_some_and(|(_, name)| name.starts_with("uswap-"));
    let mut ours: Vec<String> = maps.lines().filter(|line| is_memfd(line)).map(str::to_string).collect();
    ours.extend(maps.lines().filter(|line| is_half_of_area(line)).map(|line| format!("area: {line}")));
    ours
}

/// Whether a line is a staging half of 128 MiB, or both halves, with the few pages beside them.
fn is_half_of_area(line: &str) -> bool {
    const HALF: u64 = 128 << 20;
    let mut words = line.split_whitespace();
    let range = words.next().and_then(|range| range.split_once('-'));
    let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
    let length = range.map_or(0, |(start, end)| number(end) - number(start));
    let is_nameless = words.nth(4).is_none();
    is_nameless && [HALF, 2 * HALF].iter().any(|whole| (*whole..*whole + (1 << 20)).contains(&length))
}

/// Whether a process is alive (a zombie is not).
pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// The state letter of a process; `T`: stopped.
pub fn state(pid: u32) -> Option<char> {
    stat(pid).map(|(state, _)| state)
}

/// Living children.
pub fn children(pid: u32) -> Vec<u32> {
    all().filter(|child| stat(*child).is_some_and(|(state, parent)| parent == pid && state != 'Z')).collect()
}

/// All living descendants.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(children(pid));
        next += 1;
    }
    found
}

/// Living processes with this entry in their environment.
pub fn with_environment(entry: &str) -> Vec<u32> {
    let holds = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|found| found == entry.as_bytes())
    };
    all().filter(holds).filter(|pid| is_alive(*pid)).collect()
}

/// One line for each thread: its state, its place in the kernel, and its system call.
pub fn describe(pid: u32) -> String {
    let mut text = format!("process {pid} {}", name(pid).unwrap_or_default());
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(40) {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default().trim().to_string();
        let state = read("stat").rsplit_once(')').and_then(|(_, rest)| rest.trim().chars().next()).unwrap_or('?');
        let call = read("syscall").split(' ').next().unwrap_or_default().to_string();
        let frames: Vec<String> = read("stack").lines().filter_map(frame).take(6).collect();
        text += &format!(
            "\n  thread {} {} {state} in {} (system call {call}) {}",
            task.file_name().to_string_lossy(),
            read("comm"),
            read("wchan"),
            frames.join(" < ")
        );
    }
    text
}

/// Shortens `[<0>] futex_wait+0x50/0x80` to `futex_wait`.
fn frame(line: &str) -> Option<String> {
    line.split_whitespace().nth(1)?.split('+').next().map(str::to_string)
}
