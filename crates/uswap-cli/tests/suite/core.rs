//! `uswap core`: a core file has every page, wherever it lies and whatever happens meanwhile, and
//! the program goes on.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::elf::Core;
use common::victims::victim;
use common::{Launch, Outcome, Running, Scratch, USWAP, figures, procs, under};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const NT_PRSTATUS: u32 = 1;
const NO_PAGE: [u64; 0] = [];

fn core_command(words: &[&str]) -> Command {
    let mut command = Command::new(USWAP);
    command.arg("core").args(words);
    command
}

fn says(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[track_caller]
fn succeeds(words: &[&str]) -> String {
    let output = core_command(words).output().expect("uswap runs");
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", says(&output));
    says(&output)
}

#[track_caller]
fn is_refused(words: &[&str], why: &str) {
    let output = core_command(words).output().expect("uswap runs");
    assert_eq!(output.status.code(), Some(125), "{words:?}: {}", says(&output));
    assert!(says(&output).contains(why), "{words:?}: {}", says(&output));
}

/// A run of `patterned`.
struct Patterned {
    running: Running,
    folder: Scratch,
    name: String,
    memory: u64,
}

impl Patterned {
    /// Once it has filled its memory.
    fn start(test: &str, launch: Launch, memory: u64, more: &[&str]) -> Self {
        let (name, folder) = (format!("core-{test}-{}", std::process::id()), Scratch::new());
        let (place, size) = (folder.path(""), memory.to_string());
        let mut words = vec![victim("patterned").into_os_string(), "--folder".into(), place.into_os_string()];
        words.extend(["--memory", &size].iter().chain(more).map(Into::into));
        let running = launch.deadline(150).option("--name", &name).start(words);
        running.says("ready ");
        Self { running, folder, name, memory: memory * MIB }
    }

    /// What follows these words on its output.
    fn told(&self, words: &str) -> String {
        let text = self.running.stdout();
        let line = text.lines().find_map(|line| line.strip_prefix(words));
        line.unwrap_or_else(|| panic!("no {words:?} in {text}")).to_owned()
    }

    fn address(&self, words: &str) -> u64 {
        u64::from_str_radix(self.told(words).trim_start_matches("0x"), 16).expect("an address")
    }

    fn pid(&self) -> String {
        self.told("ready ")
    }

    fn file(&self) -> PathBuf {
        self.folder.path("the core file")
    }

    /// Writes a core file of this process.
    #[track_caller]
    fn write(&self, pid: &str) -> Core {
        let file = self.file();
        let told = succeeds(&[&self.name, pid, "-o", &file.display().to_string()]);
        assert!(told.contains(" of memory, "), "{told}");
        Core::open(&file)
    }

    /// One that goes on meanwhile.
    fn begin(&self) -> Child {
        let file = self.file().display().to_string();
        let mut command = core_command(&[&self.name, &self.pid(), "-o", &file]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("uswap runs")
    }

    fn figure(&self, name: &str) -> u64 {
        figures(&self.name)[name].as_u64().unwrap_or(0)
    }

    fn on_device(&self) -> u64 {
        figures(&self.name)["devices"][0]["used_bytes"].as_u64().unwrap_or(0)
    }

    /// Pages of the file that are not what the process has.
    fn wrong(&self, core: &Core, number: impl Fn(u64) -> u64) -> Vec<u64> {
        wrong_pages(core, self.address("pages "), self.memory / PAGE, number)
    }

    /// Everything that the process has is in the file, and nothing that it left out.
    #[track_caller]
    fn is_whole(&self, core: &Core) {
        assert_eq!(self.wrong(core, |page| page), NO_PAGE, "pages that are wrong");
        assert_eq!(wrong_pages(core, self.address("protected "), 64, |page| page + 3_000_000), NO_PAGE);
        assert_eq!(wrong_pages(core, self.address("reserved "), 1, |_| 4_000_003), NO_PAGE);
        assert_eq!(core.read(self.address("left out "), 1), None, "MADV_DONTDUMP");
        assert_eq!(core.read(self.address("reserved ") - PAGE, 1), None, "a reservation is not written");
    }

    /// The program checks all of its memory, and ends.
    #[track_caller]
    fn goes_on(self) -> Outcome {
        go(&self.folder.path("go"));
        let outcome = self.running.wait();
        outcome.expect(0);
        assert_eq!(outcome.stat("checksum_errors") + outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
        outcome
    }

    /// No file is there, and no part of one.
    #[track_caller]
    fn left_no_file(&self) {
        let found = std::fs::read_dir(self.folder.path("")).expect("the folder").flatten();
        let names: Vec<_> = found.map(|entry| entry.file_name()).collect();
        assert!(!names.iter().any(|name| name.to_string_lossy().contains("core")), "{names:?}");
    }
}

fn go(pipe: &Path) {
    std::fs::write(pipe, "go\n").expect("the program's pipe");
}

fn mix64(from: u64) -> u64 {
    let x = from.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What a page of that number holds (`patterned.c`).
fn expected(page: u64) -> Vec<u8> {
    let word = |word: u64| match page % 5 {
        0 => 0,
        1 => mix64(page),
        2 => mix64(page) ^ (word % 16),
        4 if word >= 256 => mix64(page),
        _ => mix64(page * 512 + word),
    };
    (0..512).map(word).flat_map(u64::to_le_bytes).collect()
}

fn wrong_pages(core: &Core, address: u64, pages: u64, number: impl Fn(u64) -> u64) -> Vec<u64> {
    let is_wrong = |page: &u64| core.read(address + page * PAGE, PAGE as usize) != Some(expected(number(*page)));
    (0..pages).filter(is_wrong).collect()
}

/// Pages in memory, staged, in the pool, on the device, and of zeros: all are in the file, and none
/// of them moved for it.
#[test]
fn every_page_is_in_the_file_wherever_it_lies() {
    need_userfaultfd!();
    let program = Patterned::start("whole", under("64M").option("--pool", "40").faults("audit,no-alloc=1"), 128, &[]);
    program.running.until("pages on the device", || (program.on_device() > 4 * MIB).then_some(()));
    let before = ["pgmajfault", "soft_faults", "swpin_zero"].map(|name| program.figure(name));
    let core = program.write(&program.pid());
    let after = ["pgmajfault", "soft_faults", "swpin_zero"].map(|name| program.figure(name));
    program.is_whole(&core);
    assert!(program.figure("stored_pages") > 8192 && program.figure("pool_pages") > 0 && program.on_device() > 4 * MIB);
    // Threads that were interrupted may touch a few pages of their own.
    let moved: u64 = after.iter().zip(before).map(|(after, before)| after - before).sum();
    assert!(moved < 256, "{moved} pages came back for it");
    assert_eq!(core.count(NT_PRSTATUS), 3, "the program's threads, without the agent");
    program.goes_on().paged();
}

/// The rule off: the same test finds every page that is missing.
#[test]
fn a_file_without_evicted_pages_is_not_whole() {
    need_userfaultfd!();
    let program = Patterned::start("forgotten", under("64M").faults("forget-evicted"), 128, &[]);
    let core = program.write(&program.pid());
    let wrong = program.wrong(&core, |page| page).len() as u64;
    assert!(wrong > 4096, "{wrong} wrong pages");
    program.goes_on().paged();
}

/// While pages go out as fast as they can, because the limit falls, none is missed on its way.
#[test]
fn pages_that_move_meanwhile_are_not_missed() {
    need_userfaultfd!();
    let faults = "audit,delay-move=300,delay-store=300,delay-absorb=3000";
    let program = Patterned::start("moving", under("256M").faults(faults), 128, &[]);
    for (turn, limit) in ["48M", "32M", "24M"].into_iter().enumerate() {
        let before = program.figure("pgsteal");
        let core = program.begin();
        let lowered = Command::new(USWAP).args(["limit", &program.name, limit]).output().expect("uswap runs");
        let output = core.wait_with_output().expect("an end");
        assert_eq!(output.status.code(), Some(0), "{} {}", says(&output), says(&lowered));
        assert_eq!(program.wrong(&Core::open(&program.file()), |page| page), NO_PAGE, "turn {turn}");
        assert!(program.figure("pgsteal") > before, "nothing went in turn {turn}");
    }
    program.goes_on().paged();
}

/// Parent and child of a fork share evicted pages, and each file has its own.
#[test]
fn parent_and_child_of_a_fork_have_their_own_pages() {
    need_userfaultfd!();
    let program = Patterned::start("fork", under("64M").faults("audit"), 96, &["--fork"]);
    program.running.says("child ");
    let child = program.told("child ");
    let core = program.write(&child);
    assert_eq!(
        program.wrong(&core, |page| if page % 7 == 0 { page + 1_000_000 } else { page }),
        NO_PAGE,
        "the child's"
    );
    program.is_whole(&program.write(&program.pid()));
    go(&program.folder.path("go-child"));
    program.goes_on().paged();
}

/// Where nothing is evicted, and nothing even managed, it is a core file like any other. An older
/// one is replaced, and only its owner can read it.
#[test]
fn a_program_that_is_not_managed_yet_has_a_core_file_too() {
    use std::os::unix::fs::PermissionsExt;
    need_userfaultfd!();
    let program = Patterned::start("unmanaged", under("4G"), 16, &[]);
    std::fs::write(program.file(), "an older one").expect("a file");
    let core = program.write(&program.pid());
    program.is_whole(&core);
    let mode = program.file().metadata().expect("the file").permissions().mode();
    assert_eq!((mode & 0o777, program.figure("pgsteal")), (0o600, 0));
    program.goes_on();
}

/// gdb finds threads, variables and evicted memory.
#[test]
fn gdb_reads_the_file() {
    need_userfaultfd!();
    if !common::installed("gdb") {
        return common::skip("gdb is not installed");
    }
    let program = Patterned::start("gdb", under("64M"), 128, &[]);
    program.write(&program.pid());
    let address = program.address("pages ");
    // Evicted early, and told by its one word.
    let look = format!("x/gx {:#x}", address + 6 * PAGE);
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-ex", &look, "-ex", "print pages", "-ex", "info threads", "-ex", "thread apply all bt"]);
    gdb.arg(victim("patterned")).arg("the core file").current_dir(program.folder.path(""));
    let output = says(&gdb.output().expect("gdb runs"));
    assert!(output.contains(&format!("{:#018x}", mix64(6))), "{output}");
    assert!(output.contains(&format!("= {}", program.memory / PAGE)), "{output}");
    assert_eq!(output.matches("sleep_long").count(), 2, "{output}");
    assert!(output.contains("wait_for_go"), "{output}");
    program.goes_on().paged();
}

const PYTHON: &str = "
import os, sys, time
kept = [bytes([n % 251 + 1]) * 4096 * 16 for n in range(2048)]
print('from', id(kept[100]) + 32, flush=True)
print('ready', os.getpid(), flush=True)
time.sleep(float(sys.argv[1]))
assert all(block == bytes([n % 251 + 1]) * 4096 * 16 for n, block in enumerate(kept))
";

/// An object of a Python program that was evicted.
#[test]
fn a_python_program() {
    need_userfaultfd!();
    let name = format!("core-python-{}", std::process::id());
    let (folder, launch) = (Scratch::new(), under("64M").option("--name", &name).deadline(120));
    let running = launch.start(["python3", "-c", PYTHON, "8"]);
    running.says("ready ");
    let text = running.stdout();
    let number = |word| text.lines().find_map(|line| line.strip_prefix(word)).expect("a line").trim().to_owned();
    let file = folder.path("core");
    succeeds(&[&name, &number("ready"), "-o", &file.display().to_string()]);
    let found = Core::open(&file).read(number("from").parse().expect("an address"), 4096 * 16);
    assert!(found.is_some_and(|bytes| bytes == vec![101; 4096 * 16]), "the bytes of the object");
    running.wait().expect(0).paged();
}

#[test]
fn what_cannot_be_done_is_refused_with_a_sentence_and_leaves_nothing() {
    need_userfaultfd!();
    let program = Patterned::start("refused", under("64M"), 96, &[]);
    let (pid, file) = (program.pid(), program.file().display().to_string());
    let name = program.name.as_str();
    is_refused(&["no-such-run", &pid, "-o", &file], "there is no run named \"no-such-run\"");
    is_refused(&[name, "4194303", "-o", &file], "there is no process 4194303");
    is_refused(&[name, "1", "-o", &file], "1 is no process of this run");
    let me = std::process::id().to_string();
    is_refused(&[name, &me, "-o", &file], "is no process of this run");
    is_refused(&[name, "many", "-o", &file], "invalid value");
    let nowhere = program.folder.path("nowhere/core").display().to_string();
    is_refused(&[name, &pid, "-o", &nowhere], "there is no such folder");
    let folder = program.folder.path("").display().to_string();
    is_refused(&[name, &pid, "-o", &folder], "is no file");
    is_refused(&[name, &pid, "-o", "/dev/null"], "is no file");
    program.left_no_file();
    program.goes_on().paged();
}

/// A full disk: a sentence, and nothing is left of the file.
#[test]
fn a_full_disk_is_told_and_the_unfinished_file_removed() {
    need_userfaultfd!();
    let program = Patterned::start("full", under("64M"), 96, &[]);
    let small = program.folder.path("small");
    std::fs::create_dir(&small).expect("a folder");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8M", "tmpfs"]).arg(&small).status();
    if !mounted.is_ok_and(|status| status.success()) {
        program.goes_on();
        return common::not_here("nothing can be mounted");
    }
    let file = small.join("core").display().to_string();
    let output = core_command(&[&program.name, &program.pid(), "-o", &file]).output().expect("uswap runs");
    let left = std::fs::read_dir(&small).expect("the folder").count();
    Command::new("umount").arg(&small).status().expect("umount");
    assert_eq!(output.status.code(), Some(125), "{}", says(&output));
    assert!(says(&output).contains("the disk is full"), "{}", says(&output));
    assert_eq!(left, 0, "files are left");
    program.goes_on().paged();
}

/// Stops the writer while it writes.
fn stop_while_it_writes(program: &Patterned) -> Child {
    let core = program.begin();
    let unfinished = program.folder.path(&format!("the core file.unfinished-{}", core.id()));
    program.running.until("the writer at work", || {
        let is_begun = unfinished.metadata().is_ok_and(|file| file.len() > MIB);
        is_begun.then(|| procs::kill(core.id(), 19))
    });
    program.running.until("a stop", || (procs::state(core.id()) == Some('T')).then_some(()));
    assert!(unfinished.exists(), "it was done already");
    core
}

/// The program is killed meanwhile.
#[test]
fn a_program_that_ends_meanwhile_is_told() {
    need_userfaultfd!();
    let program = Patterned::start("ended", under("64M").faults("delay-pages=20000"), 128, &[]);
    let core = stop_while_it_writes(&program);
    let pid: u32 = program.pid().parse().expect("a number");
    procs::kill(pid, 9);
    program.running.until("its end", || (!procs::is_alive(pid)).then_some(()));
    procs::kill(core.id(), 18);
    let output = core.wait_with_output().expect("an end");
    assert_eq!(output.status.code(), Some(125), "{}", says(&output));
    assert!(
        says(&output).contains(&format!("process {pid} ended while its memory was being written")),
        "{}",
        says(&output)
    );
    program.left_no_file();
    program.running.wait().expect(137);
}

/// The writer is interrupted: nothing is left, and the program goes on.
#[test]
fn an_interrupt_leaves_no_file_and_the_program_goes_on() {
    need_userfaultfd!();
    let program = Patterned::start("interrupted", under("64M").faults("delay-pages=20000"), 128, &[]);
    let core = stop_while_it_writes(&program);
    procs::kill(core.id(), 2);
    procs::kill(core.id(), 18);
    let output = core.wait_with_output().expect("an end");
    assert_eq!(output.status.code(), Some(130), "{}", says(&output));
    program.left_no_file();
    program.goes_on().paged();
}

/// The writer is killed: the program goes on, and the run serves the next one.
#[test]
fn a_writer_that_is_killed_leaves_a_program_that_goes_on() {
    need_userfaultfd!();
    let program = Patterned::start("killed", under("64M").faults("delay-pages=20000"), 128, &[]);
    let mut core = stop_while_it_writes(&program);
    core.kill().expect("ours");
    core.wait().expect("an end");
    program.is_whole(&program.write(&program.pid()));
    program.goes_on().paged();
}

/// A program that is stopped stays so.
#[test]
fn a_stopped_program_stays_stopped() {
    need_userfaultfd!();
    let program = Patterned::start("stopped", under("64M"), 96, &[]);
    let pid: u32 = program.pid().parse().expect("a number");
    procs::kill(pid, 19);
    program.running.until("a stop", || (procs::state(pid) == Some('T')).then_some(()));
    program.is_whole(&program.write(&program.pid()));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(procs::state(pid), Some('T'));
    procs::kill(pid, 18);
    program.goes_on().paged();
}
