//! Groups inside a run: limits that hold for their processes alone, and charges that follow whoever
//! has the pages.

use crate::common;

use std::process::{Command, Output};
use std::time::Duration;

use common::told::Told;
use common::victims::victim;
use common::{Running, Scratch, USWAP, under};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn uswap(words: &[&str]) -> Output {
    Command::new(USWAP).args(words).output().expect("uswap runs")
}

fn says(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

impl Told {
    fn pid(&self, process: usize) -> String {
        self.pids[process - 1].to_string()
    }

    /// `uswap group ORDER NAME ...`, which must work.
    fn group(&self, order: &str, words: &[&str]) -> String {
        let output = self.try_group(order, words);
        assert_eq!(output.status.code(), Some(0), "{order} {words:?}: {}", says(&output));
        says(&output)
    }

    fn try_group(&self, order: &str, words: &[&str]) -> Output {
        let all: Vec<&str> = ["group", order, self.name.as_str()].iter().chain(words).copied().collect();
        uswap(&all)
    }

    fn is_refused(&self, order: &str, words: &[&str], why: &str) {
        let output = self.try_group(order, words);
        assert_eq!(output.status.code(), Some(125), "{order} {words:?}: {}", says(&output));
        assert!(says(&output).contains(why), "{order} {words:?}: {}", says(&output));
    }

    /// All groups, as `group list --json` tells them.
    fn groups(&self) -> Vec<Value> {
        let told: Value = serde_json::from_str(&self.group("list", &["--json"])).expect("JSON");
        told.as_array().cloned().expect("groups")
    }

    fn find(&self, group: &str) -> Value {
        let groups = self.groups();
        groups.iter().find(|known| known["name"] == group).cloned().unwrap_or_else(|| panic!("{group} in {groups:?}"))
    }

    fn used(&self, group: &str) -> u64 {
        self.find(group)["ram_bytes"].as_u64().expect("a number")
    }

    fn swapped(&self, group: &str) -> u64 {
        self.find(group)["swapped_bytes"].as_u64().expect("a number")
    }

    /// Anonymous memory of a process that is in RAM, as the kernel counts it.
    fn resident(&self, process: usize) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid(process))).expect("a living process");
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    /// All memory of a process that nobody limits is back. (Pages of zeros that were only read are
    /// the zero page, which nobody counts.)
    fn is_whole(&self, process: usize, mebibytes: u64) {
        let resident = self.resident(process);
        assert!(resident >= mebibytes * MIB * 9 / 10, "process {process} has {resident}: {:?}", self.groups());
    }

    /// Has a process walk its memory so many times; returns the median and the most of what it had
    /// in RAM meanwhile.
    fn residents_while_walking(&self, process: usize, walks: usize) -> (u64, u64) {
        let done = format!("{process} walk done");
        let before = self.running.stdout().matches(&done).count();
        (0..walks).for_each(|_| self.send(process, "walk"));
        let mut seen = Vec::new();
        self.until("the walks", || self.running.stdout().matches(&done).count() > before);
        while self.running.stdout().matches(&done).count() < before + walks {
            seen.push(self.resident(process));
            std::thread::sleep(Duration::from_millis(3));
        }
        seen.sort_unstable();
        (seen[seen.len() / 2], seen[seen.len() - 1])
    }
}

/// The limit holds for one group's process; the other's stays whole.
#[test]
fn a_limited_group_is_held_and_the_other_stays_resident() {
    need_userfaultfd!();
    let told = Told::start("held", "1G", 2, "96", &[]);
    told.group("create", &["small", "--limit", "48M"]);
    told.group("create", &["large"]);
    told.group("move", &[&told.pid(1), "small"]);
    told.group("move", &[&told.pid(2), "large"]);
    told.until("the limit", || told.used("small") <= 48 * MIB);
    let (median, most) = told.residents_while_walking(1, 6);
    common::notice(&format!("resident while walking: median {} MiB, most {} MiB of 48", median / MIB, most / MIB));
    assert!(median <= 48 * MIB && most < 56 * MIB, "median {median}, most {most}");
    assert!(median > 24 * MIB, "half of the limit lies idle: {median}");
    assert!(told.resident(2) >= 96 * MIB, "the other one has lost pages: {}", told.resident(2));
    assert!(told.swapped("small") > 40 * MIB && told.swapped("large") == 0, "{:?}", told.groups());
    let used = told.used("large");
    assert!((96 * MIB..104 * MIB).contains(&used), "{used}");
    told.order(2, "rewrite");
    told.order(1, "rewrite");
    told.end().paged();
}

#[test]
fn a_lower_limit_is_kept_and_a_higher_one_lets_pages_back() {
    need_userfaultfd!();
    let told = Told::start("limits", "1G", 2, "96", &[]);
    told.group("create", &["a"]);
    told.group("move", &[&told.pid(1), "a"]);
    for limit in [64, 24, 40] {
        let said = told.group("limit", &["a", &format!("{limit}M")]);
        assert!(said.contains(&format!("{limit}.0 MiB")), "{said}");
        assert!(told.used("a") <= limit * MIB, "{said}");
        told.order(1, "walk");
        told.until("the limit again", || told.used("a") <= limit * MIB);
    }
    assert!(told.group("limit", &["a", "max"]).contains("no limit"));
    told.order(1, "walk");
    told.is_whole(1, 96);
    assert!(told.group("limit", &["a", "6.25%"]).contains("64.0 MiB"), "of the run's budget");
    told.end().paged();
}

/// The whole way up counts: a group without a limit, below one with a limit.
#[test]
fn groups_move_with_all_that_is_in_them() {
    need_userfaultfd!();
    let told = Told::start("moves", "1G", 3, "64", &[]);
    ["work", "work/jobs", "tight"].iter().for_each(|group| drop(told.group("create", &[group])));
    told.group("move", &[&told.pid(1), "work/jobs"]);
    told.group("move", &[&told.pid(2), "work"]);
    told.until("both are charged", || told.used("work") > 128 * MIB && told.used("work/jobs") > 64 * MIB);
    told.group("limit", &["tight", "32M"]);
    assert!(told.group("move", &["work/jobs", "tight"]).contains("tight/jobs"));
    told.until("the limit above", || told.used("tight") <= 32 * MIB);
    // What was evicted while the group moved may be taken off both until the next measurement.
    told.until("its own", || (60 * MIB..80 * MIB).contains(&told.used("work")));
    told.order(1, "walk");
    assert!(told.resident(2) >= 64 * MIB && told.resident(3) >= 64 * MIB);
    told.group("move", &[&told.pid(1), "/"]);
    assert_eq!(told.used("tight"), 0);
    told.order(1, "walk");
    told.is_whole(1, 64);
    told.group("remove", &["tight/jobs"]);
    told.group("remove", &["tight"]);
    let names: Vec<Value> = told.groups().iter().map(|group| group["name"].clone()).collect();
    assert_eq!(names, ["/", "work"]);
    told.end().paged();
}

/// Children begin where their parent is, also those that nobody has met when it moves on.
#[test]
fn children_begin_in_the_group_of_their_parent() {
    need_userfaultfd!();
    let told = Told::start("children", "1G", 2, "48", &[]);
    told.group("create", &["a", "--limit", "64M"]);
    told.group("create", &["b"]);
    told.group("move", &[&told.pid(1), "a"]);
    told.order(1, "fork");
    told.order(1, "stay");
    let child = told.number_after("1 child ");
    told.group("move", &[&told.pid(1), "b"]);
    told.until("the child met", || told.find("a")["processes"] == serde_json::json!([child]));
    assert_eq!(told.find("b")["processes"], serde_json::json!([told.pids[0]]));
    told.order(1, "rewrite");
    told.until("the child alone with its pages", || told.used("a") > 40 * MIB);
    told.group("limit", &["a", "16M"]);
    // What the child shared until now may still be counted by its share for a moment.
    told.until("the child's pages evicted", || told.used("a") <= 16 * MIB && told.swapped("a") > 24 * MIB);
    told.is_whole(1, 48);
    assert!(told.group("remove", &["a"]).contains("1 process"));
    told.end().paged();
}

/// The kernel's leak: swapped out in A, moved to B, A removed, brought back beside a swapoff
/// ordered from C. There the pages were charged to C, and B had more than its limit.
#[test]
fn after_a_swapoff_from_elsewhere_pages_are_charged_to_their_owner() {
    need_userfaultfd!();
    let devices = Scratch::new();
    let [first, second] = ["first", "second"].map(|name| devices.path(name).display().to_string());
    let options = [("--pool", "2"), ("--swap", &format!("{first},size=1G"))];
    let told = Told::start("swapoff", "512M", 2, "96", &options);
    for group in [["a", "--limit", "24M"], ["b", "--limit", "48M"], ["c", "--limit", "max"]] {
        told.group("create", &group);
    }
    told.group("move", &[&told.pid(1), "a"]);
    told.until("pages of A on the device", || told.swapped("a") > 64 * MIB && told.used("a") <= 24 * MIB);
    let on_device = |figures: &Value| figures["devices"][0]["used_bytes"].as_u64().unwrap_or(0);
    assert!(on_device(&told.figures()) > 24 * MIB, "{}", told.figures()["devices"]);
    told.group("move", &[&told.pid(1), "b"]);
    told.group("remove", &["a"]);
    assert!(told.swapped("b") > 60 * MIB, "what is swapped out goes along: {:?}", told.groups());
    // The caller is a child of a process in C.
    told.group("move", &[&told.pid(2), "c"]);
    let in_c = told.used("c");
    assert_eq!(uswap(&["swapon", &told.name, &format!("{second},size=1G")]).status.code(), Some(0));
    let script = format!("exec '{USWAP}' swapoff {} '{first}'\n", told.name);
    std::fs::write(told.folder.path("orders/script"), script).expect("a script");
    told.order(2, "script");
    assert_eq!(told.figures()["devices"].as_array().map(Vec::len), Some(1), "{}", told.figures()["devices"]);
    let (median, _) = told.residents_while_walking(1, 4);
    assert!(median <= 48 * MIB, "B is held to its limit: {median}");
    assert!(told.used("c").abs_diff(in_c) < MIB, "C is charged with others' pages: {:?}", told.groups());
    let (b, resident) = (told.used("b"), told.resident(1));
    assert!(b.abs_diff(resident) < 8 * MIB, "B is charged with {b}, its process has {resident}");
    assert!(told.groups().iter().all(|group| group["name"] != "a"));
    told.end().paged();
}

/// What a swapoff brings back is charged to who has it: a group that is at its limit gets nothing,
/// whatever room the run has.
#[test]
fn a_swapoff_brings_no_group_above_its_limit() {
    need_userfaultfd!();
    let device = Scratch::new();
    let path = device.path("swap").display().to_string();
    let told = Told::start("off", "512M", 1, "96", &[("--pool", "2"), ("--swap", &format!("{path},size=1G"))]);
    told.group("create", &["a", "--limit", "32M"]);
    told.group("move", &[&told.pid(1), "a"]);
    told.order(1, "noise");
    told.until("the limit", || told.used("a") <= 32 * MIB && told.swapped("a") > 56 * MIB);
    let output = uswap(&["swapoff", &told.name, &path]);
    assert_eq!(output.status.code(), Some(125), "{}", says(&output));
    assert!(says(&output).contains("groups that are at their limits"), "{}", says(&output));
    assert!(told.used("a") <= 32 * MIB, "{:?}", told.groups());
    told.group("limit", &["a", "max"]);
    let output = uswap(&["swapoff", &told.name, &path]);
    assert_eq!(output.status.code(), Some(0), "{}", says(&output));
    told.is_whole(1, 96);
    told.until("all of it in the group", || told.used("a") > 90 * MIB && told.swapped("a") < 4 * MIB);
    told.end().paged();
}

/// Nothing can be evicted any more: the group goes on above its limit, and the run, which has room,
/// is not ended.
#[test]
fn where_swap_is_full_a_group_outgrows_its_limit() {
    need_userfaultfd!();
    let device = Scratch::new();
    let spec = format!("{},size=24M", device.path("swap").display());
    let told = Told::start("full", "512M", 1, "96", &[("--pool", "0"), ("--swap", &spec)]);
    told.group("create", &["a"]);
    told.group("move", &[&told.pid(1), "a"]);
    told.is_refused("limit", &["a", "32M", "--wait", "1"], "cannot be evicted");
    told.order(1, "rewrite");
    told.order(1, "walk");
    // What came back for the walk goes again as far as there is room for it.
    told.until("the group as it stays", || told.used("a") > 32 * MIB && told.swapped("a") > 16 * MIB);
    let outcome = told.end();
    assert!(outcome.paged().stat("over_limit") > 0, "{}", outcome.account());
}

/// A victim that begins when the gate is opened, so that it can be put in a group before.
fn waiting(name: &str, ram: &str, program: &str, arguments: &str) -> (Running, Scratch) {
    let gate = Scratch::new();
    let script = "until [ -e \"$0\" ]; do sleep 0.02; done; exec \"$@\"";
    let (program, path) = (victim(program).display().to_string(), gate.path("open").display().to_string());
    let words = ["sh", "-c", script, path.as_str(), program.as_str()];
    let launch = under(ram).deadline(120).option("--name", name).swap_file("2G").faults("audit");
    (launch.start(words.into_iter().chain(arguments.split_whitespace())), gate)
}

fn open(gate: &Scratch) {
    std::fs::write(gate.path("open"), "").expect("a file");
}

/// A group's limit is as strict as the run's: threads that touch fresh memory as fast as they can,
/// the median of three.
#[test]
fn fast_growth_in_a_group() {
    need_userfaultfd!();
    let _alone = common::alone();
    let mut peaks = [0, 1, 2].map(|round| {
        let name = format!("groups-fast-{round}-{}", std::process::id());
        let (running, gate) = waiting(&name, "1G", "alloc_fast", "--memory 384 --threads 2 --timeout 110");
        let made = || uswap(&["group", "create", &name, "a", "--limit", "128M"]).status.success().then_some(());
        running.until("a group", made);
        assert!(uswap(&["group", "move", &name, &running.command().to_string(), "a"]).status.success());
        open(&gate);
        let outcome = running.wait();
        outcome.expect(0).paged();
        let groups = outcome.stats.as_ref().map(|stats| stats["groups"].clone()).unwrap_or_default();
        groups[1]["ram_peak_bytes"].as_u64().expect("a peak") as f64 / (128 * MIB) as f64
    });
    peaks.sort_by(f64::total_cmp);
    common::notice(&format!("peaks of the group, by its limit: {peaks:.3?}"));
    assert!(peaks[1] < 1.04, "{peaks:?}");
}

/// Groups come and go, processes move, beside a program that forks, maps and checks each of its
/// pages.
#[test]
fn torture_beside_moves() {
    need_userfaultfd!();
    let name = format!("groups-torture-{}", std::process::id());
    let (running, gate) = waiting(&name, "512M", "torture", "--seed 41 --seconds 12 --memory 128 --timeout 110");
    let shell = running.command().to_string();
    let group = |order: &str, words: &[&str]| {
        uswap(&["group", order, name.as_str()].iter().chain(words).copied().collect::<Vec<&str>>())
    };
    let told = || -> Vec<Value> { serde_json::from_slice(&group("list", &["--json"]).stdout).unwrap_or_default() };
    running.until("a group", || group("create", &["a", "--limit", "48M"]).status.success().then_some(()));
    assert!(group("create", &["b", "--limit", "40M"]).status.success());
    assert!(group("move", &[&shell, "a"]).status.success());
    open(&gate);
    running.until("children in the group", || {
        let processes = told().get(1)?["processes"].as_array()?.len();
        (processes > 1).then_some(())
    });
    let mut moved = 0;
    let begun = std::time::Instant::now();
    for round in 0.. {
        if round == 40 || begun.elapsed() > Duration::from_secs(8) {
            break;
        }
        let (from, to) = if round % 2 == 0 { (1, "b") } else { (2, "a") };
        let pids = told().get(from).map(|group| group["processes"].clone()).unwrap_or_default();
        for pid in pids.as_array().into_iter().flatten() {
            // It may have ended this moment.
            moved += usize::from(group("move", &[&pid.to_string(), to]).status.success());
        }
        if round % 10 == 9 {
            let _ = group("create", &["a/c"]);
            let _ = group("move", &["a/c", "b"]);
            let _ = group("remove", &["b/c"]);
        }
        std::thread::sleep(Duration::from_millis(150));
    }
    assert!(moved > 20, "{moved} processes were moved");
    assert!(group("remove", &["a"]).status.success());
    let outcome = running.wait();
    outcome.expect(0).paged();
    assert_eq!(outcome.stat("checksum_errors") + outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
    let groups = outcome.stats.as_ref().map(|stats| stats["groups"].clone()).unwrap_or_default();
    assert_eq!((&groups[1]["name"], &groups[1]["ram_bytes"]), (&"b".into(), &0.into()), "{groups}");
}

#[test]
fn wrong_orders_are_refused_and_change_nothing() {
    need_userfaultfd!();
    let told = Told::start("wrong", "256M", 1, "48", &[]);
    assert_eq!(told.groups().len(), 1, "the root is there from the start");
    ["a", "a/b", "c"].iter().for_each(|group| drop(told.group("create", &[group])));
    let places = |told: &Told| -> Vec<Value> {
        let place = |group: &Value| serde_json::json!([group["name"], group["ram_limit_bytes"], group["processes"]]);
        told.groups().iter().map(place).collect()
    };
    let before = places(&told);
    told.is_refused("create", &["a"], "already");
    told.is_refused("create", &["x/y"], "create it first");
    for bad in ["", "a b", "../x", "12", "a//b", &"x".repeat(65)] {
        told.is_refused("create", &[bad], "cannot be a group");
    }
    told.is_refused("create", &["d", "--limit", "1M"], "the least is 8.0 MiB");
    told.is_refused("create", &["d", "--limit", "50"], "50% is a share of the limit above it, 50M a size");
    told.is_refused("create", &["d", "--limit", "much"], "is not a limit");
    told.is_refused("create", &["d", "--limit", "101%"], "is not a limit");
    told.is_refused("limit", &["x", "64M"], "no group");
    told.is_refused("limit", &["a", "4M"], "too little");
    told.is_refused("limit", &["/", "64M"], "root");
    told.is_refused("remove", &["x"], "no group");
    told.is_refused("remove", &["/"], "root");
    told.is_refused("remove", &["a"], "has groups below it: a/b");
    told.is_refused("move", &["a", "a/b"], "into itself");
    told.is_refused("move", &["a", "a"], "into itself");
    told.is_refused("move", &["/", "a"], "root");
    told.is_refused("move", &["a/b", "x"], "no group");
    told.is_refused("move", &["x", "a"], "no group");
    told.is_refused("move", &["1", "a"], "no process of this run");
    told.is_refused("move", &["99999999999999999999", "a"], "no group");
    told.is_refused("move", &[&told.pid(1), "x"], "no group");
    told.is_refused("move", &[&told.running.engine().to_string(), "a"], "no process of this run");
    assert_eq!(uswap(&["group", "list", "no-such-run"]).status.code(), Some(125));
    assert_eq!(uswap(&["group", "forget", &told.name]).status.code(), Some(125));
    assert_eq!(places(&told), before);
    told.end();
}

#[test]
fn a_limit_below_locked_memory_is_refused_and_one_that_is_not_kept_is_told() {
    need_userfaultfd!();
    let told = Told::start("pinned", "512M", 1, "64", &[]);
    told.group("create", &["a"]);
    told.group("move", &[&told.pid(1), "a"]);
    told.order(1, "lock");
    told.is_refused("limit", &["a", "16M"], "24.0 MiB in the group cannot be evicted");
    assert!(told.find("a")["ram_limit_bytes"].is_null());
    told.group("limit", &["a", "48M"]);
    told.order(1, "walk");
    told.order(1, "unlock");
    let agent = common::procs::agent(told.pids[0]).expect("an agent");
    common::procs::kill(agent, 19);
    told.until("it is stopped", || common::procs::state(agent) == Some('T'));
    told.is_refused("limit", &["a", "16M", "--wait", "1"], "cannot be evicted");
    common::procs::kill(agent, 18);
    told.until("the limit once it goes on", || told.used("a") <= 16 * MIB);
    told.order(1, "walk");
    told.end().paged();
}

/// SIGSTOP stops a program and not its agent: what it holds makes room for others.
#[test]
fn stopped_programs_are_evicted() {
    need_userfaultfd!();
    let told = Told::start("stopped", "512M", 1, "64", &[]);
    told.group("create", &["a"]);
    told.group("move", &[&told.pid(1), "a"]);
    common::procs::kill(told.pids[0], 19);
    told.until("it is stopped", || common::procs::state(told.pids[0]) == Some('T'));
    told.group("limit", &["a", "16M"]);
    told.until("the limit while it is stopped", || told.used("a") <= 16 * MIB);
    assert_eq!(common::procs::state(told.pids[0]), Some('T'));
    common::procs::kill(told.pids[0], 18);
    told.order(1, "walk");
    told.end().paged();
}

/// After a limit of its own the run's budget follows the cgroup or the machine again.
#[test]
fn auto_takes_the_place_of_an_ordered_limit() {
    need_userfaultfd!();
    let told = Told::start("auto", "64M", 1, "96", &[]);
    let limit = |words: &[&str]| {
        let output = uswap(&[&["limit", told.name.as_str()], words].concat());
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", says(&output));
        told.figures()["ram_limit_bytes"].as_u64().expect("a number")
    };
    assert_eq!(limit(&["48M"]), 48 * MIB);
    let automatic = limit(&["auto"]);
    assert!(automatic >= 256 * MIB, "{automatic}");
    told.order(1, "walk");
    told.is_whole(1, 96);
    assert_eq!(limit(&["48M"]), 48 * MIB);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(told.figures()["ram_limit_bytes"], 48 * MIB, "an order stands");
    told.end().paged();
}
