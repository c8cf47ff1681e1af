//! Programs that did not load the agent: static ones of several kinds, cleared environments, their
//! children; and that being attached to changes nothing they can notice.

use crate::common;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::torture_cases::{more_torture_cases, torture_cases};
use common::victims::compile;
use common::{Launch, Outcome, installed, is_root, not_here, skip, under};

fn programs(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(folder)
}

fn source(name: &str) -> PathBuf {
    programs(name).with_extension("c")
}

fn tmp(name: &str) -> PathBuf {
    common::place(name)
}

/// A program of tests/programs, linked statically.
fn fixed(name: &str) -> PathBuf {
    compile(&source(name), &format!("{name}-static"), &["-O1", "-g", "-pthread", "-static"])
}

fn was_attached(outcome: &Outcome) -> &Outcome {
    assert!(outcome.stat("attached") > 0, "no agent was brought: {}", outcome.account());
    assert_eq!(outcome.stat("checksum_errors") + outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
    outcome
}

/// Two things are limits where there is no C library that could be asked (SPECIFICATION.md, I22):
/// guards over evicted pages, and advice on what children inherit that changes at the moment of a
/// fork.
fn within_limits(arguments: &str) -> String {
    const BEYOND: &str = "-guard,-unguard,-wipeonfork,-keeponfork,-dontfork,-dofork";
    match arguments.split_once("--ops-mask -") {
        Some((before, masked)) => format!("{before}--ops-mask {BEYOND},-{masked}"),
        None if arguments.contains("--ops-mask") || arguments.contains("--mode") => arguments.into(),
        None => format!("{arguments} --ops-mask {BEYOND}"),
    }
}

fn torture(faults: &str, arguments: &str) {
    let mut words = vec![fixed("torture").into_os_string()];
    // Of options given twice the first counts.
    words.extend(["--timeout", "75", "--seconds", "1", "--memory", "38"].map(Into::into));
    words.extend(within_limits(arguments).split_whitespace().map(Into::into));
    let outcome = under("28M").faults(&format!("audit,{faults}")).deadline(90).swap_file("2G").run(words);
    was_attached(outcome.expect(0).paged());
}

// The torture program without a C library that loads anything, with all its cases.
torture_cases!(torture);
more_torture_cases!(torture);

fn attached(launch: Launch, arguments: [&str; 3]) -> Outcome {
    let mut words = vec![fixed("attached").into_os_string()];
    words.extend(arguments.map(Into::into));
    launch.deadline(60).run(words)
}

#[test]
fn nothing_is_noticed() {
    need_userfaultfd!();
    for threads in ["0", "8", "100"] {
        was_attached(attached(under("256M"), ["16", "1200", threads]).expect(0));
    }
}

#[test]
fn nothing_is_noticed_when_every_step_is_slow() {
    need_userfaultfd!();
    was_attached(attached(under("256M").faults("delay-attach=15000"), ["16", "2500", "8"]).expect(0));
}

/// Its stop is the attacher's business: the keeper would stop, too, if it took it for the
/// command's.
#[test]
fn nothing_is_noticed_when_threads_stop_late() {
    need_userfaultfd!();
    for threads in ["0", "8"] {
        // Whether the agent comes before the program ends is not the question here.
        attached(under("256M").faults("attach-late=60000"), ["16", "2000", threads]).expect(0);
    }
}

#[test]
fn nothing_is_noticed_under_pressure() {
    need_userfaultfd!();
    was_attached(attached(under("32M"), ["48", "3000", "8"]).expect(0).paged());
}

/// Steps of bringing an agent, and a few that never come.
const STEPS: std::ops::RangeInclusive<u32> = 1..=24;

/// What comes of a program with this fault at each step; some at a time.
fn at_every_step(fault: &str, judge: impl Fn(u32, &Outcome)) {
    let program = fixed("attached").into_os_string();
    for steps in STEPS.collect::<Vec<u32>>().chunks(8) {
        let start = |step: &u32| {
            let words = ["16", "1000", "4"].map(OsString::from);
            let launch = under("256M").faults(&format!("{fault}={step}")).deadline(60);
            launch.start(std::iter::once(program.clone()).chain(words))
        };
        let runs: Vec<_> = steps.iter().map(|step| (*step, start(step))).collect();
        runs.into_iter().for_each(|(step, run)| judge(step, &run.wait()));
    }
}

#[test]
fn a_program_may_be_killed_at_any_step() {
    need_userfaultfd!();
    at_every_step("attach-kill", |step, outcome| {
        assert!([0, 137].contains(&outcome.code()), "step {step}: {}", outcome.account());
        outcome.expect(outcome.code());
    });
}

#[test]
fn a_step_that_fails_leaves_the_program_as_it_was() {
    need_userfaultfd!();
    at_every_step("attach-fail", |_, outcome| {
        outcome.expect(0);
    });
}

#[test]
fn an_engine_that_dies_at_any_step_takes_the_program_along() {
    need_userfaultfd!();
    at_every_step("attach-die", |step, outcome| {
        assert!([0, 70].contains(&outcome.code()), "step {step}: {}", outcome.account());
        outcome.expect(outcome.code());
    });
}

#[test]
fn a_cleared_environment_is_attached_to() {
    need_userfaultfd!();
    let program = common::victims::victim("attached");
    let words = ["env".into(), "-i".into(), program.into_os_string(), "48".into(), "2000".into(), "3".into()];
    was_attached(under("32M").run(words).expect(0).paged());
}

/// What gives up the rights of root cannot open the agent; it is brought.
#[test]
fn programs_of_another_user_are_attached_to() {
    need_userfaultfd!();
    if !is_root() || !installed("setpriv") {
        return skip("root and setpriv are needed");
    }
    // A copy that everybody may execute.
    let copy = std::env::temp_dir().join(format!("uswap-test-attached-{}", std::process::id()));
    std::fs::copy(fixed("attached"), &copy).expect("a copy");
    let drop = ["setpriv", "--reuid", "65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"];
    let words = drop.map(OsString::from).into_iter().chain([copy.clone().into_os_string()]);
    let outcome = under("32M").run(words.chain(["48", "2000", "3"].map(OsString::from)));
    std::fs::remove_file(&copy).expect("our copy");
    was_attached(outcome.expect(0).paged());
}

#[test]
fn position_independent_static_programs_are_attached_to() {
    need_userfaultfd!();
    let program = compile(&source("attached"), "attached-static-pie", &["-O1", "-g", "-pthread", "-static-pie"]);
    let words = [program.into_os_string(), "48".into(), "2000".into(), "3".into()];
    was_attached(under("32M").run(words).expect(0).paged());
}

#[test]
fn programs_of_another_libc_are_attached_to() {
    need_userfaultfd!();
    if !installed("musl-gcc") {
        return skip("musl-gcc is not installed");
    }
    let program = tmp("attached-musl");
    let arguments = ["-O1", "-static", "-pthread", "-o"];
    let compiled = Command::new("musl-gcc").args(arguments).arg(&program).arg(source("attached")).status();
    assert!(compiled.is_ok_and(|status| status.success()));
    let words = [program.into_os_string(), "48".into(), "2000".into(), "6".into()];
    was_attached(under("32M").run(words).expect(0).paged());
}

/// A shell with a large variable, whose children are forked with it and have no handler that would
/// start an agent. Most end before one can be brought; their pages are served all the same.
#[test]
fn scripts_of_a_static_shell_are_attached_to() {
    need_userfaultfd!();
    let is_static = |text: &str| text.contains("statically") || !text.contains("=>");
    let linked = Command::new("ldd").arg("/bin/busybox").output();
    let linked = linked.map(|out| String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned());
    if !installed("busybox") || !linked.is_ok_and(|text| is_static(&text)) {
        return skip("there is no static busybox");
    }
    let script = "x=$(busybox seq 1 400000); s=$(echo \"$x\" | busybox md5sum); i=0; \
        while [ $i -lt 12 ]; do t=$(echo \"$x\" | busybox md5sum); [ \"$s\" = \"$t\" ] || exit 1; i=$((i+1)); y=\"$y$x\"; done; \
        echo ok ${#y}";
    let outcome = under("32M").deadline(90).faults("audit").run(["busybox", "sh", "-c", script]);
    was_attached(outcome.expect(0).paged());
    assert_eq!(outcome.stdout.trim(), "ok 32266728");
}

/// Garbage, goroutines, deep stacks and preemption signals over evicted memory.
#[test]
fn go_programs_are_attached_to() {
    need_userfaultfd!();
    if !installed("go") {
        return skip("go is not installed");
    }
    let program = tmp("churn");
    let mut build = Command::new("go");
    build.current_dir(programs("go")).env("CGO_ENABLED", "0").env("GOCACHE", tmp("go-cache")).env("GO111MODULE", "off");
    let built = build.args(["build", "-o"]).arg(&program).arg("churn.go").status();
    assert!(built.is_ok_and(|status| status.success()));
    let words = [program.into_os_string(), "120".into(), "5".into()];
    was_attached(under("64M").deadline(90).faults("audit").run(words).expect(0).paged());
}

/// The compiler, the linker and a test with the race detector, which keeps terabytes of shadow
/// memory, in one tree.
#[test]
fn go_test_with_the_race_detector() {
    need_userfaultfd!();
    if !installed("go") {
        return skip("go is not installed");
    }
    // The race detector needs cgo and Go's own build of its library, which some distributions leave
    // out.
    let folder = programs("go");
    let words = ["go", "test", "-race", "-count=1", "churn.go", "churn_test.go"].map(OsString::from);
    let launch = |ram: &str| {
        let launch = under(ram).deadline(170).faults("audit").folder(&folder);
        launch.env("GO111MODULE", "off").env("GOCACHE", tmp("go-cache")).env("CGO_ENABLED", "1")
    };
    let outcome = launch("192M").run(words);
    was_attached(outcome.expect(0).paged());
    assert!(outcome.stdout.starts_with("ok"), "{}", outcome.account());
}

/// Rust with musl.
#[test]
fn static_rust_programs_are_attached_to() {
    need_userfaultfd!();
    const TARGET: &str = "x86_64-unknown-linux-musl";
    let program = tmp("blocks-musl");
    let compiles = || {
        let mut compile = Command::new("rustc");
        compile.args(["--edition", "2024", "-O", "--target", TARGET, "-o"]).arg(&program);
        compile.arg(programs("rust").join("blocks.rs")).output().is_ok_and(|out| out.status.success())
    };
    let add_target =
        || Command::new("rustup").args(["target", "add", TARGET]).output().is_ok_and(|o| o.status.success());
    let is_compiled = compiles() || add_target() && compiles();
    if !is_compiled {
        return not_here("rustc has no musl target and cannot get it");
    }
    let words = [program.into_os_string(), "96".into(), "3".into()];
    was_attached(under("48M").deadline(90).faults("audit").run(words).expect(0).paged());
}

fn static_victim(name: &str, arguments: &str) {
    let words = arguments.split_whitespace().map(OsString::from);
    let all = std::iter::once(fixed(name).into_os_string()).chain(words);
    was_attached(under("64M").deadline(90).faults("audit").swap_file("2G").run(all).expect(0).paged());
}

/// A static program that forks by the bare system call, generation by generation.
#[test]
fn bare_forks_of_static_programs_are_served() {
    need_userfaultfd!();
    static_victim("raw_forks", "--memory 96 --rounds 2");
}

/// Nobody tells of advice; the kernel is asked.
#[test]
fn what_static_programs_do_not_hand_down_is_known() {
    need_userfaultfd!();
    static_victim("wipeonfork", "--memory 128");
}

#[test]
fn programs_are_left_alone_when_that_is_wanted() {
    need_userfaultfd!();
    let outcome = attached(under("256M").flag("--no-attach"), ["16", "1500", "0"]);
    assert_eq!(outcome.expect(0).stat("attached"), 0);
    outcome.complains("static");
}

/// A program that has seccomp filters of its own stays as it is, and is named.
#[test]
fn programs_with_filters_are_left_alone_and_named() {
    need_userfaultfd!();
    let text = r#"
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/prctl.h>
        #include <unistd.h>
        char *volatile memory;
        int main(void) {
            struct sock_filter all[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
            struct sock_fprog filter = { 1, all };
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
                return 3;
            memory = malloc(16 << 20);
            memset(memory, 1, 16 << 20);
            usleep(2000000);
            return 0;
        }"#;
    let path = tmp("filtered.c");
    std::fs::write(&path, text).expect("source");
    let program = compile(&path, "filtered-static", &["-O1", "-static"]);
    let outcome = under("256M").waits().run([program]);
    assert_eq!(outcome.expect(0).stat("attached"), 0, "{}", outcome.account());
    outcome.complains("seccomp filters of its own");
}

#[test]
fn traced_programs_are_left_alone_and_named() {
    need_userfaultfd!();
    if !installed("strace") {
        return skip("strace is not installed");
    }
    let words = ["strace", "-f", "-o", "/dev/null"].map(Into::into).into_iter();
    let program = fixed("attached").into_os_string();
    let outcome = under("256M").run(words.chain([program, "16".into(), "2500".into(), "2".into()]));
    assert_eq!(outcome.expect(0).stat("attached"), 0, "{}", outcome.account());
    outcome.complains("traced by process");
}

/// Once the agent is there others may trace the program as ever.
#[test]
fn tracers_work_afterwards() {
    need_userfaultfd!();
    if !installed("strace") || !installed("gdb") {
        return skip("strace or gdb is not installed");
    }
    let mut words = vec![fixed("attached").into_os_string()];
    words.extend(["48", "6000", "3"].map(Into::into));
    let running = under("32M").deadline(60).start(words);
    let pid = running.command().to_string();
    running.until("an agent", || common::procs::agent_thread(running.command()));
    let strace =
        common::command("timeout").args(["-s", "INT", "1", "strace", "-f", "-p", &pid]).output().expect("strace");
    assert!(String::from_utf8_lossy(&strace.stderr).contains("attached"), "{strace:?}");
    let gdb = Command::new("timeout").args(["30", "gdb", "-batch", "-p", &pid, "-ex", "info threads"]).output();
    assert!(String::from_utf8_lossy(&gdb.expect("gdb").stdout).contains("\"uswap-agent\""));
    let outcome = running.wait();
    was_attached(outcome.expect(0).paged());
}
