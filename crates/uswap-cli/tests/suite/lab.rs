//! `uswap lab` from the outside. Traces are made by the command itself; with `USWAP_TRACES` set to
//! a folder of published traces, these are replayed too.

use crate::common;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use common::places::Place;
use serde_json::Value;

const REFUSED: i32 = 125;

/// A folder that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uswap-lab-cli-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    /// Runs `uswap lab` here.
    fn lab(&self, arguments: &str) -> Output {
        let _place = Place::take();
        let words = ["lab"].into_iter().chain(arguments.split_whitespace());
        Command::new(env!("CARGO_BIN_EXE_uswap")).args(words).current_dir(&self.0).output().expect("uswap runs")
    }

    fn told(&self, arguments: &str) -> String {
        let output = self.lab(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{arguments}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn refused(&self, arguments: &str) -> String {
        let output = self.lab(arguments);
        assert_eq!(output.status.code(), Some(REFUSED), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_loop_defeats_all_but_opt_and_lirs() {
    let here = Scratch::new("loop");
    here.told("generate loop --pages 1000 --length 50000 -o loop.txt.gz");
    let told = here.told("replay loop.txt.gz --policy opt,lru,kernel,lirs --ram 50% --csv");
    let ratio = |policy: &str| -> f64 {
        let line = told.lines().find(|line| line.starts_with(&format!("loop.txt.gz,{policy},50%,500,50000,")));
        line.and_then(|line| line.rsplit(',').next()?.parse().ok()).expect("a ratio")
    };
    assert_eq!((ratio("lru"), ratio("kernel")), (1.0, 1.0));
    assert!((0.5..0.52).contains(&ratio("opt")) && (0.5..0.53).contains(&ratio("lirs")), "{told}");
    assert!(told.contains("mean,lirs,all,"));
}

#[test]
fn table_csv_and_json_tell_the_same() {
    let here = Scratch::new("same");
    here.told("generate zipf --pages 300 --length 9000 -o a.txt");
    here.told("generate phases --pages 300 --length 9000 --format compact -o b.trace");
    let what = "replay a.txt b.trace --policy lru,two-list --ram 10%,77";
    let json: Value = serde_json::from_str(&here.told(&format!("{what} --json"))).expect("JSON");
    let csv = here.told(&format!("{what} --csv"));
    let table = here.told(what);
    assert_eq!(csv.lines().count(), 1 + 2 * 2 * 2 + 2 * 3);
    for trace in json["traces"].as_array().expect("traces") {
        for cell in trace["results"].as_array().expect("results") {
            let text = |name: &str| cell[name].as_str().expect("text").to_string();
            let number = |name: &str| cell[name].as_u64().expect("a number");
            let (misses, soft, activations) = (number("misses"), number("soft_faults"), number("activations"));
            let (name, policy, ram) = (trace["trace"].as_str().expect("a name"), text("policy"), text("ram"));
            let pages = number("pages");
            assert!(
                csv.contains(&format!("{name},{policy},{ram},{pages},9000,{misses},{soft},{activations},")),
                "{csv}"
            );
            let percent = format!("{:.2}", misses as f64 / 90.0);
            assert!(table.lines().any(|line| line.contains(&policy) && line.contains(&percent)), "{table}");
        }
    }
    assert!(table.contains("b.trace: 9000 accesses, ") && table.contains("mean of 2 traces"));
}

#[test]
fn the_curve_has_a_line_for_each_policy() {
    let here = Scratch::new("curve");
    here.told("generate scan --pages 500 --length 20000 -o a.txt");
    here.told("replay a.txt --ram 10%,50% --svg curve.svg");
    let svg = fs::read_to_string(here.0.join("curve.svg")).expect("the curve");
    for word in ["<svg", "a.txt", "opt", "lirs", "kernel", "two-list", "memory, % of the trace"] {
        assert!(svg.contains(word), "{word}");
    }
    assert!(here.refused("replay a.txt --ram 10%,50 --svg other.svg").contains("percent"));
    assert!(!here.0.join("other.svg").exists());
}

#[test]
fn what_cannot_be_done_is_refused_with_a_sentence() {
    let here = Scratch::new("refused");
    fs::write(here.0.join("bad.txt"), "1\n2\nthree\n").expect("a file");
    assert_eq!(here.refused("replay bad.txt"), "uswap: bad.txt: line 3: \"three\" is not a page number\n");
    assert!(here.refused("replay missing.txt").contains("missing.txt: No such file"));
    let unknown = here.refused("replay bad.txt --policy lru,best");
    assert!(unknown.contains("'best'") && unknown.contains("lru, fifo, clock"), "{unknown}");
    assert!(unknown.contains("uswap, uswap-bits, uswap-mount, uswap-fifo"), "{unknown}");
    let of_tests = ["random", "newest-first"].iter().any(|name| unknown.contains(name));
    assert!(!of_tests, "a policy that only tests know is in the binary: {unknown}");
    assert!(here.refused("replay bad.txt --ram 10%,0").contains("\"0\" is not an amount"));
    assert!(here.refused("generate zipf --pages 0").contains("--pages"));
    assert!(
        here.refused("generate zipf --exponent 99 -o new.txt").contains("exponent") && !here.0.join("new.txt").exists()
    );
    assert!(here.refused("generate loop -o bad.txt").contains("exists"));
    assert_eq!(fs::read_to_string(here.0.join("bad.txt")).expect("a file"), "1\n2\nthree\n");
}

#[test]
fn generated_traces_go_to_standard_output_without_a_file() {
    let here = Scratch::new("output");
    assert_eq!(here.told("generate loop --pages 3 --length 5"), "0\n1\n2\n0\n1\n");
    let compact = here.lab("generate loop --pages 3 --length 5 --format compact").stdout;
    assert_eq!(compact, b"\x89USWTRC\n\x01\x00\x00\x02\x02\x03\x02");
}

#[test]
fn published_traces_are_replayed() {
    let Some(folder) = std::env::var_os("USWAP_TRACES") else {
        return eprintln!("left out: USWAP_TRACES names no folder of traces");
    };
    let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    let paths: Vec<String> = files.map(|path| path.to_str().expect("a name").to_string()).collect();
    let told = Scratch::new("published").told(&format!("replay {} --csv", paths.join(" ")));
    let means: Vec<(&str, f64)> = told
        .lines()
        .filter_map(|line| line.strip_prefix("mean,")?.split_once(",all,"))
        .map(|(policy, rest)| (policy, rest.trim_matches(',').parse().expect("a ratio")))
        .collect();
    let ratio = |policy: &str| means.iter().find(|(name, _)| *name == policy).expect("a policy").1;
    let order = ["opt", "lirs", "s3fifo", "2q", "arc", "lru", "fifo"];
    assert!(order.windows(2).all(|pair| ratio(pair[0]) < ratio(pair[1])), "{means:?}");
}

/// Fills 48 MiB and reads it twice, a byte a page.
const SWEEPS: &str = "b = bytearray(b'x') * (48 << 20)
for i in range(2): assert sum(b[::4096]) == 120 * 12288";

impl Scratch {
    fn record(&self, arguments: &[&str]) -> Output {
        let _place = Place::take();
        let mut command = Command::new("timeout");
        command.args(["60", env!("CARGO_BIN_EXE_uswap"), "lab", "record"]).args(arguments);
        command.current_dir(&self.0).output().expect("timeout runs")
    }
}

#[test]
fn a_recorded_run_shows_each_touch_of_a_page_that_was_out() {
    let here = Scratch::new("record");
    let output = here.record(&["-o", "t.trace.gz", "--ram", "24M", "--", "python3", "-c", SWEEPS]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let told: u64 =
        errors.split_once("recorded ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok()).expect("a count");
    let json: Value =
        serde_json::from_str(&here.told("replay t.trace.gz --policy lru --ram 50% --json")).expect("JSON");
    let count = |name: &str| json["traces"][0][name].as_u64().expect("a number");
    assert_eq!(count("accesses"), told);
    // Half of the pages at least are out in each of the two sweeps. While memory is filled part of
    // it grows unseen.
    assert!(count("distinct_pages") >= 9_000 && (12_288..100_000).contains(&told), "{json:#}");
}

#[test]
fn every_access_is_recorded_with_valgrind() {
    let here = Scratch::new("lackey");
    let output = here.record(&["--every-access", "-o", "t.trace", "--", "sh", "-c", "exit 7"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{errors}");
    assert!(errors.contains("recorded "), "{errors}");
    here.told("replay t.trace --policy lru --ram 50%");
}

/// Whoever ends the recording ends what is recorded, with its children, also those that heed
/// nothing; and the trace is whole.
#[test]
fn a_recording_that_is_ended_leaves_nothing_running() {
    let here = Scratch::new("lackey-ended");
    let leaves = "trap '' TERM; sleep 300 & echo ready; while :; do :; done";
    for (script, status) in [("sleep 300 & echo ready; while :; do :; done", 143), (leaves, 137)] {
        let line =
            [common::USWAP, "lab", "record", "--every-access", "-q", "-o", "ended.trace", "--", "bash", "-c", script];
        let recorder = common::plain().folder(&here.0).deadline(60).start(line);
        recorder.says("ready");
        recorder.signal(15);
        recorder.wait().expect(status);
        here.told("replay ended.trace --policy lru --ram 50%");
        fs::remove_file(here.0.join("ended.trace")).expect("a trace");
    }
}

/// A trace that cannot be written any further is no reason to leave the command running.
#[test]
fn a_recording_that_fails_leaves_nothing_running() {
    let here = Scratch::new("lackey-fails");
    let script = format!(
        "ulimit -f 64; exec '{}' lab record --every-access -o short.trace -- bash -c 'trap \"\" XFSZ; while :; do :; done'",
        common::USWAP
    );
    let words = ["bash", "-c", &format!("trap '' XFSZ; {script}")];
    let outcome = common::plain().folder(&here.0).deadline(60).run(words);
    outcome.expect(REFUSED).complains("short.trace: File too large");
}

#[test]
fn what_cannot_be_recorded_is_refused_and_nothing_is_overwritten() {
    let here = Scratch::new("record-refused");
    fs::write(here.0.join("old.trace"), "kept").expect("a file");
    let refused = |arguments: &[&str], status: i32, why: &str| {
        let output = here.record(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(status) && errors.contains(why), "{arguments:?}: {errors}");
    };
    refused(&["-o", "old.trace", "--", "true"], REFUSED, "old.trace: File exists");
    refused(&["--every-access", "-o", "old.trace", "--", "true"], REFUSED, "old.trace: File exists");
    refused(&["-o", "new.trace", "--", "no-such-command"], 127, "command not found");
    refused(&["-o", "no/folder.trace", "--", "true"], REFUSED, "no/folder.trace");
    assert_eq!(fs::read_to_string(here.0.join("old.trace")).expect("the file"), "kept");
    assert!(!here.0.join("new.trace").exists());
}
