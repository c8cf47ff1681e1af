//! `uswap attach PID` and `uswap detach NAME`: a program that nobody prepared gets a budget, loses
//! it again, and goes on with every byte; whatever is not possible is said, and harms nobody.

use crate::common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::cgroup::Group;
use common::victims::{compile, victim};
use common::{Launch, Outcome, Running, USWAP, attach, installed, is_root, not_here, plain, procs, skip, under};

/// Milliseconds until a program ends that nobody tells to.
const LONG: &str = "50000";

/// A program that checks its memory, once it has filled it.
fn watchful(words: [&str; 4]) -> Running {
    start(victim("watchful"), &words)
}

fn start(program: impl AsRef<Path>, words: &[&str]) -> Running {
    let words = words.iter().map(Into::into);
    let running = plain().deadline(60).start([program.as_ref().as_os_str().to_owned()].into_iter().chain(words));
    running.says("ready");
    running
}

fn attach_to(launch: Launch, program: &Running) -> Running {
    launch.deadline(50).start([program.pid().to_string()])
}

fn uswap<const N: usize>(words: [&str; N]) -> Output {
    Command::new("timeout").arg("40").arg(USWAP).args(words).output().expect("uswap")
}

fn detach(name: &str) {
    let out = uswap(["detach", name]);
    assert!(out.status.success(), "{}", text(&out));
}

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Figures of a run, if it is there.
fn figure(name: &str, figure: &str) -> Option<u64> {
    common::figures(name)[figure].as_u64()
}

/// Waits until so many pages were evicted.
fn evicts(engine: &Running, name: &str, pages: u64) {
    engine.until("evictions", || figure(name, "pgsteal").filter(|n| *n >= pages).map(drop));
}

/// Nothing of ours is in the process.
#[track_caller]
fn is_clean(pid: u32) {
    assert_eq!(procs::mappings_of_ours(pid), Vec::<String>::new());
    assert_eq!(procs::agent_thread(pid), None);
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    assert!(!smaps.contains(" um "), "a mapping is registered still");
}

/// Told to end, it looks at all its memory once more.
#[track_caller]
fn is_good(program: Running) {
    program.signal(15);
    let outcome = program.wait();
    outcome.expect(0);
    assert!(outcome.stdout.contains("good"), "{}", outcome.account());
}

#[track_caller]
fn without_losses(outcome: &Outcome) -> &Outcome {
    assert_eq!(outcome.stat("checksum_errors") + outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
    outcome
}

/// Attach, page, detach, again; the second time it is let go by an interrupt.
fn there_and_back(faults: &str, words: [&str; 4]) {
    let program = watchful(words);
    let name = program.pid().to_string();
    let threads = words[2].parse::<usize>().expect("a number") + 1;
    let tasks = || fs::read_dir(format!("/proc/{name}/task")).expect("tasks").count();
    program.until("its threads", || (tasks() == threads).then_some(()));
    let before = fs::read_to_string(format!("/proc/{name}/maps")).expect("maps").lines().count();
    for round in 0..2 {
        let engine = attach_to(attach("24M").faults(faults), &program);
        evicts(&engine, &name, 4000);
        let ours = procs::mappings_of_ours(program.pid());
        for what in ["uswap-agent.so", "uswap-ring", "area"] {
            assert!(ours.iter().any(|mapping| mapping.contains(what)), "no {what} while it is attached: {ours:?}");
        }
        if round == 0 {
            detach(&name)
        } else {
            engine.signal(2)
        }
        let outcome = engine.wait();
        without_losses(outcome.expect(0).paged()).complains("was let go");
        assert!(!outcome.stderr.contains("left behind"), "{}", outcome.account());
        is_clean(program.pid());
    }
    if words[3] == "0" {
        let after = fs::read_to_string(format!("/proc/{name}/maps")).expect("maps").lines().count();
        assert!(after <= before, "{before} mappings before, {after} now");
    }
    is_good(program);
}

macro_rules! there_and_back {
    ($($test:ident: $faults:literal, $words:expr;)*) => {
        $(#[test]
        fn $test() {
            need_userfaultfd!();
            there_and_back($faults, $words);
        })*
    };
}

there_and_back! {
    memory_is_right_with_threads: "audit", ["48", LONG, "3", "0"];
    memory_is_right_with_forks: "audit", ["40", LONG, "0", "1"];
    memory_is_right_when_all_is_slow:
        "audit,delay-install=50,delay-gate=100,delay-store=500,delay-detach=20000,again=7", ["40", LONG, "2", "0"];
    memory_is_right_with_forks_when_all_is_slow:
        "audit,delay-install=50,delay-gate=100,delay-detach=20000,delay-attach=500", ["40", LONG, "0", "1"];
    memory_is_right_with_a_slow_device: "audit,eager-writeback,delay-read=300", ["40", LONG, "2", "0"];
}

/// Everything that a program may do to its memory, while it is attached to and let go again and
/// again.
fn torture(faults: &str, program: &Path, words: &str) {
    // Guards and changing advice are limits where nobody tells of them (SPECIFICATION.md, I22).
    let fixed = ["--timeout", "55", "--ops-mask", "-guard,-unguard,-wipeonfork,-keeponfork,-dontfork,-dofork"];
    let program = plain()
        .deadline(60)
        .start([program.as_os_str()].into_iter().chain(words.split_whitespace().chain(fixed).map(AsRef::as_ref)));
    std::thread::sleep(Duration::from_millis(400));
    let name = program.pid().to_string();
    let mut rounds = 0;
    while procs::state(program.pid()).is_some_and(|state| state != 'Z') {
        let launch = attach("64M").option("--swap", "ram,size=1G").faults(faults);
        let engine = attach_to(launch, &program);
        std::thread::sleep(Duration::from_millis(1200));
        // It may have ended by now.
        uswap(["detach", &name]);
        let outcome = engine.wait();
        assert!([0, 125].contains(&outcome.code()) && outcome.hung.is_none(), "{}", outcome.account());
        if outcome.code() == 0 {
            without_losses(&outcome);
            rounds += 1;
        }
    }
    assert!(rounds > 0, "it was never attached to");
    program.wait().expect(0);
}

#[test]
fn torture_outside_of_any_run() {
    need_userfaultfd!();
    torture("audit", &victim("torture"), "--seed 41 --seconds 6 --memory 128 --threads 3");
}

#[test]
fn torture_of_a_static_program_outside_of_any_run() {
    need_userfaultfd!();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/torture.c");
    let program = compile(&source, "torture-static", &["-O1", "-g", "-pthread", "-static"]);
    torture("audit,delay-gate=100,delay-detach=3000,again=7", &program, "--seed 42 --seconds 6 --memory 128");
}

/// Signals, waits and floating point are what they would be, through both.
#[test]
fn nothing_is_noticed() {
    need_userfaultfd!();
    let words = [victim("attached").into_os_string(), "48".into(), "3500".into(), "8".into()];
    let program = plain().deadline(60).start(words);
    let name = program.pid().to_string();
    program.until("its memory", || {
        let statm = fs::read_to_string(format!("/proc/{name}/statm")).ok()?;
        (statm.split(' ').nth(1)?.parse::<u64>().ok()? > 12000).then_some(())
    });
    for _ in 0..2 {
        let engine = attach_to(attach("24M"), &program);
        evicts(&engine, &name, 1000);
        detach(&name);
        engine.wait().expect(0);
        is_clean(program.pid());
    }
    program.wait().expect(0);
}

#[test]
fn a_tree_is_attached_to_as_a_whole() {
    need_userfaultfd!();
    let watchful = victim("watchful");
    let script = "\"$0\" 32 6000 1 0 & \"$0\" 32 6000 1 0 & wait; echo good";
    let program = start("/bin/sh", &["-c", script, watchful.to_str().expect("a path")]);
    program.until("both", || (program.stdout().matches("ready").count() == 2).then_some(()));
    let name = program.pid().to_string();
    let engine = attach_to(attach("32M").flag("--tree"), &program);
    evicts(&engine, &name, 8000);
    let children = procs::children(program.pid());
    detach(&name);
    assert_eq!(engine.wait().expect(0).stat("attached"), 2);
    assert_eq!(children.len(), 2);
    children.iter().for_each(|pid| is_clean(*pid));
    let outcome = program.wait();
    assert_eq!(outcome.expect(0).stdout.matches("good").count(), 3, "{}", outcome.account());
}

#[test]
fn it_serves_in_the_background_under_its_name() {
    need_userfaultfd!();
    let program = watchful(["40", LONG, "1", "0"]);
    let pid = program.pid().to_string();
    let name = format!("behind-{pid}");
    let out = uswap(["attach", "-q", "--detach", "--ram", "24M", "--name", &name, &pid]);
    assert!(out.status.success(), "{}", text(&out));
    program.until("evictions", || figure(&name, "pgsteal").filter(|n| *n > 0));
    let again = uswap(["attach", &pid]);
    assert_eq!(again.status.code(), Some(125));
    assert!(text(&again).contains("managed already"), "{}", text(&again));
    detach(&name);
    is_clean(program.pid());
    is_good(program);
}

#[test]
fn the_end_of_the_program_is_the_end_of_the_engine() {
    need_userfaultfd!();
    let program = watchful(["40", LONG, "1", "0"]);
    let engine = attach_to(attach("24M"), &program);
    evicts(&engine, &program.pid().to_string(), 1000);
    is_good(program);
    engine.wait().expect(0).paged();
}

/// Evicted zeros need not come back, as they are stored nowhere: but they count no more, and each
/// has counted once.
#[test]
fn no_evicted_zeros_are_counted_once_a_program_was_let_go() {
    need_userfaultfd!();
    let program = start(victim("watchful"), &["20", LONG, "1", "0", "24"]);
    let name = program.pid().to_string();
    let engine = attach_to(attach("24M"), &program);
    engine.until("evicted zeros", || figure(&name, "same_filled_pages").filter(|n| *n >= 2000).map(drop));
    detach(&name);
    let outcome = engine.wait();
    without_losses(outcome.expect(0));
    assert!(outcome.stat("swpout_zero") >= 2000, "{}", outcome.account());
    assert_eq!((outcome.stat("same_filled_pages"), outcome.stat("stored_pages")), (0, 0), "{}", outcome.account());
    is_good(program);
}

/// What `uswap attach` says may reach nobody: it serves until it is told to let go, and the program
/// has its memory back.
#[test]
fn an_attach_to_which_nobody_listens_goes_on() {
    need_userfaultfd!();
    for nowhere in ["> >(exec true)", ">&-", ">/dev/full"] {
        let program = watchful(["40", LONG, "1", "0"]);
        let name = program.pid().to_string();
        let script = format!("exec '{USWAP}' attach -vv --ram 24M {name} 2{nowhere}");
        let engine = plain().deadline(50).start(["bash", "-c", &script]);
        evicts(&engine, &name, 1000);
        // Figures are said each second.
        std::thread::sleep(Duration::from_millis(1200));
        detach(&name);
        engine.wait().expect(0);
        is_clean(program.pid());
        is_good(program);
    }
}

/// A program whose memory was with it must not go on; one whose keeper dies has it still, and gets
/// it back.
#[test]
fn the_engines_death_ends_the_program_and_the_keepers_lets_go() {
    need_userfaultfd!();
    let program = watchful(["40", LONG, "1", "0"]);
    let engine = attach_to(attach("24M"), &program);
    evicts(&engine, &program.pid().to_string(), 1000);
    procs::kill(engine.engine(), 9);
    engine.wait().expect(70).complains("the engine was killed");
    assert_eq!(program.wait().code(), 137);

    let program = watchful(["40", LONG, "1", "0"]);
    let keeper = attach_to(attach("24M"), &program);
    evicts(&keeper, &program.pid().to_string(), 1000);
    let engine = keeper.engine();
    keeper.signal(9);
    keeper.until("its end", || (!procs::is_alive(engine)).then_some(()));
    is_clean(program.pid());
    is_good(program);
}

#[test]
fn what_does_not_fit_is_refused_beforehand() {
    need_userfaultfd!();
    let Ok(group) = Group::new("detach", 200 << 20) else { return not_here("no memory cgroups") };
    let words = [victim("watchful").into_os_string(), "96".into(), LONG.into(), "1".into(), "0".into()];
    let program = plain().deadline(60).wrapper(group.wrapper()).start(words);
    program.says("ready");
    let name = program.pid().to_string();
    let engine = attach_to(attach("32M").option("--swap", "/var/tmp/uswap-test-detach,size=400M"), &program);
    let _swap = Removed("/var/tmp/uswap-test-detach");
    evicts(&engine, &name, 18000);
    engine.until("a smaller limit", || group.limit(64 << 20).ok());
    let out = uswap(["detach", &name]);
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out).contains("would have to come back into memory, and there is room for"), "{}", text(&out));
    group.limit(200 << 20).expect("a larger limit");
    detach(&name);
    engine.wait().expect(0);
    assert_eq!(group.oom_kills(), 0);
    is_clean(program.pid());
    is_good(program);
}

struct Removed(&'static str);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

// ---- refusals ------------------------------------------------------------------------------------------------------

#[track_caller]
fn is_refused(pid: u32, complaint: &str) {
    let out = uswap(["attach", &pid.to_string()]);
    assert!(out.status.code() == Some(125) && text(&out).contains(complaint), "{complaint:?}: {}", text(&out));
}

#[test]
fn who_cannot_be_attached_to_is_told_why() {
    need_userfaultfd!();
    is_refused(4_194_305, "there is no process");
    if procs::name(2).as_deref() == Some("kthreadd") {
        is_refused(2, "thread of the kernel");
    }
    for word in ["0", "-1", "x", ""] {
        assert_eq!(uswap(["attach", "--", word]).status.code(), Some(125), "{word}");
    }
    let mut child = Command::new("true").spawn().expect("a child");
    let dead = || procs::state(child.id()) == Some('Z');
    let begun = Instant::now();
    while !dead() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(2));
    }
    is_refused(child.id(), "has ended");
    child.wait().expect("our child");
}

#[test]
fn threads_stopped_programs_and_traced_ones_are_left_alone() {
    need_userfaultfd!();
    let program = watchful(["16", LONG, "2", "0"]);
    let pid = program.pid();
    let thread = program.until("a thread", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("tasks").flatten();
        let mut threads = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
        threads.find(|tid: &u32| *tid != pid)
    });
    is_refused(thread, "is a thread of process");
    program.signal(19);
    program.until("a stop", || (procs::state(program.pid()) == Some('T')).then_some(()));
    is_refused(program.pid(), "is stopped");
    program.signal(18);
    if installed("strace") {
        let pid = program.pid().to_string();
        let mut strace = common::command("timeout");
        strace.args(["-s", "INT", "20", "strace", "-f", "-o", "/dev/null", "-p", &pid]);
        let mut strace = strace.stderr(std::process::Stdio::null()).spawn().expect("strace");
        let tracer =
            || !fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default().contains("TracerPid:\t0");
        program.until("a tracer", || tracer().then_some(()));
        is_refused(program.pid(), "is traced by another: strace");
        procs::kill(strace.id(), 15);
        strace.wait().expect("its end");
    }
    is_good(program);
}

#[test]
fn uswap_and_its_runs_are_left_alone() {
    need_userfaultfd!();
    let run = under("64M").waits().start(["sleep", "20"]);
    is_refused(run.pid(), "is uswap itself");
    is_refused(run.engine(), "is uswap itself");
    is_refused(run.command(), "belongs to a run of uswap already");
    let name = run.pid().to_string();
    let out = uswap(["detach", &name]);
    assert!(out.status.code() == Some(125) && text(&out).contains("detach is for programs"), "{}", text(&out));
    assert_eq!(uswap(["detach", "no-run-has-this-name"]).status.code(), Some(125));
    procs::kill(run.command(), 15);
    run.wait().expect(143);
}

/// Other users' programs are none of theirs who may not trace them; the setting that says so is
/// named if there is one.
#[test]
fn programs_of_other_users_are_left_alone() {
    need_userfaultfd!();
    if !is_root() || !installed("setpriv") {
        return skip("root and setpriv are needed");
    }
    let program = watchful(["16", LONG, "1", "0"]);
    let drop = ["--reuid", "65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"];
    // A copy that everybody may execute.
    let copy = std::env::temp_dir().join(format!("uswap-test-{}", std::process::id()));
    fs::copy(USWAP, &copy).expect("a copy");
    let out = Command::new("setpriv").args(drop).arg(&copy).args(["attach", &program.pid().to_string()]).output();
    fs::remove_file(&copy).expect("our copy");
    let out = out.expect("setpriv");
    assert_eq!(out.status.code(), Some(125));
    assert!(
        text(&out).contains("not permitted to attach to watchful") && text(&out).contains("SYS_PTRACE"),
        "{}",
        text(&out)
    );
    is_good(program);
}

#[test]
fn programs_with_filters_are_left_alone() {
    need_userfaultfd!();
    let source = r#"
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <stdio.h>
        #include <sys/prctl.h>
        #include <unistd.h>
        int main(void) {
            struct sock_filter all[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
            struct sock_fprog filter = { 1, all };
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
                return 3;
            puts("ready");
            fflush(stdout);
            pause();
            return 0;
        }"#;
    let program = start(common::victims::compile_text("filtered-outside", source), &[]);
    is_refused(program.pid(), "seccomp filters of its own");
    program.signal(15);
    program.wait().expect(143);
}

// ---- at every step -------------------------------------------------------------------------------------------------

/// Steps of bringing an agent, and a few that never come.
const STEPS: std::ops::RangeInclusive<u32> = 1..=24;

/// For every step at once: the program (of 400 ms), and what came of an attach with this fault at
/// this step.
fn at_every_step(fault: &str, judge: impl Fn(u32, Outcome, Outcome)) {
    let engines: Vec<(u32, Running, Running)> = STEPS
        .map(|step| {
            let program = watchful(["9", "2500", "1", "0"]);
            let engine = attach_to(attach("64M").faults(&format!("{fault}={step}")), &program);
            (step, program, engine)
        })
        .collect();
    for (step, program, engine) in engines {
        let engine = engine.wait();
        judge(step, engine, program.wait());
    }
}

/// Who is refused is told why; on a busy machine the program may have ended before it was looked
/// at.
fn is_told(engine: &Outcome) {
    let why = ["cannot attach to watchful", "has ended", "there is no process"];
    assert!(engine.code() == 0 || why.iter().any(|why| engine.stderr.contains(why)), "{}", engine.account());
}

#[test]
fn a_program_may_be_killed_at_any_step() {
    need_userfaultfd!();
    at_every_step("attach-kill", |step, engine, program| {
        assert!([0, 125].contains(&engine.code()) && engine.hung.is_none(), "step {step}: {}", engine.account());
        assert!([0, 137].contains(&program.code()), "step {step}: {}", program.account());
        is_told(&engine);
    });
}

#[test]
fn a_step_that_fails_leaves_the_program_as_it_was() {
    need_userfaultfd!();
    at_every_step("attach-fail", |step, engine, program| {
        assert!([0, 125].contains(&engine.code()) && engine.hung.is_none(), "step {step}: {}", engine.account());
        assert!(program.expect(0).stdout.contains("good"), "step {step}");
        is_told(&engine);
    });
}

/// A thread that does not stop in time is not seized a second time while it is waited for: the
/// kernel would refuse it.
#[test]
fn a_thread_that_stops_late_is_waited_for() {
    need_userfaultfd!();
    let program = watchful(["40", "60000", "1", "0"]);
    let name = program.pid().to_string();
    let engine = attach_to(attach("24M").faults("attach-late=300000"), &program);
    evicts(&engine, &name, 4000);
    detach(&name);
    without_losses(engine.wait().expect(0).paged());
    is_good(program);
}

/// Before the first step that changes a register the program goes on; after it nobody else could
/// give them back.
#[test]
fn an_engine_may_die_at_any_step() {
    need_userfaultfd!();
    at_every_step("attach-die", |step, engine, program| {
        assert!([0, 70, 125].contains(&engine.code()) && engine.hung.is_none(), "step {step}: {}", engine.account());
        assert!(engine.code() != 125 || engine.stderr.contains("ended"), "step {step}: {}", engine.account());
        assert!([0, 137].contains(&program.code()), "step {step}: {}", program.account());
        if step <= 2 {
            program.expect(0);
        }
    });
}
