//! The torture program (tests/programs/torture.c) with fixed seeds, and with the engine slowed down or refused at
//! its fault points, so that rare orders of events happen often.
//!
//! `cargo test -- --ignored` (make soak) runs each for minutes instead of seconds.

mod common;

use std::ffi::OsString;

use common::victims::victim;
use common::{Launch, Outcome, notice, under};

fn words(arguments: &str) -> Vec<OsString> {
    let mut all = vec![victim("torture").into_os_string()];
    all.extend(arguments.split_whitespace().map(OsString::from));
    all.extend(["--timeout".into(), "75".into()]);
    all
}

fn launch() -> Launch {
    under("64M").deadline(90).swap_file("2G").faults("audit")
}

/// Runs it; it must verify every page it read, and pages must have been evicted.
fn survives(launch: Launch, arguments: &str) -> Outcome {
    let outcome = launch.run(words(arguments));
    outcome.expect(0).paged();
    assert_eq!(outcome.stat("checksum_errors"), 0, "{}", outcome.account());
    assert_eq!(outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
    outcome
}

/// One test for each line: name, fault points, arguments of torture.
macro_rules! torture {
    ($($test:ident: $faults:literal, $arguments:literal;)*) => {
        $(#[test]
        fn $test() {
            need_userfaultfd!();
            survives(launch().faults(concat!("audit,", $faults)), $arguments);
        })*
    };
}

torture! {
    seed_1: "", "--seed 1 --seconds 6 --memory 128";
    seed_2_one_thread: "", "--seed 2 --seconds 5 --memory 128 --threads 1 --processes 0";
    seed_3_four_threads: "", "--seed 3 --seconds 5 --memory 128 --threads 4";
    seed_4_without_forks: "", "--seed 4 --seconds 5 --memory 160 --processes 0 --ops-mask -fork,-spawn";
    reads_and_writes_only: "", "--seed 5 --seconds 5 --memory 160 --ops-mask write,verify,rewrite_same,poke";
    mappings_only: "", "--seed 6 --seconds 5 --memory 128 --ops-mask \
        write,verify,grow,shrink,move,dontunmap,move_onto,unmap,refill,map_over,renew,dontneed";
    counters: "", "--mode counters --seconds 5 --memory 128";
    counters_with_four_threads: "", "--mode counters --seconds 5 --memory 160 --threads 4 --processes 1";
}

torture! {
    slow_installation: "delay-install=200", "--seed 11 --seconds 5 --memory 128";
    slow_gate: "delay-gate=200", "--seed 12 --seconds 5 --memory 128";
    slow_store: "delay-store=2000", "--seed 13 --seconds 5 --memory 128";
    all_slow: "delay-install=100,delay-gate=100,delay-store=500", "--seed 14 --seconds 5 --memory 128";
    kernel_answers_again: "again=5", "--seed 15 --seconds 5 --memory 128";
    store_is_full_at_times: "store-full=4", "--seed 16 --seconds 5 --memory 128";
    counters_slow_installation: "delay-install=200", "--mode counters --seconds 5 --memory 128";
    counters_slow_store: "delay-store=2000,again=7", "--mode counters --seconds 5 --memory 128";
}

/// Nothing compressed: every page that goes out goes to the device.
#[test]
fn without_a_pool() {
    need_userfaultfd!();
    let outcome = survives(launch().option("--pool", "0"), "--seed 21 --seconds 5 --memory 128");
    assert!(outcome.stat("pswpout") > 0, "{}", outcome.account());
}

#[test]
fn pool_of_a_few_pages() {
    need_userfaultfd!();
    survives(launch().option("--pool", "2"), "--seed 22 --seconds 5 --memory 128");
}

/// Right, but too slow for CI: slots that were freed and not discarded yet are charged to the budget.
#[test]
#[ignore = "takes minutes: make soak"]
fn swap_in_ram() {
    need_userfaultfd!();
    let outcome =
        survives(under("64M").deadline(600).option("--swap", "ram,size=1G"), "--seed 23 --seconds 5 --memory 128");
    assert!(outcome.stat("pswpout") > 0, "{}", outcome.account());
}

/// A small first device that fills, then a second one.
#[test]
fn two_devices() {
    need_userfaultfd!();
    let launch = launch().option("--pool", "5").option("--swap", "ram,prio=5,size=16M");
    let outcome = survives(launch, "--seed 24 --seconds 5 --memory 128");
    let devices = outcome.stats.as_ref().and_then(|stats| stats["devices"].as_array()).map_or(0, Vec::len);
    assert_eq!(devices, 2, "{}", outcome.account());
}

/// The default: nothing is named with `--swap`.
#[test]
fn swap_file_without_a_name() {
    need_userfaultfd!();
    survives(under("64M").deadline(90), "--seed 25 --seconds 4 --memory 128 --processes 1");
}

fn minutes() -> u64 {
    std::env::var("USWAP_SOAK_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

fn soak(faults: &str, arguments: &str) {
    need_userfaultfd!();
    let begun = std::time::Instant::now();
    let mut seed = u64::from(std::process::id()) << 16;
    while begun.elapsed().as_secs() < 60 * minutes() {
        seed += 1;
        notice(&format!("seed {seed} {faults} {arguments}"));
        survives(launch().faults(faults), &format!("--seed {seed} --seconds 15 {arguments}"));
    }
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_plain() {
    soak("", "--memory 160 --threads 3");
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_slow() {
    soak("delay-install=100,delay-gate=50,delay-store=500,again=20,store-full=50", "--memory 128");
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_counters() {
    soak("delay-install=50", "--mode counters --memory 160 --threads 4");
}
