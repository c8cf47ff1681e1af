//! Checks whether a running program can be attached to, as far as that can be seen from outside.

use std::fs;
use std::io::ErrorKind;

use uswap_core::util::size::human;

use crate::measure::cgroup::{Cgroup, free_memory};
use uswap_remote::inject::elf_image::{Found, ImageLayout};
use uswap_sys::procfs;

/// The setting of the security module yama that restricts tracing
/// (Documentation/admin-guide/LSM/Yama.rst).
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
/// At this scope no process may trace another, whatever its privileges.
const NOBODY: u32 = 3;

/// Checks whether the process can be attached to. The process is not changed.
///
/// # Errors
/// The reason why it cannot, for the user.
pub fn check(pid: u32) -> Result<(), String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.map_err(|_| format!("there is no process {pid}"))?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map_or("", str::trim);
    let name = format!("{} (process {pid})", field("Name:"));
    if let Some(process) = field("Tgid:").parse().ok().filter(|process: &u32| *process != pid) {
        return Err(format!("{pid} is a thread of process {process}: attach to that"));
    }
    if procfs::start_time(pid).is_none() {
        return Err(format!("{name} has ended; its parent has not asked for its status yet"));
    }
    if field("VmSize:").is_empty() {
        // Linux before 6.9 does not tell the two cases apart.
        let ending = field("Kthread:") == "0";
        return Err(if ending { format!("{name} has ended") } else { format!("{name} is a thread of the kernel") });
    }
    check_access(pid, &name, field("Uid:"), scope())?;
    if let Some(ours) = belongs_to(pid) {
        return Err(match ours == pid {
            true => format!("{name} is uswap itself"),
            false => format!("{name} belongs to a run of uswap already (process {ours})"),
        });
    }
    if has_agent(pid) {
        return Err(format!(
            "{name} is managed already: there is an agent of uswap in it (uswap detach lets go of it)"
        ));
    }
    if let Some(tracer) = field("TracerPid:").parse().ok().filter(|tracer: &u32| *tracer != 0) {
        let by = procfs::name(tracer).unwrap_or_default();
        return Err(format!("{name} is traced by another: {by} (process {tracer})"));
    }
    if field("State:").starts_with(['T', 't']) {
        return Err(format!("{name} is stopped: have it go on first (kill -CONT {pid})"));
    }
    Ok(())
}

/// The scope that yama is set to; 0 where there is no yama.
fn scope() -> u32 {
    fs::read_to_string(SCOPE).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn check_access(pid: u32, name: &str, users: &str, scope: u32) -> Result<(), String> {
    if scope >= NOBODY {
        return Err(format!(
            "nobody may attach to a process here: kernel.yama.ptrace_scope is {scope} until the machine starts anew"
        ));
    }
    let user = users.split_whitespace().next().unwrap_or("?");
    // Opening this file needs the same permission as ptrace(2).
    match fs::File::open(format!("/proc/{pid}/mem")) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(not_permitted(name, user, scope)),
        _ => Ok(()),
    }
}

fn not_permitted(name: &str, user: &str, scope: u32) -> String {
    let setting = if scope > 0 { format!(" (kernel.yama.ptrace_scope is {scope})") } else { String::new() };
    format!(
        "it is not permitted to attach to {name} of user {user}: be root, or have the capability SYS_PTRACE{setting}"
    )
}

/// The process of uswap that this process is, or descends from.
fn belongs_to(pid: u32) -> Option<u32> {
    const GENERATIONS: usize = 64;
    let ours = procfs::executable(std::process::id());
    let is_ours = |pid: &u32| {
        procfs::name(*pid).as_deref() == Some("uswap-engine") || ours.is_some() && procfs::executable(*pid) == ours
    };
    std::iter::successors(Some(pid), |pid| procfs::parent(*pid))
        .take_while(|pid| *pid > 1)
        .take(GENERATIONS)
        .find(is_ours)
}

fn has_agent(pid: u32) -> bool {
    let speaks = procfs::threads(pid).into_iter().any(|tid| procfs::is_agent(pid, tid));
    speaks || ImageLayout::of_agent().find_in(pid) == Found::Preloaded
}

/// The command line of a process, as far as it can be read.
pub fn command_line(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Bytes that a process could still take: the free memory of the machine, or that of the process's
/// cgroup if it is less.
pub fn room_for(pid: u32) -> u64 {
    let machine = free_memory().unwrap_or(0);
    Cgroup::of_process(pid).and_then(|cgroup| cgroup.room()).map_or(machine, |room| room.min(machine))
}

/// Checks whether `needed` bytes fit into `room`.
///
/// # Errors
/// The figures, for the user.
pub fn check_room(needed: u64, room: u64) -> Result<(), String> {
    /// Bytes that must stay free for all other programs.
    const MARGIN: u64 = 32 << 20;
    if needed + MARGIN.min(needed) <= room {
        return Ok(());
    }
    Err(format!("{} would have to come back into memory, and there is room for {}", human(needed), human(room)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_fits_and_the_figures_are_named() {
        assert_eq!(check_room(0, 0), Ok(()));
        assert_eq!(check_room(100 << 20, 132 << 20), Ok(()));
        let error = check_room(100 << 20, 131 << 20).expect_err("too much");
        assert!(error.contains("100 MiB") && error.contains("131 MiB"), "{error}");
    }

    #[test]
    fn the_setting_that_forbids_it_is_named() {
        let ourselves = std::process::id();
        let error = check_access(ourselves, "us", "0", NOBODY).expect_err("nobody may");
        assert!(error.contains("kernel.yama.ptrace_scope is 3 until the machine starts anew"), "{error}");
        assert_eq!(check_access(ourselves, "us", "0", 2), Ok(()));
        assert!(not_permitted("it", "7", 1).ends_with("SYS_PTRACE (kernel.yama.ptrace_scope is 1)"));
        assert!(not_permitted("it", "7", 0).ends_with("SYS_PTRACE"));
    }

    #[test]
    fn what_cannot_be_attached_to_is_named() {
        let complains = |pid: u32, text: &str| {
            let error = check(pid).expect_err("no");
            assert!(error.contains(text), "{error}");
        };
        complains(u32::MAX, "no process");
        complains(std::process::id(), "uswap itself");
        // A pid namespace other than the first has no such thread.
        if procfs::name(2).as_deref() == Some("kthreadd") {
            complains(2, "thread of the kernel");
        }
        let thread = std::thread::spawn(move || complains(uswap_sys::process::this_thread(), "a thread of process"));
        thread.join().expect("it ends");
    }
}
