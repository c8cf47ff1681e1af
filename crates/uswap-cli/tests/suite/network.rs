//! The engine's side of swap over a slow network that fails: nothing waits for memory that only the
//! network can free.
//!
//! Servers are nbdkit's, on loopback; a test that needs it leaves itself out where it is not
//! installed.

use crate::common;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::cgroup::Group;
use common::victims::victim;
use common::{Launch, Outcome, alone, installed, not_here, notice, once_in_two, skip, under};

const MIB: u64 = 1 << 20;

/// An NBD server in memory, ended with the test.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let mut command = Command::new("nbdkit");
        command.args(["-f", "-i", "127.0.0.1", "-p", &port.to_string()]).args(options);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nbdkit");
        let server = Self { child, port };
        for _ in 0..200 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return server;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        panic!("nbdkit does not listen");
    }

    fn uri(&self) -> String {
        format!("nbd://127.0.0.1:{}/", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

macro_rules! need_nbdkit {
    () => {
        need_userfaultfd!();
        if !installed("nbdkit") {
            return skip("nbdkit is not installed");
        }
    };
}

fn readers(processes: &str, memory: &str, passes: &str) -> Vec<String> {
    let program = victim("linear_readers").display().to_string();
    let words = ["--processes", processes, "--memory", memory, "--passes", passes, "--incompressible", "1"];
    std::iter::once(program).chain(words.map(String::from)).chain(["--timeout".into(), "140".into()]).collect()
}

fn whole(launch: Launch, words: Vec<String>) -> Outcome {
    let outcome = launch.run(words);
    is_whole(&outcome);
    outcome
}

/// Every page was right.
fn is_whole(outcome: &Outcome) {
    outcome.expect(0).paged();
    for figure in ["checksum_errors", "poisoned_pages"] {
        assert_eq!(outcome.stat(figure), 0, "{}", outcome.account());
    }
}

/// The document's test in small: readers of four times the budget, swap over TCP only, and a limit
/// of the kernel's just above the budget. What sixteen processes touch at their start nobody holds
/// up until the engine has seen it: if it is kept from the processors just then for 30 ms, the
/// kernel kills (and there is a second try).
#[test]
fn readers_of_four_times_the_budget_run_in_a_tight_cgroup() {
    need_nbdkit!();
    let _alone = alone();
    let budget = 64 * MIB;
    once_in_two(|| {
        let group = match Group::new("network", budget + budget / 20 + 32 * MIB) {
            Ok(group) => group,
            Err(error) => {
                not_here(&format!("no memory cgroup can be made here: {error}"));
                return Ok(());
            }
        };
        let server = Server::start(&["memory", "1G"]);
        let launch =
            under("64M").wrapper(group.wrapper()).option("--swap", server.uri()).deadline(150).faults("no-alloc");
        // In turns three at a time would fit, and hardly a page would be read twice.
        let outcome = launch.option("--load-control", "off").run(readers("16", "256", "2"));
        let kills = group.oom_kills();
        if kills > 0 {
            return Err(format!("the kernel killed {kills} processes: {}", outcome.account()));
        }
        is_whole(&outcome);
        assert!(outcome.stat("pswpin") > 50_000, "{}", outcome.account());
        Ok(())
    });
}

/// Threads that serve pages allocate nothing that has no name, also over a slow device.
#[test]
fn nothing_on_the_way_of_a_page_allocates() {
    need_userfaultfd!();
    let launch = under("32M").swap_file("1G").deadline(120).faults("no-alloc,delay-read=2000,delay-write=2000");
    let outcome = whole(launch.option("--pool", "10"), readers("8", "96", "2"));
    let growth = &outcome.stats.as_ref().expect("figures")["growth"];
    assert!(growth["page_tables"].as_u64() > Some(0), "what grows is counted: {growth}");
}

/// The test above can fail: a worker that allocates ends the run.
#[test]
fn an_allocation_without_a_name_ends_the_engine() {
    need_userfaultfd!();
    let launch = under("32M").swap_file("1G").deadline(120).faults("no-alloc,allocate");
    let outcome = launch.run(readers("4", "96", "1"));
    outcome.expect(70).complains("allocates");
}

/// Two programs in two groups over a slow device: one reads with many threads all over its memory,
/// the other with one. The one keeps a quarter of the pace that it has alone, at least. Other load
/// that comes between the two runs is none of ours: five tries.
#[test]
fn a_greedy_program_leaves_another_its_pace() {
    need_userfaultfd!();
    let _alone = alone();
    let pace = |greedy: &str| {
        let script = format!(
            "uswap=$1; program=$2; order() {{ \"$uswap\" group $1 $USWAP_NAME $2 $3 $4 >/dev/null || exit 9; }}; \
             order create greedy --limit 24M; order create modest --limit 16M; \
             (order move $BASHPID greedy; exec {greedy} >/dev/null) & other=$!; order move $$ modest; \
             \"$program\" --processes 1 --memory 40 --passes 4000 --incompressible 1 >out & mine=$!; \
             sleep 12; kill $mine $other; wait; wc -l <out"
        );
        let name = format!("fair-{}-{}", std::process::id(), greedy.len());
        let launch = under("48M").swap_file("1G").deadline(90).option("--pool", "5").option("--name", &name);
        let program = victim("linear_readers").display().to_string();
        let outcome = launch.faults("delay-read=5000").run(["bash", "-c", &script, "fair", common::USWAP, &program]);
        outcome.expect(0);
        let passes: u64 = outcome.stdout.lines().last().and_then(|line| line.trim().parse().ok()).unwrap_or(0);
        notice(&format!(
            "beside {greedy}: {passes} passes, reserve {}",
            outcome.stats.as_ref().expect("figures")["reserve"]
        ));
        passes
    };
    let program = victim("linear_readers").display().to_string();
    let greedy = format!("'{program}' --processes 24 --memory 256 --passes 400 --incompressible 1");
    let is_fair = |(alone, beside): (u64, u64)| alone > 4 && beside * 4 >= alone;
    let mut paces = Vec::new();
    while paces.len() < 5 && !paces.last().copied().is_some_and(is_fair) {
        paces.push((pace("sleep 60"), pace(&greedy)));
    }
    let last = paces.last().copied();
    assert!(last.is_some_and(is_fair), "passes alone and beside the greedy one: {paces:?}");
}

/// Reads go on at once, and streams are read ahead of: a device of 2 ms gives a stream more than a
/// page in 2 ms.
#[test]
fn a_slow_device_is_read_ahead_of() {
    need_userfaultfd!();
    let launch = under("32M").swap_file("1G").deadline(120).option("--pool", "5").faults("delay-read=2000");
    let outcome = whole(launch, readers("1", "96", "4"));
    let (read, faults) = (outcome.stat("pswpin"), outcome.stat("pgmajfault_device"));
    assert!(read > 50_000 && faults * 64 < read, "{}", outcome.account());
    // Of all pages most come before they are asked for, in up to 64 at a time.
    assert!(outcome.stat("swap_ra") * 4 > read * 3, "{}", outcome.account());
    assert!(outcome.stat("swap_ra_hit") * 100 > read, "{}", outcome.account());
    let untouched = outcome.stat("swap_ra_miss") * 64;
    assert!(untouched * 10 < read, "{}", outcome.account());
}
