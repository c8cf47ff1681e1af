//! What a swapoff does where neither the pool nor another device takes what lies on the device: its
//! pages come back into the memory of the programs, as far as the budget has room.

use crate::common;

use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::told::Told;
use common::victims::victim;
use common::{Running, Scratch, USWAP, figures, procs, under};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn uswap(words: &[&str]) -> Output {
    Command::new(USWAP).args(words).output().expect("uswap runs")
}

fn says(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[track_caller]
fn succeeds(words: &[&str]) {
    let output = uswap(words);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", says(&output));
}

#[track_caller]
fn is_refused(words: &[&str]) -> String {
    let output = uswap(words);
    assert_eq!(output.status.code(), Some(125), "{words:?}: {}", says(&output));
    says(&output)
}

fn device(figures: &Value) -> &Value {
    &figures["devices"][0]
}

fn on_device(name: &str) -> u64 {
    device(&figures(name))["used_bytes"].as_u64().unwrap_or(0)
}

fn brought_in(name: &str) -> u64 {
    figures(name)["brought_in"].as_u64().unwrap_or(0)
}

/// A process in half of the memory it needs, none of which compresses; the pool takes next to
/// nothing, and one device the rest.
struct Full {
    told: Told,
    path: String,
    _folder: Scratch,
}

impl Full {
    fn start(test: &str, faults: &str) -> Self {
        let folder = Scratch::new();
        let path = folder.path("swap").display().to_string();
        let options = [("--pool", "20"), ("--swap", &format!("{path},size=1G"))];
        let told = Told::start_with(faults, &format!("off-{test}"), "64M", 1, "160", &options);
        told.order(1, "noise");
        told.until("most of it on the device", || on_device(&told.name) > 60 * MIB);
        Self { told, path, _folder: folder }
    }

    /// The budget has room for what is left, and the pool has not.
    fn shrunk(self) -> Self {
        self.told.order(1, "thin");
        let left = on_device(&self.told.name);
        assert!(left > 20 * MIB, "{left} on the device");
        let free = || self.told.figures()["ram_bytes"].as_u64().is_some_and(|used| used < 24 * MIB);
        self.told.until("the rest of the memory free", free);
        self
    }

    fn swapoff(&self) -> [&str; 3] {
        ["swapoff", &self.told.name, &self.path]
    }

    /// One that goes on meanwhile.
    fn begin_swapoff(&self) -> Child {
        let mut command = common::command(USWAP);
        command.args(self.swapoff()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("uswap runs")
    }

    /// The device is gone, and what lay there came from it and to nobody else: into memory, but for
    /// what the pool took.
    fn is_back(&self, was_there: u64) {
        let told = self.told.figures();
        assert_eq!(told["devices"].as_array().map(Vec::len), Some(0), "{}", told["devices"]);
        let back = brought_in(&self.told.name) << 12;
        let stored = told["stored_pages"].as_u64().expect("a number");
        assert!(back + (stored << 12) >= was_there * 9 / 10, "{back} of {was_there} brought in, {stored} pages stored");
        assert!(stored < 1024, "{stored}");
    }
}

/// After a peak most of the budget is free: the only device can go.
#[test]
fn what_does_not_compress_comes_back_from_the_only_device() {
    need_userfaultfd!();
    let full = Full::start("back", "audit,no-alloc=1").shrunk();
    let was_there = on_device(&full.told.name);
    succeeds(&full.swapoff());
    full.is_back(was_there);
    let read = full.told.figures()["pgmajfault"].as_u64();
    full.told.order(1, "walk");
    assert_eq!(full.told.figures()["pgmajfault"].as_u64(), read, "all of it is there before anybody touches it");
    full.told.end().paged();
}

/// Where the budget has no room either it is said, with the figures, and nothing is changed.
#[test]
fn refused_beforehand_where_the_budget_has_no_room_either() {
    need_userfaultfd!();
    let full = Full::start("refused", "audit");
    let before = on_device(&full.told.name);
    let why = is_refused(&full.swapoff());
    for part in ["in memory)", "the pool can take", "the budget has room for", "add another one first"] {
        assert!(why.contains(part), "{why}");
    }
    let told = full.told.figures();
    assert_eq!((&device(&told)["draining"], &told["swapoff"]), (&Value::Bool(false), &Value::Null));
    assert!(on_device(&full.told.name) >= before && brought_in(&full.told.name) == 0);
    full.told.order(1, "walk");
    full.told.end().paged();
}

/// A process that is stopped gets its pages back too: nothing of that needs the process.
#[test]
fn a_stopped_program_gets_its_pages_back() {
    need_userfaultfd!();
    let full = Full::start("stopped", "audit").shrunk();
    let was_there = on_device(&full.told.name);
    common::procs::kill(full.told.pids[0], 19);
    let output = uswap(&full.swapoff());
    common::procs::kill(full.told.pids[0], 18);
    assert_eq!(output.status.code(), Some(0), "{}", says(&output));
    full.is_back(was_there);
    full.told.end().paged();
}

/// The room goes while the pages come: it ends in bounded time with a sentence, the device is used
/// again, and nothing is lost.
#[test]
fn where_the_room_goes_meanwhile_the_device_is_used_again() {
    need_userfaultfd!();
    let full = Full::start("gone", "audit,no-alloc=1,delay-bring=20000").shrunk();
    let swapoff = full.begin_swapoff();
    full.told.until("the first pages", || brought_in(&full.told.name) > 0);
    uswap(&["limit", &full.told.name, "16M", "--wait", "0"]);
    let output = swapoff.wait_with_output().expect("an end");
    assert_eq!(output.status.code(), Some(125), "{}", says(&output));
    assert!(says(&output).contains("it is used again"), "{}", says(&output));
    let told = full.told.figures();
    assert_eq!((&device(&told)["draining"], &told["swapoff"]["running"]), (&false.into(), &false.into()));
    succeeds(&["limit", &full.told.name, "64M"]);
    full.told.order(1, "walk");
    full.told.end().paged();
}

/// What cannot be read is left where it is, and is not lost before it is touched; the rest comes
/// back.
#[test]
fn what_cannot_be_read_stays_and_the_rest_comes_back() {
    need_userfaultfd!();
    let full = Full::start("damaged", "audit").shrunk();
    let before = on_device(&full.told.name);
    let file = std::fs::OpenOptions::new().write(true).open(&full.path).expect("swap file");
    file.write_all_at(&vec![0xa5; 16 << 20], 40 << 20).expect("junk");
    file.sync_all().expect("sync");
    let why = is_refused(&full.swapoff());
    assert!(why.contains("cannot be read; the device stays"), "{why}");
    let told = full.told.figures();
    let left = on_device(&full.told.name);
    assert!((1..before * 3 / 4).contains(&left), "{left} of {before} are left");
    assert_eq!((&told["poisoned_pages"], &device(&told)["draining"]), (&0.into(), &true.into()));
}

/// An interrupt ends it between two reads, and what came stays.
#[test]
fn an_interrupt_ends_it_while_pages_come() {
    need_userfaultfd!();
    let full = Full::start("interrupted", "audit,no-alloc=1,delay-bring=20000").shrunk();
    let swapoff = full.begin_swapoff();
    full.told.until("the first pages", || brought_in(&full.told.name) > 0);
    common::procs::kill(swapoff.id(), 2);
    let output = swapoff.wait_with_output().expect("an end");
    assert_eq!(output.status.code(), Some(130), "{}", says(&output));
    let came = brought_in(&full.told.name);
    std::thread::sleep(Duration::from_millis(300));
    let later = brought_in(&full.told.name);
    assert!(later <= came + 256, "no more than what was under way: {came}, then {later}");
    assert_eq!(device(&full.told.figures())["draining"], false);
    full.told.order(1, "walk");
    full.told.end().paged();
}

/// Programs read, write, fork, unmap and move what is being brought in, with slow reads and late
/// installations; each time the room is made by another limit, and taken away again.
#[test]
fn torture_while_pages_come_back() {
    need_userfaultfd!();
    let (name, folder) = (format!("off-torture-{}", std::process::id()), Scratch::new());
    let spec = |turn: u32| format!("{},size=1G", folder.path(&format!("swap-{turn}")).display());
    let launch = under("64M").deadline(150).option("--name", &name).option("--pool", "5");
    let launch = launch.option("--swap", spec(0)).faults("audit,delay-read=500,delay-install=100,delay-bring=10000");
    let mut words = vec![victim("torture").into_os_string()];
    words.extend("--seed 41 --seconds 15 --memory 128 --timeout 120".split(' ').map(Into::into));
    let running = launch.start(words);
    let mut came = 0;
    for turn in 0..3 {
        if turn > 0 && does(&running, &["swapon", &name, &spec(turn)]) {
            uswap(&["limit", &name, "64M", "--wait", "0"]);
        }
        came += one_turn(&running, &name, &folder.path(&format!("swap-{turn}")).display().to_string());
    }
    let outcome = running.wait();
    outcome.expect(0).paged();
    assert_eq!(outcome.stat("checksum_errors") + outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
    common::notice(&format!("{came} pages came back in {:.1?}", outcome.elapsed));
    assert!(came > 1024, "{came} pages came back: {}", outcome.account());
}

/// Whether the program's time is over, which beside other load it can be before the third turn.
fn is_over(running: &Running) -> bool {
    !procs::is_alive(running.pid())
}

/// Whether `found` holds. If not, the run must be about to end.
#[track_caller]
fn holds(running: &Running, found: bool, what: &str) -> bool {
    let about_to_end = || {
        (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            is_over(running)
        })
    };
    assert!(found || about_to_end(), "{what}");
    found
}

/// A command to the run, which must succeed as long as that lasts. Whether it did.
#[track_caller]
fn does(running: &Running, words: &[&str]) -> bool {
    let output = uswap(words);
    holds(running, output.status.success(), &format!("{words:?}: {}", says(&output)))
}

/// Returns how many pages were brought in.
fn one_turn(running: &Running, name: &str, path: &str) -> u64 {
    running.until("pages on the device", || (is_over(running) || on_device(name) > 24 * MIB).then_some(()));
    if is_over(running) || !does(running, &["limit", name, "1G"]) {
        return 0;
    }
    let before = brought_in(name);
    running.until("a swapoff", || (is_over(running) || uswap(&["swapoff", name, path]).status.success()).then_some(()));
    let left = figures(name)["devices"].as_array().map(Vec::len);
    if !holds(running, left == Some(0), &format!("{left:?} devices after the swapoff")) {
        return 0;
    }
    brought_in(name).saturating_sub(before)
}
