//! Devices that come and go, and a budget that changes, while a program runs that checks each of
//! its pages.

use crate::common;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::disk::Mounted;
use common::victims::victim;
use common::{Running, Scratch, figures, not_here, under};
use serde_json::Value;

fn uswap(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uswap")).args(words).output().expect("uswap runs")
}

fn says(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn succeeds(words: &[&str]) -> String {
    let output = uswap(words);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", says(&output));
    says(&output)
}

fn is_refused(words: &[&str], why: &str) {
    let output = uswap(words);
    assert_eq!(output.status.code(), Some(125), "{words:?}: {}", says(&output));
    assert!(says(&output).contains(why), "{words:?}: {}", says(&output));
}

fn used(name: &str, device: &Path) -> u64 {
    let figures = figures(name);
    let devices = figures["devices"].as_array().cloned().unwrap_or_default();
    let its = devices.iter().find(|known| known["name"].as_str() == device.to_str());
    its.map_or(0, |known| known["used_bytes"].as_u64().unwrap_or(0))
}

/// The torture program with a swap file, named, once something lies on the file.
fn torture(name: &str, first: &Path, faults: &str, arguments: &str) -> Running {
    let spec = format!("{},size=1G", first.display());
    let launch = under("64M").deadline(120).option("--name", name).option("--pool", "10").option("--swap", &spec);
    let mut words = vec![victim("torture").into_os_string()];
    words.extend(arguments.split_whitespace().map(Into::into));
    let running = launch.faults(faults).start(words);
    running.until("pages on the first device", || (used(name, first) > 8 << 20).then_some(()));
    running
}

fn name_of(test: &str) -> String {
    format!("swaps-{test}-{}", std::process::id())
}

#[test]
fn one_device_after_the_other_takes_over() {
    need_userfaultfd!();
    let (name, folder) = (name_of("turns"), Scratch::new());
    let files: Vec<_> = (0..4).map(|i| folder.path(&format!("swap-{i}"))).collect();
    let running = torture(&name, &files[0], "audit", "--seed 31 --seconds 90 --memory 128 --timeout 100");
    for pair in files.windows(2) {
        let (old, new) = (pair[0].to_str().expect("a path"), pair[1].to_str().expect("a path"));
        succeeds(&["swapon", &name, &format!("{new},size=1G")]);
        assert!(succeeds(&["swapoff", &name, old]).contains("off"));
        assert_eq!(used(&name, &pair[0]), 0);
        running.until("pages on the next device", || (used(&name, &pair[1]) > 1 << 20).then_some(()));
    }
    let outcome = running.enough();
    outcome.expect(0).paged();
    assert_eq!(outcome.stat("checksum_errors") + outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
}

#[test]
fn the_limit_falls_and_rises_while_the_program_runs() {
    need_userfaultfd!();
    let (name, folder) = (name_of("limit"), Scratch::new());
    let running = torture(
        &name,
        &folder.path("swap"),
        "audit",
        "--seed 32 --seconds 90 --memory 128 --processes 0 --timeout 100",
    );
    for limit in ["48M", "96M", "64M"] {
        let told = succeeds(&["limit", &name, limit]);
        let number = limit.trim_end_matches('M');
        assert!(told.contains(&format!("{number}.0 MiB")), "{told}");
        assert_eq!(figures(&name)["ram_limit_bytes"], number.parse::<u64>().expect("a number") << 20);
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    is_refused(&["limit", &name, "1M"], "the least that works");
    is_refused(&["limit", &name, "much"], "much");
    is_refused(&["limit", &name, "50"], "50% is a share of the machine's memory, 50M a size");
    is_refused(&["swapon", &name, "1G"], "a place comes first: PATH,size=1G");
    running.enough().expect(0).paged();
}

#[test]
fn wrong_orders_change_nothing() {
    need_userfaultfd!();
    let (name, folder) = (name_of("wrong"), Scratch::new());
    let swap = folder.path("swap");
    let running = torture(&name, &swap, "audit", "--seed 33 --seconds 90 --memory 128 --processes 0 --timeout 100");
    let path = swap.to_str().expect("a path");
    std::fs::write(folder.path("precious"), "data").expect("a file");
    let precious = folder.path("precious");
    is_refused(&["swapon", &name, path], "in use");
    is_refused(&["swapon", &name, "/"], "directory");
    is_refused(&["swapon", &name, precious.to_str().expect("a path")], "holds data");
    match Mounted::new(16 << 20) {
        Some(mounted) => {
            std::fs::write(mounted.folder.join("data"), "data").expect("a file");
            is_refused(&["swapon", &name, &mounted.device.name], "in use");
            assert_eq!(std::fs::read(mounted.folder.join("data")).expect("still there"), b"data");
        }
        None => not_here("nothing can be mounted here"),
    }
    is_refused(&["swapon", &name, &format!("{path}-small,size=1M")], "less than 2 MiB");
    is_refused(&["swapon", &name, &format!("{path},prio=high")], "prio");
    is_refused(&["swapoff", &name, "/no/such/file"], path);
    is_refused(&["swapoff", &name, path], "add another one first");
    is_refused(&["swapoff", "no-such-run", path], "no-such-run");
    assert_eq!(std::fs::read(&precious).expect("still there"), b"data");
    let devices = figures(&name)["devices"].clone();
    assert_eq!((devices.as_array().map(Vec::len), &devices[0]["draining"]), (Some(1), &Value::Bool(false)));
    running.enough().expect(0).paged();
}

/// Ctrl-C reaches the run: the device is used again, and the program has noticed nothing.
#[test]
fn an_interrupted_swapoff_leaves_the_device_in_use() {
    need_userfaultfd!();
    let (name, folder) = (name_of("interrupted"), Scratch::new());
    let (swap, other) = (folder.path("swap"), folder.path("other"));
    let running = torture(&name, &swap, "delay-drain=100000", "--seed 34 --seconds 90 --memory 128 --timeout 100");
    succeeds(&["swapon", &name, &format!("{},size=1G,prio=-1", other.display())]);
    let words = ["swapoff", &name, swap.to_str().expect("a path")];
    let mut command = common::command(env!("CARGO_BIN_EXE_uswap"));
    let swapoff = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("uswap runs");
    let draining = || (figures(&name)["swapoff"]["running"] == true).then_some(());
    running.until("the swapoff under way", draining);
    is_refused(&["swapoff", &name, other.to_str().expect("a path")], "one after the other");
    common::procs::kill(swapoff.id(), 2);
    let output = swapoff.wait_with_output().expect("an end");
    assert_eq!(output.status.code(), Some(130), "{}", says(&output));
    assert!(says(&output).contains("interrupted"), "{}", says(&output));
    let told = figures(&name);
    assert_eq!((&told["swapoff"]["running"], &told["devices"][0]["draining"]), (&false.into(), &false.into()));
    running.enough().expect(0).paged();
}
