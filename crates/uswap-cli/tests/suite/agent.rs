//! The agent as a process of its own: it comes and goes with the memory it speaks for.

use crate::common;

use std::fs;
use std::time::Duration;

use common::{procs, under};

/// Agents among the descendants of a process, zombies too.
fn agents(engine: u32) -> usize {
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_engine = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = text.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parent == Some(engine) && text.contains("(uswap-agent)")
    };
    pids.filter(of_engine).count()
}

/// A program that fills 48 MiB and executes itself so many times, then says so and sleeps.
const EXECS: &str = "\
import os, sys, time
n = int(sys.argv[1])
held = [bytes([n + 1]) * 3000 for _ in range(16000)]
if n: os.execv(sys.executable, [sys.executable, '-c', sys.argv[2], str(n - 1), sys.argv[2]])
assert all(part == bytes([n + 1]) * 3000 for part in held)
print('whole', flush=True)
time.sleep(20)
";

/// Eight images of 48 MiB one after the other in 64 MiB: if the memory of one outlived its exec the
/// next would not fit.
#[test]
fn the_memory_of_an_image_goes_with_it() {
    need_userfaultfd!();
    let words = ["python3", "-c", EXECS, "7", EXECS];
    let run = under("64M").waits().deadline(50).start(words);
    run.says("whole");
    let engine = run.engine();
    run.until("one agent, the last image's", || (agents(engine) == 1).then_some(()));
    assert!(procs::agent(run.command()).is_some(), "it has the memory of the program");
    run.signal(15);
    let outcome = run.wait();
    assert!(outcome.stat("agents") >= 8, "{}", outcome.account());
    assert_eq!(outcome.stat("checksum_errors"), 0);
}

/// What executes a program that loads no agent is seen all the same, by the census.
#[test]
fn an_exec_of_a_static_program_is_seen() {
    need_userfaultfd!();
    if !common::installed("busybox") {
        return common::not_here("busybox is not installed");
    }
    let script = "import os\nheld = [bytes(3000) for _ in range(20000)]\nprint('full', flush=True)\n\
                  os.execvp('busybox', ['busybox', 'sleep', '20'])";
    let run = under("44M").waits().deadline(40).start(["python3", "-c", script]);
    run.says("full");
    let engine = run.engine();
    let executed = || procs::name(run.command()).filter(|name| name == "busybox");
    run.until("the other program", || executed().map(drop));
    run.until("no agent", || (agents(engine) == 0).then_some(()));
    run.signal(15);
    run.wait();
}

/// Short programs leave no agent and no zombie behind, however many there are.
#[test]
fn agents_end_with_their_programs() {
    need_userfaultfd!();
    let run = under("64M").waits().deadline(50).start([
        "sh",
        "-c",
        "for i in $(seq 200); do /bin/true; done; echo done; exec sleep 20",
    ]);
    run.says("done");
    let engine = run.engine();
    run.until("the shell's agent and that of sleep", || (agents(engine) <= 2).then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    assert!(agents(engine) <= 2, "zombies are reaped");
    run.signal(15);
    run.wait();
}
