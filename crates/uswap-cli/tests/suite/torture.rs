//! The torture program (tests/programs/torture.c) with fixed seeds, and with the engine slowed down
//! or refused at its fault points, so that rare orders of events happen often.
//!
//! `cargo test -- --ignored` (make soak) runs each for minutes instead of seconds.

use crate::common;

use std::ffi::OsString;

use common::disk::BlockDevice;
use common::torture_cases::{more_torture_cases, torture_cases};
use common::victims::victim;
use common::{Launch, Outcome, not_here, notice, under};

fn words(arguments: &str) -> Vec<OsString> {
    let mut all = vec![victim("torture").into_os_string()];
    all.extend(arguments.split_whitespace().map(OsString::from));
    all.extend(["--timeout".into(), "75".into()]);
    all
}

fn launch() -> Launch {
    under("28M").deadline(90).swap_file("2G").faults("audit")
}

/// Runs it; it must verify every page it read, and pages must have been evicted.
fn survives(launch: Launch, arguments: &str) -> Outcome {
    let outcome = launch.run(words(arguments));
    outcome.expect(0).paged();
    assert_eq!(outcome.stat("checksum_errors"), 0, "{}", outcome.account());
    assert_eq!(outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
    outcome
}

fn torture(faults: &str, arguments: &str) {
    survives(launch().faults(&format!("audit,{faults}")), arguments);
}

torture_cases!(torture);
more_torture_cases!(torture);

/// Reads that owners ask for themselves, every third of which fails and goes on to a reader; and
/// without such.
#[test]
fn queued_reads_that_fail_go_to_readers() {
    need_userfaultfd!();
    for (faults, queued) in [("audit,queue-fail=3", true), ("audit,no-read-queue", false)] {
        let launch = launch().option("--pool", "5").faults(faults);
        let outcome = survives(launch, "--seed 64 --seconds 3 --memory 34 --processes 1");
        assert_eq!(outcome.stat("queued_reads") > 20, queued, "{faults}: {}", outcome.account());
    }
}

/// Pages that cannot be moved (pinned by the kernel, say) stay, and are tried again.
#[test]
fn pages_are_busy_at_times() {
    need_userfaultfd!();
    let outcome = survives(launch().faults("audit,busy=7"), "--seed 51 --seconds 1 --memory 34");
    assert!(outcome.stat("move_busy") > 100, "{}", outcome.account());
}

/// What a device does not take stays in memory or goes to another place.
#[test]
fn writes_fail_at_times() {
    need_userfaultfd!();
    let launch = launch().option("--pool", "5").faults("audit,write-fail=5");
    let outcome = survives(launch, "--seed 52 --seconds 1 --memory 34 --processes 1");
    assert!(outcome.stat("pswpout") > 0, "{}", outcome.account());
    let devices = outcome.stats.as_ref().map(|stats| stats["devices"].clone()).unwrap_or_default();
    assert!(devices[0]["write_errors"].as_u64() > Some(0), "{devices}");
}

/// Writeback without end: what comes into the pool goes out to the device at once, packed; what
/// lies there is moved.
macro_rules! written_back {
    ($($test:ident: $faults:literal, $swap:literal, $arguments:literal;)*) => {
        $(#[test]
        fn $test() {
            need_userfaultfd!();
            let launch = under("28M").deadline(90).faults(concat!("audit,", $faults));
            let launch = if $swap.is_empty() { launch.swap_file("2G") } else { launch.option("--swap", $swap) };
            let outcome = survives(launch, $arguments);
            let (written, repacked) = (outcome.stat("written_back_pages"), outcome.stat("repacked_pages"));
            assert!(written > 0 && $faults.contains("repack") == (repacked > 0), "{}", outcome.account());
        })*
    };
}

written_back! {
    writeback_without_end: "eager-writeback", "", "--seed 31 --seconds 2 --memory 38";
    slow_writeback: "no-alloc,eager-writeback,delay-writeback=3000", "", "--seed 33 --seconds 2 --memory 38";
    writeback_and_repacking: "no-alloc,eager-writeback,eager-repack", "", "--seed 34 --seconds 2 --memory 38";
    slow_writeback_and_repacking: "no-alloc,eager-writeback,eager-repack,delay-writeback=500,again=20", "",
        "--seed 35 --seconds 2 --memory 38 --threads 3";
    counters_in_packs: "no-alloc,eager-writeback,eager-repack", "", "--mode counters --seconds 2 --memory 38";
    writeback_without_packs: "eager-writeback,no-packing", "", "--seed 36 --seconds 2 --memory 38";
}

/// The same on a block device, whose sectors say how little can be read.
#[test]
fn writeback_to_a_block_device() {
    need_userfaultfd!();
    let Some(device) = BlockDevice::new(512 << 20) else { return not_here("loop devices cannot be made here") };
    let launch = under("28M").deadline(90).faults("audit,eager-writeback,eager-repack").option("--swap", &device.name);
    let outcome = survives(launch, "--seed 37 --seconds 3 --memory 38");
    assert!(outcome.stat("written_back_pages") > 0 && outcome.stat("repacked_pages") > 0, "{}", outcome.account());
}

/// Nothing compressed: every page that goes out goes to the device.
#[test]
fn without_a_pool() {
    need_userfaultfd!();
    let outcome = survives(launch().option("--pool", "0"), "--seed 21 --seconds 2 --memory 38");
    assert!(outcome.stat("pswpout") > 0, "{}", outcome.account());
}

#[test]
fn pool_of_a_few_pages() {
    need_userfaultfd!();
    survives(launch().option("--pool", "2"), "--seed 22 --seconds 2 --memory 38");
}

/// Right, but too slow for CI: slots that were freed and not discarded yet are charged to the
/// budget.
#[test]
#[ignore = "takes minutes: make soak"]
fn swap_in_ram() {
    need_userfaultfd!();
    let outcome =
        survives(under("28M").deadline(600).option("--swap", "ram,size=1G"), "--seed 23 --seconds 2 --memory 38");
    assert!(outcome.stat("pswpout") > 0, "{}", outcome.account());
}

/// A small first device that fills, then a second one.
#[test]
fn two_devices() {
    need_userfaultfd!();
    let launch = launch().option("--pool", "5").option("--swap", "ram,prio=5,size=16M");
    let outcome = survives(launch, "--seed 24 --seconds 2 --memory 38");
    let devices = outcome.stats.as_ref().and_then(|stats| stats["devices"].as_array()).map_or(0, Vec::len);
    assert_eq!(devices, 2, "{}", outcome.account());
}

/// The default: nothing is named with `--swap`.
#[test]
fn swap_file_without_a_name() {
    need_userfaultfd!();
    survives(under("28M").deadline(90), "--seed 25 --seconds 2 --memory 38 --processes 1");
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
    soak("delay-install=100,delay-gate=50,delay-store=500,again=20,store-full=50", "--memory 88");
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_counters() {
    soak("delay-install=50", "--mode counters --memory 160 --threads 4");
}
