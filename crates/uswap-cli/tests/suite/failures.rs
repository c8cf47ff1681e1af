//! The failure table of the design, row by row: what happens when the engine, the keeper or a
//! device fails. In every row the program reads right bytes, or a signal, or it is killed; it never
//! reads wrong ones.

use crate::common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::victims::victim;
use common::{
    Launch, Outcome, Running, Scratch, alone, figures, installed, is_root, not_here, plain, procs, skip, under,
};

const ENGINE_DIED: i32 = 70;
const EXHAUSTED: i32 = 71;
const BROKEN: i32 = 72;

/// A program that pages for as long as the test needs.
fn start_busy(memory: u64, seconds: u64) -> Running {
    let arguments = ["--seed", "77", "--seconds", &seconds.to_string(), "--memory", &memory.to_string()];
    let words = [victim("torture").into_os_string()].into_iter().chain(arguments.map(Into::into));
    under("64M").swap_file("2G").deadline(90).start(words)
}

/// What a victim says when it has found a wrong page.
fn no_wrong_page(outcome: &Outcome) {
    for word in ["expected", "found"] {
        assert!(!outcome.stderr.contains(word), "a page was wrong: {}", outcome.account());
    }
}

/// Moments spread over start, first touch, reclaim and forks.
const MOMENTS: [u64; 6] = [5, 60, 300, 700, 1500, 2900];

#[test]
fn engine_is_killed() {
    need_userfaultfd!();
    for moment in MOMENTS {
        let run = start_busy(128, 20);
        let engine = run.engine();
        std::thread::sleep(Duration::from_millis(moment));
        procs::kill(engine, 9);
        let outcome = run.wait();
        outcome.expect(ENGINE_DIED).complains("the engine was killed by signal 9");
        let ours = outcome.stderr.lines().filter(|line| line.starts_with("uswap:")).count();
        assert_eq!(ours, 1, "one line says why: {}", outcome.account());
        no_wrong_page(&outcome);
    }
}

/// The engine finds something that must not happen: nobody goes on with memory that may be wrong.
#[test]
fn what_must_not_happen_ends_the_tree() {
    need_userfaultfd!();
    let arguments = ["--seed", "78", "--seconds", "20", "--memory", "128"].map(Into::into);
    let words = [victim("torture").into_os_string()].into_iter().chain(arguments);
    let run = under("64M").faults("broken=8").deadline(60).start(words);
    let outcome = run.wait();
    outcome.expect(BROKEN).complains("a fault point says so");
    no_wrong_page(&outcome);
}

#[test]
fn keeper_is_killed() {
    need_userfaultfd!();
    for moment in [60, 700, 2000] {
        let run = start_busy(128, 20);
        run.engine();
        std::thread::sleep(Duration::from_millis(moment));
        run.signal(9);
        let outcome = run.wait();
        outcome.expect(128 + 9);
        no_wrong_page(&outcome);
    }
}

/// Between the fork of the command and its start: what was forked waits for a word that never
/// comes, and ends. With the rule off it waits for ever.
#[test]
fn keeper_is_killed_before_the_command_starts() {
    need_userfaultfd!();
    let left = |faults: &str| {
        let run = under("64M").faults(&format!("delay-command=500000{faults}")).deadline(60).start(["true"]);
        run.command();
        run.signal(9);
        let outcome = run.wait();
        assert_eq!(outcome.code(), 128 + 9, "{}", outcome.account());
        outcome.left
    };
    assert_eq!(left(""), Vec::<String>::new());
    assert_eq!(left(",keep-go").len(), 1, "nothing was left with the rule off");
}

/// Nobody is left to kill the programs: each agent does it for its own, also when it waits at a
/// gate that the engine had closed, with a doorbell in its socket that it has not taken out.
#[test]
fn keeper_and_engine_are_killed() {
    need_userfaultfd!();
    let quick = [1000, 2500].map(|moment| (moment, ""));
    let at_the_gate = [500, 610, 720, 830, 940, 1050, 1160, 1270].map(|moment| (moment, "delay-gate=20000"));
    for (moment, faults) in quick.into_iter().chain(at_the_gate) {
        let words = ["160", "seq", "--reads", "100"].map(Into::into);
        let words = [victim("fill_twice").into_os_string()].into_iter().chain(words);
        let run = under("64M").faults(faults).deadline(60).start(words);
        kill_both(&run, moment, 0);
        no_wrong_page(&run.wait());
    }
}

/// So long after memory is managed: a program none of whose memory was may live on. The engine
/// first stands still for some milliseconds.
fn kill_both(run: &Running, moment: u64, pause: u64) {
    let (engine, name) = (run.engine(), run.pid().to_string());
    let managed = || figures(&name)["managed_processes"].as_u64().filter(|managed| *managed > 0);
    run.until("managed memory", managed);
    std::thread::sleep(Duration::from_millis(moment));
    procs::kill(engine, 19);
    std::thread::sleep(Duration::from_millis(pause));
    procs::kill(run.pid(), 9);
    procs::kill(engine, 9);
    let left = run.settled(Duration::from_secs(10));
    assert!(left.is_empty(), "programs live on without their engine: {}", left.join("\n"));
}

/// An agent that gives up slots which a fork child inherited waits in the kernel until the engine
/// has read of it, and sees nothing end: the kernel ends its process. (Children that end first are
/// what their parents complain of.)
#[test]
fn keeper_and_engine_are_killed_while_agents_wait_for_them() {
    need_userfaultfd!();
    for moment in [2700, 3300] {
        let run = start_busy(128, 20);
        kill_both(&run, moment, 100);
        let mut outcome = run.wait();
        let by_us = |line: &&str| !line.contains("found wait status 0x9");
        outcome.stderr = outcome.stderr.lines().filter(by_us).collect::<Vec<_>>().join("\n");
        no_wrong_page(&outcome);
    }
}

/// The first process of a pid namespace is not killed by a signal from inside: its agent has to
/// leave with all threads.
#[test]
fn keeper_and_engine_are_killed_above_a_pid_namespace() {
    need_userfaultfd!();
    let namespace = ["unshare", "--pid", "--fork"];
    if plain().run(namespace.into_iter().chain(["true"])).code() != 0 {
        return not_here("pid namespaces are not permitted here");
    }
    let words = namespace.map(Into::into).into_iter().chain([victim("fill_twice").into_os_string()]);
    let run = under("64M").deadline(60).start(words.chain(["160", "seq", "--reads", "100"].map(Into::into)));
    kill_both(&run, 1500, 0);
    no_wrong_page(&run.wait());
}

/// Kills the engine while the keeper, which is to kill the programs, stands still for half a
/// second. Bare forks have no agents: only engine and keeper have their userfaultfds.
fn engine_is_killed_beside_a_late_keeper(moment: u64, faults: &str) -> Outcome {
    let words = ["--memory", "80", "--rounds", "60", "--timeout", "40"].map(Into::into);
    let words = [victim("raw_forks").into_os_string()].into_iter().chain(words);
    let run = under("64M").swap_file("1G").faults(faults).deadline(60).start(words);
    let engine = run.engine();
    std::thread::sleep(Duration::from_millis(moment));
    run.signal(19);
    procs::kill(engine, 9);
    std::thread::sleep(Duration::from_millis(500));
    run.signal(18);
    run.wait()
}

/// The engine's table of descriptors is the keeper's too: one of its own would be closed with it,
/// and whoever faults until the keeper has killed all would read zeros.
#[test]
fn descriptors_outlive_the_engine() {
    need_userfaultfd!();
    // The later ones are for a machine on which the program has hardly begun before.
    let moments = [1000, 1300, 1700, 2200, 3000, 4500];
    for moment in [1000, 1700] {
        let outcome = engine_is_killed_beside_a_late_keeper(moment, "");
        no_wrong_page(outcome.expect(ENGINE_DIED));
    }
    let reads_zeros = |moment: u64| {
        let outcome = engine_is_killed_beside_a_late_keeper(moment, "own-table");
        outcome.stderr.contains("expected version")
    };
    // Only who faults in that half second reads them.
    let mut tries = moments.into_iter().cycle().take(30);
    assert!(tries.any(reads_zeros), "nobody read zeros though the descriptors were closed");
}

/// `ulimit -n`, soft and hard.
fn with_descriptors(count: u32, launch: Launch) -> Launch {
    launch.wrapper(["sh", "-c", &format!("ulimit -n {count}; exec \"$0\" \"$@\"")])
}

/// More children at a time than there are descriptors for: the fork that is one too many can never
/// return. Who is to be killed must be found though no descriptor is left to look with.
#[test]
fn a_tree_that_needs_more_descriptors_than_there_are_is_killed_to_the_last() {
    need_userfaultfd!();
    let words = ["--memory", "70", "--processes", "150", "--waves", "0"].map(Into::into);
    let words = [victim("fork_storm").into_os_string()].into_iter().chain(words);
    let outcome = with_descriptors(200, under("64M").deadline(60)).run(words);
    outcome.expect(BROKEN).complains("cannot be followed").complains("ulimit");
    no_wrong_page(&outcome);
    let told = outcome.stderr.matches("descriptors have run out").count();
    assert_eq!(told, 1, "once a run: {}", outcome.account());
    assert!(!outcome.stderr.contains("os error 0"), "{}", outcome.account());
}

/// Descriptors for some of the programs: the others stay unmanaged.
#[test]
fn a_tree_that_is_short_of_descriptors_goes_on() {
    need_userfaultfd!();
    let script = "for i in 1 2 3 4 5 6 7 8 9; do \"$0\" 20 seq --reads 20 & p=\"$p $!\"; done; for q in $p; do wait $q || exit 1; done";
    let words = ["sh".into(), "-c".into(), script.into(), victim("fill_twice").into_os_string()];
    let outcome = with_descriptors(128, under("128M").deadline(60)).run(words);
    outcome.expect(0).complains("descriptors have run out");
    no_wrong_page(&outcome);
}

#[test]
fn too_few_descriptors_are_refused() {
    let outcome = with_descriptors(100, under("64M")).run(["true"]);
    outcome.expect(125).complains("no more than 100 files").complains("ulimit -Hn");
    let outcome = with_descriptors(100, plain()).run([common::USWAP, "doctor"]);
    outcome.expect(1);
    assert!(outcome.stdout.contains("ulimit -Hn 65536"), "{}", outcome.account());
}

/// Only the agents end a program whose engine and keeper are both gone.
#[test]
fn agents_end_programs_without_an_engine() {
    need_userfaultfd!();
    let words = ["160", "seq", "--reads", "100"].map(Into::into);
    let words = [victim("fill_twice").into_os_string()].into_iter().chain(words);
    let run = under("64M").faults("careless-agents").deadline(20).start(words);
    let engine = run.engine();
    std::thread::sleep(Duration::from_millis(1500));
    procs::kill(engine, 19);
    procs::kill(run.pid(), 9);
    procs::kill(engine, 9);
    let left = run.settled(Duration::from_secs(2));
    assert!(!left.is_empty(), "the program ended by itself");
}

/// A command that ignores SIGTERM and forks without end is no harder to kill.
#[test]
fn forking_tree_dies_with_its_engine() {
    need_userfaultfd!();
    let script = "trap '' TERM INT HUP; grow() { while :; do sleep 0.01 & sleep 0.005; done; }; \
                  setsid bash -c 'trap \"\" TERM; while :; do sleep 0.02; done' & grow & grow & wait";
    let run = under("64M").deadline(40).start(["bash", "-c", script]);
    let engine = run.engine();
    std::thread::sleep(Duration::from_millis(500));
    procs::kill(engine, 9);
    run.wait().expect(ENGINE_DIED);
}

fn status_kib(pid: u32, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_else(|| panic!("no {field}"));
    line.trim().trim_end_matches(" kB").parse().expect("KiB")
}

fn oom_score_adj(pid: u32) -> i32 {
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("oom_score_adj");
    text.trim().parse().expect("number")
}

/// A machine out of memory: the kernel neither swaps the engine out nor kills it or the keeper
/// before the programs.
#[test]
fn engine_is_locked_and_not_the_first_victim() {
    need_userfaultfd!();
    if !is_root() {
        return skip("needs root to lock memory");
    }
    if !installed("python3") {
        return skip("python3 is not installed");
    }
    // Begun high, so that there is a way down without CAP_SYS_RESOURCE too.
    let begin = ["sh", "-c", "echo 500 >/proc/self/oom_score_adj; exec \"$0\" \"$@\""];
    // Locked once memory grows.
    let script = "import time; held = bytearray(40 << 20); print('ready', flush=True); time.sleep(20)";
    let run = under("64M").waits().deadline(30).wrapper(begin).start(["python3", "-c", script]);
    run.says("ready");
    let (keeper, engine, command) = (run.pid(), run.engine(), run.command());
    let locked = run.until("locked memory", || Some(status_kib(engine, "VmLck:")).filter(|kib| *kib > 0));
    assert!(locked > 64 << 10, "the pool's reservation is not among the {locked} KiB that are locked");
    let resident = status_kib(engine, "VmRSS:");
    assert!(resident < 64 << 10, "what is reserved was touched by locking it: {resident} KiB");
    assert_eq!(status_kib(command, "VmLck:"), 0, "the command inherits no lock");
    assert_eq!(oom_score_adj(command), 500, "the command inherits no score");
    for protected in [keeper, engine] {
        assert!([-900, 0].contains(&oom_score_adj(protected)), "{}", oom_score_adj(protected));
    }
    run.signal(15);
    run.wait().expect(128 + 15);
}

fn sigbus_report(launch: Launch, memory: u32, rounds: u32) -> Running {
    let arguments = format!("--memory {memory} --rounds {rounds} --timeout 70");
    let words = [victim("sigbus_report").into_os_string()].into_iter();
    launch.deadline(90).start(words.chain(arguments.split(' ').map(Into::into)))
}

/// Space for less than is needed: an end with a reason, not a frozen machine.
#[test]
fn swap_space_is_exhausted() {
    need_userfaultfd!();
    let outcome = sigbus_report(under("32M").flag("-q").swap_file("32M"), 160, 1).wait();
    outcome.expect(EXHAUSTED).complains("swap space").complains("--swap");
    no_wrong_page(&outcome);
}

/// An ext4 file system of this many MiB in a file.
struct SmallDisk {
    folder: PathBuf,
    _scratch: Scratch,
}

impl SmallDisk {
    fn new(mebibytes: u64) -> Option<Self> {
        let scratch = Scratch::new();
        let (image, folder) = (scratch.path("disk"), scratch.path("mounted"));
        fs::create_dir(&folder).ok()?;
        fs::File::create(&image).ok()?.set_len(mebibytes << 20).ok()?;
        let made = Command::new("mkfs.ext4").args(["-q", "-F", "-O", "^has_journal", "-m", "0"]).arg(&image).status();
        let mounted = made.is_ok_and(|status| status.success())
            && Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&folder).status().is_ok_and(|s| s.success());
        mounted.then_some(Self { folder, _scratch: scratch })
    }

    fn swap(&self, options: &str) -> String {
        format!("{}/swap,{options}", self.folder.display())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}

macro_rules! need_disk {
    ($mebibytes:expr) => {
        match SmallDisk::new($mebibytes) {
            Some(disk) if is_root() => disk,
            _ => return not_here("a file system in a file cannot be mounted here"),
        }
    };
}

/// The file may be 1 GiB long, the disk under it is full after 40 MiB.
#[test]
fn disk_is_full() {
    need_userfaultfd!();
    let disk = need_disk!(40);
    let outcome = sigbus_report(under("32M").option("--swap", disk.swap("size=1G")), 192, 1).wait();
    outcome.expect(EXHAUSTED).complains("swap space");
    no_wrong_page(&outcome);
}

/// What a full disk does not take goes to the next device.
#[test]
fn next_device_takes_over_from_a_full_disk() {
    need_userfaultfd!();
    let disk = need_disk!(40);
    let launch = under("64M").option("--swap", disk.swap("size=1G,prio=10")).swap_file("1G");
    let outcome = sigbus_report(launch, 160, 1).wait();
    outcome.expect(0).paged();
    assert!(outcome.stdout.contains("sigbus 0"), "{}", outcome.account());
    let devices = outcome.stats.as_ref().expect("figures")["devices"].as_array().expect("devices").clone();
    let written = |at: usize| devices[at]["written_bytes"].as_u64().expect("bytes");
    assert!(written(0) > 30 << 20, "the disk of higher priority was filled first: {devices:?}");
    // Whether it still is `out_of_room` depends on the moment: once a second it is tried again.
    assert!(written(1) > 0, "then the other one took over: {devices:?}");
    assert!(devices[0]["name"].as_str().is_some_and(|name| name.starts_with(&*disk.folder.to_string_lossy())));
    assert_eq!(devices[0]["latched_off"], false, "a full disk is no broken disk: {devices:?}");
}

/// The number after a word in the last line of sigbus_report.
fn count(outcome: &Outcome, word: &str) -> u64 {
    let line = outcome.stdout.lines().last().unwrap_or_default();
    let mut words = line.split_whitespace().skip_while(|found| *found != word).skip(1);
    words.next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {word}: {}", outcome.account()))
}

/// Some pages are lost, and only those: SIGBUS for them, each named on stderr, all others right.
fn pages_are_lost(outcome: &Outcome, memory: u64) {
    outcome.expect(0);
    let (good, lost) = (count(outcome, "good"), count(outcome, "sigbus"));
    assert!(lost > 0, "no page was lost, so the damage was not seen: {}", outcome.account());
    assert!(good > 0 && good + lost == memory << 8, "{}", outcome.account());
    outcome.complains("is lost").complains("SIGBUS").complains("sigbus_report");
    assert!(outcome.stat("poisoned_pages") >= lost, "{}", outcome.account());
}

/// Runs sigbus_report over a named swap file and damages the file after the first round.
fn damage(harm: impl Fn(&Path)) -> Outcome {
    damage_of(under("48M"), harm)
}

fn damage_of(launch: Launch, harm: impl Fn(&Path)) -> Outcome {
    let scratch = Scratch::new();
    let swap = scratch.path("swap");
    let launch = launch.option("--pool", "0").option("--swap", format!("{},size=512M", swap.display()));
    let run = sigbus_report(launch, 128, 3);
    run.says("round 1 ");
    harm(&swap);
    run.wait()
}

#[test]
fn slots_are_corrupted() {
    need_userfaultfd!();
    let outcome = damage(|swap| {
        let file = OpenOptions::new().write(true).open(swap).expect("swap file");
        let junk = vec![0xa5; 1 << 20];
        for piece in (16..64).step_by(4) {
            file.write_all_at(&junk, piece << 20).expect("junk");
        }
        file.sync_all().expect("sync");
    });
    pages_are_lost(&outcome, 128);
    assert!(outcome.stat("checksum_errors") > 0, "{}", outcome.account());
}

/// A bit here and there.
#[test]
fn bits_are_flipped() {
    need_userfaultfd!();
    let outcome = damage(|swap| {
        let file = OpenOptions::new().read(true).write(true).open(swap).expect("swap file");
        for slot in (4096..20000u64).step_by(97) {
            let mut byte = [0];
            let at = slot * 4096 + slot % 4096;
            if file.read_at(&mut byte, at).expect("read") == 1 {
                file.write_all_at(&[byte[0] ^ 0x10], at).expect("write");
            }
        }
        file.sync_all().expect("sync");
    });
    pages_are_lost(&outcome, 128);
}

/// The file ends before the slot: a read error.
#[test]
fn slots_cannot_be_read() {
    need_userfaultfd!();
    let outcome = damage(|swap| {
        let file = OpenOptions::new().write(true).open(swap).expect("swap file");
        file.set_len(40 << 20).expect("truncate");
    });
    pages_are_lost(&outcome, 128);
}

/// `-q` is about chatter: a page that is lost is none.
#[test]
fn quiet_runs_tell_of_lost_pages() {
    need_userfaultfd!();
    let outcome = damage_of(under("48M").flag("-q"), |swap| {
        let file = OpenOptions::new().write(true).open(swap).expect("swap file");
        file.set_len(40 << 20).expect("truncate");
    });
    pages_are_lost(&outcome, 128);
    assert!(!outcome.stderr.contains("uswap: peak"), "no summary: {}", outcome.account());
}

/// An uid without capabilities: refused at once, with what to do about it.
#[test]
fn userfaultfd_is_refused() {
    if !is_root() || !common::installed("setpriv") {
        return skip("needs root and setpriv to become another user");
    }
    let _guard = alone();
    let copy = std::env::temp_dir().join(format!("uswap-of-another-user-{}", std::process::id()));
    fs::copy(common::USWAP, &copy).expect("copy");
    let other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"];
    let outcome = plain().wrapper(other).folder(Path::new("/")).run([
        copy.as_os_str(),
        "run".as_ref(),
        "--ram".as_ref(),
        "64M".as_ref(),
        "--".as_ref(),
        "true".as_ref(),
    ]);
    let _ = fs::remove_file(&copy);
    outcome.expect(125).complains("userfaultfd").complains("SYS_PTRACE").complains("--cap-add SYS_PTRACE");
    outcome.complains("--device /dev/userfaultfd");
}

/// A seccomp filter refuses userfaultfd to one program of the run: it runs, unmanaged, and is
/// named.
#[test]
fn userfaultfd_is_refused_to_one_program() {
    need_userfaultfd!();
    let words = [victim("refuse").into_os_string(), "userfaultfd".into(), victim("fill_twice").into_os_string()];
    let outcome = under("64M").run(words.into_iter().chain(["40".into(), "seq".into()]));
    outcome.expect(0).complains("stays unmanaged: no userfaultfd");
    assert!(outcome.stdout.contains("ok: ") && outcome.stat("managed_processes") == 0, "{}", outcome.account());
}

/// A container's profile refuses io_uring to the engine: threads read and write in its place.
#[test]
fn io_uring_is_refused() {
    need_userfaultfd!();
    let refuse = [victim("refuse").into_os_string(), "io_uring".into()];
    let program = victim("fill_twice").into_os_string();
    let run = |launch: Launch| {
        let launch = launch.option("--pool", "0").swap_file("1G").deadline(60);
        launch.run([program.clone(), "96".into(), "half-random".into(), "--reads".into(), "1".into()])
    };
    let with = run(under("64M"));
    with.expect(0).paged();
    let without = run(under("64M").wrapper(refuse));
    without.expect(0).paged();
    assert!(without.stat("pswpin") > 0 && without.stat("queued_reads") == 0, "{}", without.account());
    assert!(with.stat("queued_reads") > 0, "it is not refused without the filter: {}", with.account());
}

/// What `/proc` says of a thread's effective capabilities.
fn capabilities(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// A program that gives up root leaves no agent with root's capabilities behind.
#[test]
fn agents_have_no_capabilities() {
    need_userfaultfd!();
    if !is_root() {
        return skip("needs root to give it up");
    }
    let text = "#include <unistd.h>\nint main() { if (setuid(65534)) return 1; write(1, \"other\", 5); sleep(20); return 0; }\n";
    let program = common::victims::compile_text("gives_up_root", text);
    let run = under("64M").waits().deadline(30).start([program]);
    run.says("other");
    let command = run.command();
    let agent = run.until("an agent", || procs::agent(command));
    run.until("an agent without capabilities", || (capabilities(agent)? == 0).then_some(()));
    assert_eq!(capabilities(command), Some(0), "the program has given them up");
    run.signal(15);
    run.wait();
}

/// A setuid program in the tree, started by another user: it works, and is managed or named.
#[test]
fn setuid_programs_run() {
    need_userfaultfd!();
    if !is_root() || !common::installed("setpriv") {
        return skip("needs root and setpriv to become another user");
    }
    let copy = std::env::temp_dir().join(format!("uswap-setuid-{}", std::process::id()));
    fs::copy(victim("fill_twice"), &copy).expect("copy");
    fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).expect("mode");
    let other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"].map(Into::into);
    // Long enough to be found: the program begins without an agent, which is then injected.
    let arguments = ["96", "half-random", "--reads", "12"].map(Into::into);
    let words = other.into_iter().chain([copy.clone().into_os_string()]).chain(arguments);
    let outcome = under("64M").swap_file("1G").deadline(200).run(words);
    let _ = fs::remove_file(&copy);
    outcome.expect(0);
    assert!(outcome.stdout.contains("ok: "), "{}", outcome.account());
    let named =
        outcome.stats.as_ref().is_some_and(|stats| stats["unmanaged"].as_array().is_some_and(|all| !all.is_empty()));
    assert!(outcome.stat("attached") > 0 && outcome.stat("pgsteal") > 0 || named, "{}", outcome.account());
}
