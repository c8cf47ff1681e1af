//! `uswap doctor`: tries everything that a run needs, and tells how to get what does not work.
//!
//! A check *fails* only if `uswap run` would refuse because of it; a warning tells what will work
//! less well.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use uswap_core::reclaim::age_test::AgeTest;
use uswap_core::reclaim::staging::Staging;
use uswap_core::util::size::human;
use uswap_run::cgroup::{Cgroup, machine_memory};
use uswap_run::fd_budget;
use uswap_run::heap_limits;
use uswap_sys::process::{self, ResourceLimit};
use uswap_sys::userfaultfd::{self as uffd, Userfaultfd};

use crate::commands::run;
use crate::host::probe;
use crate::host::{self, Host};

#[derive(Args, Debug)]
pub struct DoctorArguments {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DoctorVerdict {
    /// It works.
    Works,
    /// It works, with a remark.
    Note,
    /// A run works, but less well.
    Warning,
    /// A run does not work.
    Fails,
}

impl DoctorVerdict {
    fn word(self) -> &'static str {
        match self {
            Self::Works => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fails => "FAILS",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug)]
struct Check {
    subject: &'static str,
    verdict: DoctorVerdict,
    found: String,
    fix: Option<String>,
}

impl Check {
    fn new(subject: &'static str, verdict: DoctorVerdict, found: impl Into<String>) -> Self {
        Self { subject, verdict, found: found.into(), fix: None }
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// `Works` if `result` is no error, otherwise `bad` with a fix.
    fn of(subject: &'static str, result: io::Result<()>, bad: DoctorVerdict, fix: &str) -> Self {
        match result {
            Ok(()) => Self::new(subject, DoctorVerdict::Works, "works"),
            Err(error) => Self::new(subject, bad, error.to_string()).fix(fix),
        }
    }
}

/// Runs all checks and prints the results; returns 0 if `uswap run` works here, else 1.
pub fn run(arguments: &DoctorArguments) -> i32 {
    let host = Host::look();
    let mut checks = vec![kernel(), architecture()];
    checks.extend(permissions(&host));
    checks.extend(features(&host));
    checks.extend(remote_hands());
    checks.extend(swap_places());
    checks.extend(unpinned_reads());
    checks.push(mounts());
    checks.extend(memory());
    checks.extend(limits());
    checks.extend(host.container.map(container));
    let works = checks.iter().all(|check| check.verdict != DoctorVerdict::Fails);
    crate::print(&if arguments.json { as_json(&checks, works) } else { as_text(&checks, works) });
    i32::from(!works)
}

fn as_json(checks: &[Check], works: bool) -> String {
    let list = checks.iter().map(|check| {
        let verdict = check.verdict.word().to_lowercase();
        json!({ "check": check.subject, "verdict": verdict, "found": check.found, "fix": check.fix })
    });
    let list: Vec<Value> = list.collect();
    format!("{:#}\n", json!({ "run_works": works, "checks": list }))
}

fn as_text(checks: &[Check], works: bool) -> String {
    let width = checks.iter().map(|check| check.subject.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        text += &format!("{:<width$}  {:<7}  {}\n", check.subject, check.verdict.word(), check.found);
        for line in check.fix.iter().flat_map(|fix| fix.lines()) {
            text += &format!("{:<width$}           -> {line}\n", "");
        }
    }
    let end = if works { "`uswap run` works here." } else { "`uswap run` does not work here: see what FAILS." };
    text + "\n" + end + "\n"
}

fn kernel() -> Check {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = text.trim();
    match host::kernel_version(release) {
        Some(version) if version >= (6, 11) => Check::new("kernel", DoctorVerdict::Works, format!("Linux {release}")),
        Some(version) => {
            let missing = if version < (6, 8) { "UFFDIO_MOVE (6.8) and PROCMAP_QUERY (6.11)" } else { "PROCMAP_QUERY" };
            let found = format!("Linux {release} lacks {missing}");
            Check::new("kernel", DoctorVerdict::Fails, found).fix("Linux 6.11 or later is needed")
        }
        None => {
            Check::new("kernel", DoctorVerdict::Note, format!("{release:?} is not a version; the checks below tell"))
        }
    }
}

fn architecture() -> Check {
    match std::env::consts::ARCH {
        "x86_64" => Check::new("architecture", DoctorVerdict::Works, "x86-64"),
        other => Check::new("architecture", DoctorVerdict::Fails, other).fix("only x86-64 is supported"),
    }
}

fn permissions(host: &Host) -> Vec<Check> {
    let device = match Userfaultfd::by_device() {
        Ok(_) => Check::new("/dev/userfaultfd", DoctorVerdict::Works, "can be opened"),
        Err(error) => {
            Check::new("/dev/userfaultfd", DoctorVerdict::Note, error.to_string()).fix(device_fix(&error, host))
        }
    };
    let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    let sysctl = format!("vm.unprivileged_userfaultfd = {}", sysctl.trim());
    let call = match Userfaultfd::by_system_call() {
        Ok(_) => Check::new("userfaultfd(2)", DoctorVerdict::Works, format!("permitted ({sysctl})")),
        Err(error) => Check::new("userfaultfd(2)", DoctorVerdict::Note, format!("{error} ({sysctl})")),
    };
    let either = match Userfaultfd::for_this_process() {
        Ok(_) => Check::new("userfaultfd", DoctorVerdict::Works, "can be made"),
        Err(error) => Check::new("userfaultfd", DoctorVerdict::Fails, error.to_string()).fix(privilege_fix(host)),
    };
    vec![device, call, either]
}

fn device_fix(error: &io::Error, host: &Host) -> &'static str {
    match (error.kind(), host.container) {
        (io::ErrorKind::NotFound, Some(_)) => "give the container the device: docker run --device /dev/userfaultfd",
        (io::ErrorKind::NotFound, None) => "not needed where userfaultfd(2) is permitted",
        _ => {
            "not needed where userfaultfd(2) is permitted; else allow this user: setfacl -m u:NAME:rw /dev/userfaultfd"
        }
    }
}

/// Text that tells how to get userfaultfd with fork events.
fn privilege_fix(host: &Host) -> String {
    match host.container {
        _ if !host.initial_user_namespace => {
            "not possible in a user namespace (a rootless container is one): fork events need CAP_SYS_PTRACE of the host"
                .into()
        }
        Some(host::KUBERNETES) => KUBERNETES_FIX.into(),
        Some(_) => "as root in the container: docker run --cap-add SYS_PTRACE --device /dev/userfaultfd ...".into(),
        None => "run it as root, or as a user with the ambient capability:\n\
                 sudo setpriv --reuid=NAME --regid=GROUP --init-groups \
                 --inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace uswap run ..."
            .into(),
    }
}

const KUBERNETES_FIX: &str = "in the container's part of the pod:\n\
    securityContext: {capabilities: {add: [SYS_PTRACE]}, seccompProfile: {type: Unconfined}}\n\
    (or keep the profile and give the device /dev/userfaultfd by a device plugin)";

fn features(host: &Host) -> Vec<Check> {
    let capability = match (host.may_trace, host.initial_user_namespace) {
        (true, true) => Check::new("CAP_SYS_PTRACE", DoctorVerdict::Works, "held, in the initial user namespace"),
        (true, false) => Check::new("CAP_SYS_PTRACE", DoctorVerdict::Note, "held, but only in a user namespace"),
        (false, _) => Check::new("CAP_SYS_PTRACE", DoctorVerdict::Note, "not held"),
    };
    if Userfaultfd::for_this_process().is_err() {
        return vec![capability];
    }
    let fork = probe::features(uffd::FEATURE_EVENT_FORK);
    let mut checks = vec![capability, Check::of("fork events", fork, DoctorVerdict::Fails, &privilege_fix(host))];
    let newer = "a newer kernel";
    for (subject, feature) in [
        ("remap events", uffd::FEATURE_EVENT_REMAP),
        ("remove events", uffd::FEATURE_EVENT_REMOVE),
        ("unmap events", uffd::FEATURE_EVENT_UNMAP),
        ("UFFDIO_MOVE", uffd::FEATURE_MOVE),
        ("UFFDIO_POISON", uffd::FEATURE_POISON),
        ("SIGBUS mode", uffd::FEATURE_SIGBUS),
        ("thread ids", uffd::FEATURE_THREAD_ID),
    ] {
        checks.push(Check::of(subject, probe::features(feature), DoctorVerdict::Fails, newer));
    }
    checks.push(ageing());
    checks
}

/// Tells how the engine finds out whether a page is in use.
fn ageing() -> Check {
    let means = "pages that are next to go leave the program first, and one that is touched then is in use";
    Check::new(
        "ageing",
        DoctorVerdict::Works,
        format!("by {}: {means} (this build knows no access bit of any kernel)", Staging::NAME),
    )
}

fn remote_hands() -> Vec<Check> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let mut read = Check::of(
        "process_vm_readv",
        probe::read_child(),
        DoctorVerdict::Fails,
        "sysctl kernel.yama.ptrace_scope=1, or a seccomp profile that permits it",
    );
    if !scope.trim().is_empty() {
        read.found += &format!(" on children (kernel.yama.ptrace_scope = {})", scope.trim());
    }
    let opaque = match host::is_opaque() {
        false => Check::new("own descriptors", DoctorVerdict::Works, "can be opened by the programs of a run"),
        true => Check::new("own descriptors", DoctorVerdict::Fails, "cannot be opened by programs, to load the agent")
            .fix("no capabilities on the binary (setcap -r); make them ambient, or be root"),
    };
    vec![
        opaque,
        Check::of("PAGEMAP_SCAN", probe::pagemap_scan(), DoctorVerdict::Fails, "Linux 6.7 or later"),
        Check::of("PROCMAP_QUERY", probe::procmap_query(), DoctorVerdict::Fails, "Linux 6.11 or later"),
        read,
        Check::of(
            "io_uring",
            uswap_sys::IoRing::new(8).map(drop),
            DoctorVerdict::Note,
            "not needed; device reads go one by one without it (sysctl kernel.io_uring_disabled, seccomp profile)",
        ),
    ]
}

/// Checks the directories in which a run without `--swap` makes its file, in the run's order: the
/// first one that works is used.
fn swap_places() -> Vec<Check> {
    let temporary = uswap_sys::process::temporary_folder().map(|folder| ("swap in $TMPDIR", folder));
    let places = temporary.into_iter().chain([("swap in /var/tmp", PathBuf::from("/var/tmp"))]);
    let mut checks: Vec<Check> = places.map(|(subject, directory)| swap_place(subject, &directory)).collect();
    let usable = checks.iter().any(|check| check.verdict != DoctorVerdict::Note);
    if !usable && let Some(last) = checks.last_mut() {
        last.verdict = DoctorVerdict::Fails;
        last.fix = Some("set TMPDIR to a directory on a disk, or name a file or block device: --swap PATH".into());
    }
    checks
}

fn swap_place(subject: &'static str, directory: &Path) -> Check {
    let file = match probe::swap_file(directory) {
        Ok(file) => file,
        Err(error) => return Check::new(subject, DoctorVerdict::Note, error.to_string()),
    };
    let cached = if file.direct { "direct I/O" } else { "no direct I/O" };
    let way = if file.uring { "io_uring" } else { "positioned reads" };
    let found = format!("{} free, {cached}, {way}", human(file.free));
    if !file.direct {
        let fix = "what is swapped there passes through the page cache, which counts; better a disk: --swap PATH";
        return Check::new(subject, DoctorVerdict::Warning, found).fix(fix);
    }
    if file.free < 1 << 30 {
        let fix = "a run may fill half of that; when the room ends the tree is stopped: --swap PATH";
        return Check::new(subject, DoctorVerdict::Warning, found).fix(fix);
    }
    Check::new(subject, DoctorVerdict::Works, found)
}

/// Checks for file systems whose direct reads hold their buffers in a way that the kernel's check
/// before a move does not see.
fn unpinned_reads() -> Option<Check> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let found = unpinned_in(&mounts);
    let fix = "programs that read files there with O_DIRECT into memory that they have not touched for long: without uswap, or\n\
               with the buffers locked (mlock); reads through the page cache are safe";
    (!found.is_empty()).then(|| Check::new("direct reads", DoctorVerdict::Note, found.join(", ")).fix(fix))
}

/// `FOLDER (KIND)` of each such mount in the text of /proc/self/mounts.
fn unpinned_in(mounts: &str) -> Vec<String> {
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let (folder, kind) = (fields.next()?, fields.next()?);
        matches!(kind, "nfs" | "nfs4" | "9p").then(|| format!("{folder} ({kind})"))
    };
    mounts.lines().filter_map(mount).collect()
}

/// Checks what `uswap mount` needs. A run does not need it.
fn mounts() -> Check {
    let subject = "/dev/fuse";
    let has_helper = || run::find_program("fusermount3".as_ref()).is_ok();
    match uswap_sys::fs::fuse::open() {
        Err(error) => Check::new(subject, DoctorVerdict::Note, error.to_string())
            .fix("only `uswap mount` needs it: modprobe fuse; in a container --device /dev/fuse --cap-add SYS_ADMIN"),
        Ok(_) if process::user() != 0 && !has_helper() => {
            Check::new(subject, DoctorVerdict::Note, "can be opened, but fusermount3 is missing")
                .fix("users other than root need it for `uswap mount`: package fuse3")
        }
        Ok(_) => Check::new(subject, DoctorVerdict::Works, "can be opened, for `uswap mount`"),
    }
}

fn memory() -> Vec<Check> {
    let machine = machine_memory().unwrap_or(0);
    let cgroup = Cgroup::of_this_process();
    let limit = match &cgroup {
        Some(cgroup) => {
            let usage = cgroup.usage().map_or("?".into(), human);
            format!("{} of cgroup v{}, {usage} in use", human(cgroup.limit()), cgroup.version())
        }
        None => format!("none below the machine's {}", human(machine)),
    };
    let found = human(cgroup.as_ref().map_or(machine, Cgroup::limit));
    let automatic = human(run::automatic_budget(machine, cgroup));
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let swap = match swaps.lines().count().saturating_sub(1) {
        0 => Check::new("kernel swap", DoctorVerdict::Works, "none (not needed)"),
        n => Check::new(
            "kernel swap",
            DoctorVerdict::Note,
            format!("{n} in use: the kernel may swap out the same pages"),
        ),
    };
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    let overcommit = match mode.trim() {
        "2" => Check::new("overcommit", DoctorVerdict::Warning, "vm.overcommit_memory = 2 (strict)")
            .fix("each process is charged 256 MiB for its staging range: vm.overcommit_memory=0"),
        other => Check::new("overcommit", DoctorVerdict::Works, format!("vm.overcommit_memory = {other}")),
    };
    vec![
        Check::new("memory limit", DoctorVerdict::Note, limit),
        Check::new("--ram auto", DoctorVerdict::Note, format!("begins with {automatic}")),
        Check::new(
            "heap limits",
            DoctorVerdict::Note,
            format!("node, java, .NET and others take theirs from the {found} here"),
        )
        .fix(heap_limits::advice()),
        swap,
        overcommit,
    ]
}

fn limits() -> Vec<Check> {
    let unlimited = |value: u64| if value == u64::MAX { "unlimited".into() } else { value.to_string() };
    let files = process::open_files_limit().unwrap_or(ResourceLimit { soft: 0, hard: 0 });
    let verdict = match files.hard {
        ..fd_budget::MIN => DoctorVerdict::Fails,
        fd_budget::MIN..4096 => DoctorVerdict::Warning,
        _ => DoctorVerdict::Works,
    };
    let found = format!("soft {}, hard {}", unlimited(files.soft), unlimited(files.hard));
    let mut open = Check::new("RLIMIT_NOFILE", verdict, found);
    if files.hard < 4096 {
        let (each, least) = (fd_budget::OF_A_PROCESS, fd_budget::MIN);
        let text =
            format!("each managed process takes about {each} descriptors, a run {least} at least: ulimit -Hn 65536\n");
        open = open.fix(text + "when they run out processes stay unmanaged, and a run that goes on forking is ended");
    }
    let maps = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    let maps: u64 = maps.trim().parse().unwrap_or(0);
    let mut count = Check::new("vm.max_map_count", DoctorVerdict::Works, maps.to_string());
    if maps < 65530 {
        (count.verdict, count.fix) =
            (DoctorVerdict::Warning, Some("sysctl vm.max_map_count=65530 (the default)".into()));
    }
    vec![open, count, locked_memory(), oom_protection(), priority()]
}

/// Tries to lock memory in this process.
fn locked_memory() -> Check {
    let result = process::lock_memory();
    process::unlock_memory();
    let fix = "the kernel may swap the engine out, which makes faults slower; where there is kernel swap:\n\
               CAP_IPC_LOCK, or ulimit -l unlimited (docker run --cap-add IPC_LOCK or --ulimit memlock=-1)";
    match result {
        Ok(()) => Check::new("engine locked", DoctorVerdict::Works, "its memory stays in RAM"),
        Err(error) => {
            let limit = process::locked_memory_limit().map_or(0, |limit| limit.hard);
            let found = format!("no: {error} (RLIMIT_MEMLOCK {})", human(limit));
            Check::new("engine locked", DoctorVerdict::Note, found).fix(fix)
        }
    }
}

/// Tries to lower the OOM score of this process.
fn oom_protection() -> Check {
    let tried = process::lower_oom_score_adj(-900).and_then(process::restore_oom_score_adj);
    let fix = "the kernel's OOM killer may choose the engine, and the whole tree ends with it: CAP_SYS_RESOURCE";
    match tried {
        Ok(()) => {
            Check::new("engine and OOM", DoctorVerdict::Works, "the OOM killer chooses programs before the engine")
        }
        Err(error) => Check::new("engine and OOM", DoctorVerdict::Note, format!("not protected: {error}")).fix(fix),
    }
}

/// Checks whether the engine may run before the programs and, for a moment, after them.
fn priority() -> Check {
    let fix = "faults of a thread that faults alone take about twice as long, and fast growth is seen later:\n\
               CAP_SYS_NICE, or ulimit -e 31 (docker run --cap-add SYS_NICE)";
    match process::may_take_niceness(uswap_run::boost::HURRIED) {
        true => Check::new("engine's priority", DoctorVerdict::Works, "it may give way to a program and come back"),
        false => Check::new("engine's priority", DoctorVerdict::Note, "not above that of the programs").fix(fix),
    }
}

fn container(kind: &'static str) -> Check {
    Check::new("container", DoctorVerdict::Note, format!("this looks like {kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failed_check_spoils_the_whole() {
        let good = [
            Check::new("a", DoctorVerdict::Warning, "x").fix("one\ntwo"),
            Check::new("long", DoctorVerdict::Works, "y"),
        ];
        let text = as_text(&good, true);
        assert!(text.starts_with("a     warning  x\n               -> one\n               -> two\nlong  ok       y\n"));
        let parsed: Value = serde_json::from_str(&as_json(&good, true)).expect("JSON");
        assert_eq!(parsed["run_works"], true);
        assert_eq!(parsed["checks"][0]["fix"], "one\ntwo");
    }

    #[test]
    fn mounts_with_unpinned_reads_are_found_by_their_kind() {
        let mounts = "server:/x /mnt/x nfs4 rw 0 0\nnfs /mnt/nfs ext4 rw 0 0\nhost0 /9p 9p ro 0 0\nold:/y /y nfs rw 0 0\nbroken\n";
        assert_eq!(unpinned_in(mounts), ["/mnt/x (nfs4)", "/9p (9p)", "/y (nfs)"]);
        assert!(unpinned_in("/dev/sda / ext4 rw 0 0\n").is_empty());
    }

    #[test]
    fn every_check_that_fails_comes_with_a_fix() {
        let host = Host { container: None, may_trace: false, initial_user_namespace: true };
        let all = [kernel(), architecture()].into_iter().chain(permissions(&host)).chain(features(&host));
        for check in all.chain(swap_places()).chain(memory()).chain(limits()) {
            assert!(check.verdict != DoctorVerdict::Fails || check.fix.is_some(), "{check:?}");
        }
    }
}
