//! The control socket of a living run: names, answers, callers that misbehave, and programs that no
//! agent speaks for.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn uswap(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uswap")).args(arguments).output().expect("uswap runs")
}

/// Where runs are not permitted there is nothing to ask.
fn runs_work() -> bool {
    uswap(&["doctor"]).status.success()
}

/// A run that sleeps until it is dropped.
struct Run {
    child: Child,
    name: String,
}

impl Run {
    fn start(name: &str) -> Self {
        let name = format!("test-{name}-{}", std::process::id());
        let child = Command::new(env!("CARGO_BIN_EXE_uswap"))
            .args(["run", "-q", "--ram", "64M", "--name", &name, "--", "sleep", "60"])
            .stdin(Stdio::null())
            .spawn()
            .expect("uswap runs");
        let run = Self { child, name };
        let begun = Instant::now();
        while !uswap(&["status", &run.name]).status.success() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the run does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        run
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&uswap(&["status", &self.name, "--json"]).stdout).expect("JSON")
    }

    fn connect(&self) -> UnixStream {
        let user = self.status()["user"].as_u64().expect("a user");
        let address = SocketAddr::from_abstract_name(format!("uswap/{user}/{}", self.name)).expect("an address");
        let stream = UnixStream::connect_addr(&address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        stream
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let terminated = Command::new("kill").arg(self.child.id().to_string()).status();
        if !terminated.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

#[test]
fn a_run_tells_who_it_is_and_its_figures() {
    if !runs_work() {
        return;
    }
    let run = Run::start("figures");
    let told = run.status();
    assert_eq!(told["name"], run.name.as_str());
    assert_eq!(told["pid"], run.child.id());
    assert_eq!(told["command"], serde_json::json!(["sleep", "60"]));
    assert_eq!(told["figures"]["ram_limit_bytes"], 64 << 20);
    assert!(told["figures"]["fault_latency"]["pool"]["p99_ns"].is_u64());
    let tables = String::from_utf8_lossy(&uswap(&["status", &run.name]).stdout).into_owned();
    for word in ["sleep 60", "budget", "64.0 MiB", "SWAP", "FAULTS", "P99.9"] {
        assert!(tables.contains(word), "{word} in {tables}");
    }
}

#[test]
fn a_name_is_taken_while_its_run_lives_and_free_afterwards() {
    if !runs_work() {
        return;
    }
    let run = Run::start("twice");
    let again = ["run", "--ram", "64M", "--name", &run.name, "--", "echo", "started"];
    let refused = uswap(&again);
    assert_eq!(refused.status.code(), Some(125));
    assert!(refused.stdout.is_empty(), "the command ran");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is there already"));
    let name = run.name.clone();
    drop(run);
    assert_eq!(uswap(&["status", &name]).status.code(), Some(125));
    assert_eq!(uswap(&["run", "-q", "--ram", "64M", "--name", &name, "--", "true"]).status.code(), Some(0));
}

#[test]
fn several_runs_are_listed() {
    if !runs_work() {
        return;
    }
    let (one, two) = (Run::start("one"), Run::start("two"));
    let list = String::from_utf8_lossy(&uswap(&["status"]).stdout).into_owned();
    assert!(list.lines().next().is_some_and(|heading| heading.starts_with("NAME") && heading.ends_with("COMMAND")));
    assert!(list.contains(&one.name) && list.contains(&two.name), "{list}");
    let all: Value = serde_json::from_slice(&uswap(&["status", "--json"]).stdout).expect("JSON");
    assert!(all.as_array().is_some_and(|all| all.len() >= 2));
}

#[test]
fn nonsense_gets_an_error_and_the_run_goes_on_answering() {
    if !runs_work() {
        return;
    }
    let run = Run::start("nonsense");
    for nonsense in [&b"\n"[..], b"status\n", b"{}\n", b"{\"request\":\"stop\"}\n", b"\xff\xfe\x00\n", b"[[[[[[[["] {
        let mut stream = run.connect();
        stream.write_all(nonsense).expect("room");
        stream.shutdown(std::net::Shutdown::Write).expect("a half-closed stream");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert!(answer["error"].is_string(), "{nonsense:?}: {answer}");
    }
    let mut endless = run.connect();
    // The run hangs up: how much it takes before that is its affair.
    let _ = endless.write_all(&vec![b'x'; 1 << 20]);
    assert_eq!(run.status()["name"], run.name.as_str());
}

/// Asks for the status as the user whose number is given, and prints the answer.
const ASK: &str = "import os, socket, sys\n\
    os.setgroups([]); os.setuid(int(sys.argv[2]))\n\
    s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + sys.argv[1])\n\
    s.sendall(b'{\"request\":\"status\"}\\n'); print(s.makefile().read())";

#[test]
fn other_users_are_refused() {
    if !runs_work() {
        return;
    }
    let run = Run::start("others");
    let user = run.status()["user"].as_u64().expect("a user");
    if user != 0 {
        return;
    }
    let ask = |stranger: &str| {
        let address = format!("uswap/{user}/{}", run.name);
        let output = Command::new("python3").args(["-c", ASK, &address, stranger]).output().expect("python3");
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    assert_eq!(ask("0")["name"], run.name.as_str());
    let refusal = ask("65534");
    assert!(refusal["error"].as_str().is_some_and(|error| error.contains("another user")), "{refusal}");
    assert!(refusal["figures"].is_null() && refusal["command"].is_null(), "{refusal}");
}

#[test]
fn a_silent_caller_does_not_keep_others_waiting_for_long() {
    if !runs_work() {
        return;
    }
    let run = Run::start("silent");
    let _silent = run.connect();
    let begun = Instant::now();
    assert_eq!(run.status()["name"], run.name.as_str());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

/// A program that fills 24 MiB and stays for three seconds.
const HUNGRY: &str = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
    int main(void) { char *p = malloc(24 << 20); memset(p, 1, 24 << 20); sleep(3); return p[5] != 1; }\n";

fn compile(name: &str, options: &[&str]) -> Option<PathBuf> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("of uswap");
    std::fs::create_dir_all(&directory).ok()?;
    let (source, program) = (directory.join(format!("{name}.c")), directory.join(name));
    std::fs::write(&source, HUNGRY).ok()?;
    let compiled = Command::new("cc").args(options).arg(&source).arg("-o").arg(&program).status().ok()?;
    compiled.success().then_some(program)
}

#[test]
fn programs_without_an_agent_are_named_with_the_reason() {
    let (Some(fixed), Some(bare)) = (compile("hungry-static", &["-static"]), compile("hungry-bare", &[])) else {
        return;
    };
    if !runs_work() {
        return;
    }
    let stats = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("unmanaged.json");
    let script = format!("'{}' & env -u LD_PRELOAD '{}' & wait", fixed.display(), bare.display());
    let run =
        ["run", "--no-attach", "--ram", "256M", "--stats", stats.to_str().expect("a path"), "--", "sh", "-c", &script];
    let output = uswap(&run);
    assert!(output.status.success());
    let summary = String::from_utf8_lossy(&output.stderr).into_owned();
    let told: Value = serde_json::from_str(&std::fs::read_to_string(&stats).expect("stats")).expect("JSON");
    for (name, why) in [("hungry-static", "static"), ("hungry-bare", "environment without LD_PRELOAD")] {
        assert!(summary.contains(&format!("{name} ({why}, 24")), "{summary}");
        let known =
            told["unmanaged"].as_array().is_some_and(|all| all.iter().any(|p| p["name"] == name && p["why"] == why));
        assert!(known, "{}", told["unmanaged"]);
    }
}
