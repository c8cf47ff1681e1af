//! `uswap doctor` says the same as `uswap run` does, and the printed pages are there.

use std::process::{Command, Output};

use serde_json::Value;

fn uswap(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uswap")).args(arguments).output().expect("uswap runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_verdict_is_that_of_run() {
    let doctor = uswap(&["doctor", "--json"]);
    let told: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let run = uswap(&["run", "--ram", "64M", "--", "true"]);
    assert_eq!(told["run_works"], run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(doctor.status.code(), Some(i32::from(!run.status.success())));
    assert_eq!(text(&uswap(&["doctor"])).contains("FAILS"), !run.status.success());
}

#[test]
fn every_finding_has_a_name_a_verdict_and_where_it_fails_a_fix() {
    let told: Value = serde_json::from_slice(&uswap(&["doctor", "--json"]).stdout).expect("JSON");
    let checks = told["checks"].as_array().expect("a list");
    for check in checks {
        assert!(check["check"].is_string() && check["found"].is_string(), "{check}");
        let verdict = check["verdict"].as_str().expect("a verdict");
        assert!(["ok", "note", "warning", "fails"].contains(&verdict), "{check}");
        assert!(verdict != "fails" || check["fix"].is_string(), "{check}");
    }
    for subject in [
        "kernel",
        "fork events",
        "UFFDIO_MOVE",
        "ageing",
        "process_vm_readv",
        "/dev/fuse",
        "--ram auto",
        "RLIMIT_NOFILE",
    ] {
        let known = told["checks"].as_array().is_some_and(|all| all.iter().any(|check| check["check"] == subject));
        assert!(known || !told["run_works"].as_bool().unwrap_or(false), "{subject}");
    }
}

#[test]
fn without_a_place_for_swap_run_is_refused_and_doctor_says_so() {
    let with = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uswap"));
        command.args(arguments).env("TMPDIR", "/dev/shm").output().expect("uswap runs")
    };
    let told: Value = serde_json::from_slice(&with(&["doctor", "--json"]).stdout).expect("JSON");
    let place = told["checks"].as_array().into_iter().flatten().find(|check| check["check"] == "swap in $TMPDIR");
    let found = place.and_then(|check| check["found"].as_str()).unwrap_or_default();
    assert!(found.contains("tmpfs") || found.contains("No such file") || found.contains("not a directory"), "{found}");
}

#[test]
fn man_page_and_completions_are_printed() {
    let page = text(&uswap(&["man"]));
    assert!(page.contains(".SH \"EXIT STATUS\"") && page.contains("\\-\\-memory"), "{page}");
    for shell in ["bash", "zsh", "fish"] {
        let completions = text(&uswap(&["completions", shell]));
        assert!(completions.contains("doctor") && completions.contains("memory"), "{shell}");
    }
}

#[test]
fn wrong_usage_is_125_and_help_is_0() {
    for wrong in [&["nonsense"][..], &["run"], &["run", "--nonsense", "--", "true"], &["status", "--nonsense"]] {
        assert_eq!(uswap(wrong).status.code(), Some(125), "{wrong:?}");
    }
    assert_eq!(uswap(&["run", "--name", "a/b", "--", "true"]).status.code(), Some(125));
    for right in [&["--help"][..], &["--version"], &["run", "--help"]] {
        assert_eq!(uswap(right).status.code(), Some(0), "{right:?}");
    }
}
