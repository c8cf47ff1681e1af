//! Compressors and allocators of the pool in whole runs: chosen, changed while a program runs that
//! checks each of its pages, and damaged.

use crate::common;

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::victims::victim;
use common::{Launch, Outcome, figures, under};
use uswap_run::config::Compression;

fn uswap(words: &[&str]) -> Output {
    Command::new(common::USWAP).args(words).output().expect("uswap runs")
}

fn says(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn torture(arguments: &str) -> Vec<std::ffi::OsString> {
    let mut words = vec![victim("torture").into_os_string()];
    words.extend(arguments.split_whitespace().map(Into::into));
    words.extend(["--timeout".into(), "75".into()]);
    words
}

/// Every page was right, some were in the pool.
fn is_right(outcome: &Outcome) {
    outcome.expect(0).paged();
    assert_eq!((outcome.stat("checksum_errors"), outcome.stat("poisoned_pages")), (0, 0), "{}", outcome.account());
    assert!(outcome.stat("zswpout") > 0 && outcome.stat("decompress_fail") == 0, "{}", outcome.account());
}

fn launch() -> Launch {
    under("44M").deadline(90).swap_file("2G").faults("audit,delay-compact=500")
}

/// All but the default, which the other tests run with.
#[test]
fn every_compressor_in_a_run() {
    need_userfaultfd!();
    for compressor in Compression::each().skip(1).map(|compression| compression.to_string()) {
        let outcome = launch().option("--compressor", &compressor).run(torture("--seed 51 --seconds 3 --memory 88"));
        is_right(&outcome);
        assert_eq!(outcome.stats.as_ref().expect("figures")["compressor"], compressor.as_str());
    }
}

#[test]
fn zbud_with_a_small_pool() {
    need_userfaultfd!();
    let launch = launch().option("--allocator", "zbud").option("--pool", "10");
    let outcome = launch.run(torture("--seed 52 --seconds 3 --memory 88"));
    is_right(&outcome);
    assert_eq!(outcome.stats.as_ref().expect("figures")["pool_allocator"], "zbud");
}

/// Another compressor every ten milliseconds, while pages come and go.
#[test]
fn the_compressor_changes_all_the_time() {
    need_userfaultfd!();
    let name = format!("compressors-change-{}", std::process::id());
    let launch = launch().option("--name", &name).option("--pool", "15").flag("-q");
    let running = launch.start(torture("--seed 53 --seconds 4 --memory 76"));
    running.until("pages in the pool", || (figures(&name)["zswpout"].as_u64()? > 1000).then_some(()));
    let (begun, mut changes) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(3) {
        for compressor in ["zstd:1", "lz4", "zstd:2"].into_iter().chain(Compression::each().map(Compression::name)) {
            // The run may end before we do.
            changes += u32::from(uswap(&["compressor", &name, compressor]).status.success());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    is_right(&running.wait());
    assert!(changes > 20, "{changes} changes");
}

#[test]
fn the_order_is_answered_and_wrong_ones_change_nothing() {
    need_userfaultfd!();
    let name = format!("compressors-order-{}", std::process::id());
    let running = under("64M").waits().option("--name", &name).start(["sleep", "20"]);
    running.until("a run", || figures(&name)["compressor"].as_str().map(|_| ()));
    for (bad, why) in
        [("lzo", "there is no compressor"), ("zstd:0", "1 to 22"), ("zstd:23", "1 to 22"), ("lz4:1", "levels")]
    {
        let output = uswap(&["compressor", &name, bad]);
        assert_eq!(output.status.code(), Some(125), "{bad}");
        assert!(says(&output).contains(why), "{bad}: {}", says(&output));
        assert_eq!(figures(&name)["compressor"], "lz4");
    }
    let output = uswap(&["compressor", &name, "zstd"]);
    assert!(output.status.success() && says(&output).contains("zstd:3, lz4 before"), "{}", says(&output));
    assert_eq!(figures(&name)["compressor"], "zstd:3");
    let tables = says(&uswap(&["status", &name]));
    for word in ["zstd:3", "slab", "RATIO", "DENSITY", "SAVED"] {
        assert!(tables.contains(word), "{word} in {tables}");
    }
    running.signal(15);
    running.wait();
    for (option, bad) in
        [("--compressor", "zstd:99"), ("--compressor", "x"), ("--allocator", "z3fold"), ("--pool", "101")]
    {
        let output = uswap(&["run", "--ram", "64M", option, bad, "--", "true"]);
        assert_eq!(output.status.code(), Some(125), "{option} {bad}");
        assert!(says(&output).contains(option), "{}", says(&output));
    }
}

/// One page in 300 is damaged in the pool: it raises SIGBUS and is named, and all others are right.
#[test]
fn damaged_objects_poison_their_page_only() {
    need_userfaultfd!();
    let each = ["slab", "zbud"].map(|allocator| Compression::each().map(move |by| (by.to_string(), allocator)));
    for (compressor, allocator) in each.into_iter().flatten() {
        let launch = under("48M").deadline(60).swap_file("1G").faults("flip-pool=300");
        let launch = launch.option("--compressor", &compressor).option("--allocator", allocator);
        let arguments = "--memory 96 --rounds 2 --kind usual --timeout 50".split(' ').map(Into::into);
        let outcome = launch.run([victim("sigbus_report").into_os_string()].into_iter().chain(arguments));
        outcome.expect(0).paged();
        outcome.complains("is lost: a page in the compressed pool has a wrong checksum").complains("sigbus_report");
        assert!(outcome.stat("poisoned_pages") > 0, "{}", outcome.account());
    }
}
